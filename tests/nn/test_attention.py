"""Attention against four nested loops, and its cache."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from parts import NORMAL, context, init, normal, softmax

from scalelab.nn.attention import WEIGHTS, CrossAttention, KeyValueCache, SelfAttention
from scalelab.nn.masks import Context, Mask

B, T, N, K, D = 2, 5, 3, 4, 7
LENGTHS = np.array([5, 3], np.int32)
MODULE = SelfAttention(N, K, 0.5, NORMAL, NORMAL)


def scaled(query: np.ndarray, key: np.ndarray) -> float:
    return query @ key / math.sqrt(K)


def by_loops(
    params: dict, x: Any, allowed: Any, bias: Any, source: Any = None, score: Any = scaled
) -> np.ndarray:
    """allowed [B, T, S], bias [N, T, S] -> [B, T, D]."""
    source = x if source is None else source

    def project(name: str, x: np.ndarray) -> np.ndarray:
        p = params[name]
        return np.einsum("btd,dnk->btnk", x, p["kernel"]) + p.get("bias", 0)

    q, k, v = project("query", x), project("key", source), project("value", source)
    out = np.zeros((B, T, D))
    for b in range(B):
        for i in range(T):
            for n in range(N):
                seen = [j for j in range(source.shape[1]) if allowed[b, i, j]]
                scores = [score(q[b, i, n], k[b, j, n]) + bias[n, i, j] for j in seen]
                weights = softmax(scores)
                mixed = sum(w * v[b, j, n] for w, j in zip(weights, seen, strict=True))
                out[b, i] += mixed @ params["out"]["kernel"][n]
    return out + params["out"].get("bias", 0)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_what_the_loops_say(causal: bool) -> None:
    x, bias = normal(B, T, D), normal(N, T, T, seed=5)
    ctx = context(B, T, lengths=jnp.array(LENGTHS), causal=causal).replace(bias=bias)
    variables = init(MODULE, x, ctx, None)
    out, cache = MODULE.apply(variables, x, ctx, None)
    assert cache is None
    allowed = np.broadcast_to(np.arange(T) < LENGTHS[:, None, None], (B, T, T))
    allowed = allowed & np.tri(T, dtype=bool) if causal else allowed
    params = jax.tree.map(np.asarray, variables["params"])
    np.testing.assert_allclose(out, by_loops(params, x, allowed, bias), rtol=1e-4, atol=1e-4)


def test_one_head_is_the_formula() -> None:
    """softmax(Q K^T / sqrt(d)) V (Vaswani et al. 2017, equation 1), by matrices."""
    module, x = SelfAttention(1, K, 0.0, NORMAL, NORMAL, bias_init=None), normal(1, T, D)
    variables = init(module, x, context(1, T), None)
    found, _ = module.apply(variables, x, context(1, T), None)
    p = {name: np.asarray(part["kernel"]) for name, part in variables["params"].items()}
    q, k, v = (x[0] @ p[name][:, 0] for name in ("query", "key", "value"))
    for scale, same in ((math.sqrt(K), True), (1.0, False)):
        exps = np.exp(q @ k.T / scale)
        expected = exps / exps.sum(axis=1, keepdims=True) @ v @ p["out"][0]
        assert np.allclose(found[0], expected, rtol=1e-4, atol=1e-4) == same


@pytest.mark.parametrize("causal", [False, True])
def test_weights_can_be_read(causal: bool) -> None:
    """They give the output again, also in training; who does not ask for them gets none."""
    x, ctx = normal(B, T, D), context(B, T, lengths=jnp.array(LENGTHS), causal=causal)
    variables = init(MODULE, x, ctx, None)
    assert [*variables] == ["params"]
    (out, _), found = MODULE.apply(variables, x, ctx, None, mutable=["intermediates"])
    (weights,) = found["intermediates"][WEIGHTS]
    p = variables["params"]
    value = np.einsum("btd,dnk->btnk", x, p["value"]["kernel"]) + p["value"]["bias"]
    mixed = np.einsum("bnts,bsnk,nkd->btd", weights, value, p["out"]["kernel"])
    np.testing.assert_allclose(out, mixed + p["out"]["bias"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert (weights[1, :, :, 3:] == 0).all() and (weights[0, :, 0, 1:] == 0).all() == causal
    given = variables, x, ctx.replace(train=True), None
    key = {"dropout": jax.random.key(0)}
    _, found = MODULE.apply(*given, rngs=key, mutable=["intermediates"])
    np.testing.assert_allclose(found["intermediates"][WEIGHTS][0], weights, rtol=1e-5)


def distance(query: jax.Array, keys: jax.Array, ctx: Context) -> jax.Array:
    """A score that is no product, with a scale of its own."""
    del ctx
    return -0.1 * jnp.abs(query[:, :, None] - keys[:, None]).sum(-1).transpose(0, 3, 1, 2)


def distance_by_hand(query: np.ndarray, key: np.ndarray) -> float:
    return -0.1 * float(np.abs(query - key).sum())


def one_by_one(module: SelfAttention, variables: dict, x: np.ndarray, ctx: Context) -> np.ndarray:
    """The result of reading x [B, T, D] one token at a time."""
    cache, parts = module.init_cache(B, T + 2), []
    for t in range(T):
        positions = jnp.full((B, 1), t)
        mask = ctx.mask.replace(query_positions=positions)
        step = Context(mask, positions, jnp.arange(B))
        out, cache = module.apply(variables, x[:, t : t + 1], step, cache)
        parts.append(out[:, 0])
    return np.stack(parts, axis=1)


def test_a_given_score_without_biases_with_and_without_a_cache() -> None:
    module, x = MODULE.clone(score=distance, bias_init=None), normal(B, T, D)
    ctx = context(B, T, causal=True)
    variables = init(module, x, ctx, None)
    assert {name: [*p] for name, p in variables["params"].items()} == dict.fromkeys(
        ("query", "key", "value", "out"), ["kernel"]
    )
    allowed = np.broadcast_to(np.tri(T, dtype=bool), (B, T, T))
    params, zeros = jax.tree.map(np.asarray, variables["params"]), np.zeros((N, T, T))
    expected = by_loops(params, x, allowed, zeros, score=distance_by_hand)
    found, _ = module.apply(variables, x, ctx, None)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    found = one_by_one(module, variables, x, ctx)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(expected - by_loops(params, x, allowed, zeros)).max() > 0.1


# --- Cross-attention: to a source of another length and width ------------------------------------

S, SOURCE_WIDTH = 6, 9
SOURCE, SOURCE_LENGTHS = normal(B, S, SOURCE_WIDTH, seed=3), np.array([4, 6], np.int32)


def reading(lengths: np.ndarray = SOURCE_LENGTHS, *, train: bool = False) -> Context:
    """The target is causal, and has a bias, which are not for the source."""
    ctx = context(B, T, train=train, lengths=jnp.array(LENGTHS), causal=True)
    ctx = ctx.replace(bias=jnp.asarray(normal(N, T, T)))
    return ctx.replace(source=jnp.asarray(SOURCE), source_mask=Mask(lengths=jnp.array(lengths)))


@pytest.mark.parametrize("score", [None, distance])
def test_cross_attention_is_what_the_loops_say(score: Callable | None) -> None:
    module = CrossAttention(N, K, 0.5, NORMAL, NORMAL, score=score)
    x, by_hand = normal(B, T, D), scaled if score is None else distance_by_hand
    variables = init(module, x, reading(), None)
    params = jax.tree.map(np.asarray, variables["params"])

    def expected(lengths: np.ndarray) -> np.ndarray:
        allowed = np.repeat(np.arange(S) < lengths[:, None, None], T, axis=1)
        return by_loops(params, x, allowed, np.zeros((N, T, S)), SOURCE, by_hand)

    found, nothing = module.apply(variables, x, reading(), None)
    assert nothing is None
    np.testing.assert_allclose(found, expected(SOURCE_LENGTHS), rtol=1e-4, atol=1e-4)
    assert np.abs(found - expected(np.array([6, 6]))).max() > 0.1

    _, cache = module.apply(variables, x[:, :0], reading(), module.init_cache(B, S))
    later = reading().replace(source=None)
    found, same = module.apply(variables, x, later, cache)
    np.testing.assert_allclose(found, expected(SOURCE_LENGTHS), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(same.keys, cache.keys)
    with pytest.raises(AssertionError, match="needs a source"):
        module.apply(variables, x, dataclasses.replace(later, source_mask=None), cache)


def test_dropout_of_a_source_belongs_to_the_example() -> None:
    """An example alone, its source cut to its length, has the same masks."""
    module, x = CrossAttention(N, K, 0.5, NORMAL, NORMAL), normal(B, T, D)
    variables, key = init(module, x, reading(), None), {"dropout": jax.random.key(0)}
    whole, _ = module.apply(variables, x, reading(train=True), None, rngs=key)
    short = reading(SOURCE_LENGTHS[:1], train=True)
    short = short.replace(source=short.source[:1, :4], examples=jnp.array([0]))
    alone, _ = module.apply(variables, x[:1], short, None, rngs=key)
    np.testing.assert_allclose(alone[0], whole[0], rtol=1e-4, atol=1e-4)
    other, _ = module.apply(
        variables, x[:1], short.replace(examples=jnp.array([1])), None, rngs=key
    )
    assert np.abs(other[0] - whole[0]).max() > 0.1


# --- Special cases -------------------------------------------------------------------------------


def test_nothing_to_see_is_no_nan() -> None:
    x = normal(B, T, D)
    ctx = context(B, T, lengths=jnp.array([0, 5]))
    variables = init(MODULE, x, ctx, None)
    value, gradient = jax.value_and_grad(
        lambda v: jnp.sum(MODULE.apply(v, x, ctx, None)[0]), allow_int=True
    )(variables)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradient)))


def test_dropout_falls_on_the_weights() -> None:
    """With values all 1, the weights sum to 1 without dropout, and to multiples of it with."""
    x = np.zeros((B, T, D), np.float32)
    variables = init(MODULE, x, context(B, T), None)
    p = variables["params"]
    p["value"]["bias"] = jnp.ones((N, K))
    p["out"] = {"kernel": jnp.ones((N, K, D)) / (N * K), "bias": jnp.zeros(D)}
    key = {"dropout": jax.random.key(0)}
    out, _ = MODULE.apply(variables, x, context(B, T, train=True), None, rngs=key)
    # Each weight is 0.2 or, kept at rate 0.5, 0.4; the mean over 3 heads of 5 weights.
    multiples = np.asarray(out) / (0.4 / N)
    np.testing.assert_allclose(multiples, np.round(multiples), atol=1e-4)
    assert len(np.unique(np.round(multiples))) > 3


def test_cache_writes_at_positions_and_drops_what_lies_outside() -> None:
    cache = KeyValueCache(jnp.zeros((2, 1, 4, 1)), jnp.zeros((2, 1, 4, 1)))
    keys = jnp.array([[1.0, 2.0], [3.0, 4.0]]).reshape(2, 2, 1, 1)
    cache = cache.write(keys, -keys, jnp.array([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(cache.keys[:, 0, :, 0], [[0, 1, 2, 0], [0, 0, 0, 3]])
    np.testing.assert_array_equal(cache.values, -cache.keys)


def test_each_projection_may_have_an_initializer_of_its_own() -> None:
    own = tuple(map(nn.initializers.constant, (1.0, 2.0, 3.0)))
    module = MODULE.clone(kernel_init=own)
    made = nn.unbox(module.init(jax.random.key(0), normal(B, T, D), context(B, T), None))["params"]
    found = {name: np.unique(made[name]["kernel"]).tolist() for name in ("query", "key", "value")}
    assert found == {"query": [1.0], "key": [2.0], "value": [3.0]}
