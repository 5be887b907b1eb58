"""Norm, linear map, activations, embeddings, heads: values worked out by hand."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from parts import NORMAL, context, init, normal

from scalelab.nn import axes
from scalelab.nn.embed import Embed, InputEmbed
from scalelab.nn.ffn import FeedForward, gelu_exact, gelu_tanh
from scalelab.nn.heads import (
    ClassHead,
    FirstTokenHead,
    PlainHead,
    TransformHead,
    tied_logits,
)
from scalelab.nn.linear import Linear
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions, SinusoidPositions


def test_layer_norm_by_hand() -> None:
    """Mean 3, variance 4: (1 - 3) / 2 = -1 and so on; with epsilon 12 the divisor is 4."""
    x = jnp.array([[1.0, 5.0, 1.0, 5.0]])
    params = {"scale": jnp.array([1.0, 2.0, 3.0, 4.0]), "bias": jnp.array([0.0, 0.0, 1.0, 1.0])}
    out = LayerNorm(0.0).apply({"params": params}, x)
    np.testing.assert_allclose(out, [[-1.0, 2.0, -2.0, 5.0]], rtol=1e-6)
    out = LayerNorm(12.0).apply({"params": params}, x)
    np.testing.assert_allclose(out, [[-0.5, 1.0, -0.5, 3.0]], rtol=1e-6)


def test_layer_norm_of_a_large_offset() -> None:
    """E[x^2] - E[x]^2 in float32 would lose all digits here."""
    x = 1e4 + normal(4, 64)
    out = LayerNorm(1e-12).apply({"params": {"scale": jnp.ones(64), "bias": jnp.zeros(64)}}, x)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(out, expected, atol=2e-3)


def test_linear_over_several_axes() -> None:
    x = normal(2, 3, 4, 5)
    module = Linear((axes.HEADS, axes.HEAD_SIZE), (axes.WIDTH, axes.FFN), (6, 7), NORMAL)
    variables = init(module, x)
    kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
    assert kernel.shape == (4, 5, 6, 7) and bias.shape == (6, 7)
    expected = np.einsum("btnk,nkdf->btdf", x, kernel) + bias
    np.testing.assert_allclose(module.apply(variables, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("x", [-30.0, -3.0, -0.7, 0.0, 0.2, 1.0, 4.0, 30.0])
def test_gelu(x: float) -> None:
    exact = 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
    tanh = 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert gelu_exact(jnp.float32(x)) == pytest.approx(exact, rel=1e-5, abs=1e-6)
    assert gelu_tanh(jnp.float32(x)) == pytest.approx(tanh, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("num_rows", [2, 3])
def test_a_table_is_looked_up_and_its_gradient_is_added_by_row(num_rows: int) -> None:
    """Also of two rows, which are chosen between; an id outside has the nearest row."""
    table, weights = normal(num_rows, 8, seed=1), normal(4, 5, 8, seed=2)
    ids = np.random.default_rng(0).integers(-1, num_rows + 1, (4, 5))
    module = Embed(num_rows, 8, NORMAL)

    def weighted(table: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = module.apply({"params": {"table": table}}, jnp.array(ids))
        return jnp.sum(found * weights), found

    gradient, found = jax.grad(weighted, has_aux=True)(jnp.array(table))
    rows, expected = ids.clip(0, num_rows - 1), np.zeros_like(table)
    np.add.at(expected, rows, weights)
    np.testing.assert_array_equal(found, table[rows])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_rows", [2, 5])
def test_a_factor_multiplies_vectors_and_not_the_table(num_rows: int) -> None:
    """The same table scores tokens, without the factor."""
    module = Embed(num_rows, 4, NORMAL, factor=2.0)
    table = normal(num_rows, 4)
    variables = {"params": {"table": table}}
    found = module.apply(variables, jnp.array([[1, 0]]))
    np.testing.assert_array_equal(found, 2 * table[None, [1, 0]])
    np.testing.assert_array_equal(nn.apply(lambda m: m.table, module)(variables), table)


@pytest.mark.parametrize("width", [1, 6, 7])
def test_sinusoids_are_the_papers_up_to_the_order_of_features(width: int) -> None:
    """Vaswani et al. 2017, 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i + 1) = cos."""
    positions = np.array([[0, 1, 2, 511], [3, 7, 1000, 0]])
    module = SinusoidPositions(width)
    assert not init(module, positions)
    found = module.apply({}, jnp.asarray(positions))
    assert found.shape == (2, 4, width) and found.dtype == jnp.float32
    order = [*range(0, width, 2), *range(1, width, 2)]
    for (b, t), position in np.ndenumerate(positions):
        interleaved = [
            (math.cos if i % 2 else math.sin)(position / 10000 ** (2 * (i // 2) / width))
            for i in range(width)
        ]
        np.testing.assert_allclose(found[b, t], np.array(interleaved)[order], atol=1e-4)


@pytest.mark.parametrize("bias_init", [NORMAL, None])
def test_feed_forward_with_and_without_biases(bias_init: Any) -> None:
    x = normal(2, 3, 4)
    module = FeedForward(8, jnp.square, NORMAL, NORMAL, bias_init=bias_init)
    variables = init(module, x, context(2, 3))
    p = variables["params"]
    assert [len(part) for part in p.values()] == [1 + (bias_init is not None)] * 2
    inner = np.square(x @ p["inner"]["kernel"] + p["inner"].get("bias", 0))
    expected = inner @ p["outer"]["kernel"] + p["outer"].get("bias", 0)
    got = module.apply(variables, x, context(2, 3))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_dropout_inside_the_feed_forward_network_is_of_its_activations() -> None:
    """With the identity as the second map, the output is the activations with some at zero."""
    x = normal(8, 16, 4)
    plain = FeedForward(8, jnp.abs, NORMAL, NORMAL, bias_init=None)
    module = plain.clone(dropout_rate=0.25)
    kernel = init(plain, x, context(8, 16))["params"]["inner"]["kernel"]
    variables = {"params": {"inner": {"kernel": kernel}, "outer": {"kernel": jnp.eye(8, 4)}}}
    ctx, key = context(8, 16, train=True), {"dropout": jax.random.key(0)}
    whole = plain.apply(variables, x, ctx)
    np.testing.assert_array_equal(module.apply(variables, x, context(8, 16)), whole)
    dropped = np.asarray(module.apply(variables, x, ctx, rngs=key))
    kept = dropped != 0
    assert 0.68 < kept.mean() < 0.82  # 512 values, 0.75: 3.7 standard deviations
    np.testing.assert_allclose(dropped[kept], np.asarray(whole)[kept] / 0.75, rtol=1e-5)


def test_input_is_the_sum_of_three_embeddings() -> None:
    tokens, positions = Embed(11, 4, NORMAL), LearnedPositions(9, 4, NORMAL)
    module = InputEmbed(tokens, positions, 0.5, segments=Embed(2, 4, NORMAL, axes.SEGMENTS))
    batch = {"tokens": jnp.array([[3, 1, 10], [0, 5, 5]]), "second_starts": jnp.array([1, 3])}
    variables = init(module, batch, context(2, 3))
    tables = [variables["params"][k]["table"] for k in ("tokens", "positions", "segments")]
    out = module.apply(variables, batch, context(2, 3))
    segments = [[0, 1, 1], [0, 0, 0]]
    for b in range(2):
        for t in range(3):
            ids = batch["tokens"][b, t], t, segments[b][t]
            expected = sum(table[i] for table, i in zip(tables, ids, strict=True))
            np.testing.assert_allclose(out[b, t], expected, rtol=1e-6)
    variables["params"]["positions"]["table"] *= 0
    bare = module.clone(positions=None).apply(variables, batch, context(2, 3))
    np.testing.assert_array_equal(bare, module.apply(variables, batch, context(2, 3)))
    assert np.abs(bare - out).min() > 0


def test_norm_of_the_input_comes_before_its_dropout() -> None:
    tokens, positions = Embed(11, 64, NORMAL), LearnedPositions(9, 64, NORMAL)
    module = InputEmbed(tokens, positions, 0.5, norm=LayerNorm(1e-5))
    batch = {"tokens": jnp.array([[3, 1, 10]])}
    variables = init(module, batch, context(1, 3))
    clean = module.apply(variables, batch, context(1, 3))
    key = {"dropout": jax.random.key(0)}
    noisy = module.apply(variables, batch, context(1, 3, train=True), rngs=key)
    kept = np.asarray(noisy) != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(noisy[kept], 2 * clean[kept], rtol=1e-5)


def test_plain_head_and_tied_logits() -> None:
    hidden, table = normal(2, 3, 4), normal(5, 4, seed=1)
    features, bias = PlainHead().apply({}, hidden)
    assert bias is None
    np.testing.assert_allclose(tied_logits(features, table, None), hidden @ table.T, rtol=1e-5)


@pytest.mark.parametrize("width", [None, 7])
def test_transform_head(width: int | None) -> None:
    hidden, table = normal(2, 3, 4), normal(5, width or 4, seed=1)
    module = TransformHead(5, jnp.tanh, LayerNorm(1e-3), NORMAL, width=width)
    variables = init(module, hidden)
    p = variables["params"]
    x = np.tanh(hidden @ p["dense"]["kernel"] + p["dense"]["bias"])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    x = x * p["norm"]["scale"] + p["norm"]["bias"]
    features, bias = module.apply(variables, hidden)
    logits = tied_logits(features, table, bias)
    np.testing.assert_allclose(logits, x @ table.T + p["bias"], rtol=1e-4, atol=1e-5)


def test_first_token_head_reads_the_first_token() -> None:
    hidden = normal(2, 3, 4)
    module = FirstTokenHead(2, NORMAL)
    variables = init(module, hidden)
    p = variables["params"]
    pooled = np.tanh(hidden[:, 0] @ p["pooler"]["kernel"] + p["pooler"]["bias"])
    expected = pooled @ p["classifier"]["kernel"] + p["classifier"]["bias"]
    np.testing.assert_allclose(module.apply(variables, hidden), expected, rtol=1e-5)
    assert module.apply(variables, hidden.astype(jnp.bfloat16)).dtype == jnp.float32


def test_layers_are_weighted_by_a_softmax_and_scaled() -> None:
    vectors, module = normal(2, 12), ClassHead(5, None, 0.0, NORMAL, num_layers=3)
    ctx = context(2, 1)
    p = init(module, vectors, ctx)["params"]
    p |= {"layer_weights": np.log(np.float32([1, 3, 4])), "layer_scale": np.float32([2])}
    layers = vectors.reshape(2, 3, 4)
    mixed = 2 * (layers[:, 0] + 3 * layers[:, 1] + 4 * layers[:, 2]) / 8
    expected = mixed @ p["out"]["kernel"] + p["out"]["bias"]
    np.testing.assert_allclose(module.apply({"params": p}, vectors, ctx), expected, rtol=1e-5)
