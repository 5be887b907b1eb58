"""The decoder-only models of T5's study: their masks, T5Stack, and their sizes beside T5's."""

import dataclasses
import functools
from typing import Any

import declared
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.nn import buckets
from scalelab.nn.stack import STATES
from scalelab.resources import flops
from scalelab.systems import prefix_lm

VOCAB, S, T = 97, 11, 7
SIZES = systems.Sizes(3, 24, 2, ffn_width=40, max_len=32, dropout_rate=0.0)
TERMS = tiny.terms(prefix_lm, "seq2seq", size=VOCAB)
MASKS = "prefix", "causal"
SOURCES, LENGTHS = np.array([S, 4, 1]), np.array([T, 3, 5])


def build(mask: str, **sizes: Any) -> tuple[Any, Any]:
    """A model, and parameters that are the same for both masks."""
    net = prefix_lm.build(dataclasses.replace(SIZES, **sizes), prefix_lm.Options(mask), VOCAB)
    params = tiny.draw(net, TERMS)
    is_scale = lambda path: path[-1].key == "scale"  # noqa: E731
    return net, jax.tree_util.tree_map_with_path(lambda path, x: x + is_scale(path), params)


def make_batch(sources: np.ndarray = SOURCES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    source, tokens = (rng.integers(70, VOCAB, (3, n)) for n in (S, T))
    given = {"source": source, "source_lengths": sources, "tokens": tokens, "lengths": LENGTHS}
    return {n: np.asarray(x, np.int32) for n, x in given.items()} | {"examples": np.arange(3)}


def run(net: Any, params: Any, batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """The states of the target, and those of all tokens after each layer [L, B, S + T, D]."""
    return jax.device_get(compiled(net, params, batch))


@functools.partial(jax.jit, static_argnums=0)
def compiled(net: Any, params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
    (hidden, _), found = net.apply({"params": params}, batch, train=False, mutable=[STATES])
    return hidden, *jax.tree.leaves(found)


def seen(mask: str, sources: np.ndarray = SOURCES) -> np.ndarray:
    """Which places each place sees [B, S + T, S + T]: j <= i, or j in the source."""
    i, j = np.indices((S + T, S + T))
    prefix = (sources if mask == "prefix" else 0 * sources)[:, None, None]
    return ((j <= i) | (j < prefix)) & (j < (sources + LENGTHS)[:, None, None])


@pytest.mark.parametrize("mask", MASKS)
def test_a_token_depends_on_what_its_mask_shows(mask: str) -> None:
    """In one layer another token moves exactly the states that see it; no target moves a source."""
    (net, params), batch = build(mask, num_layers=1), make_batch()
    params = jax.tree.map(lambda x: 0.3 * x, params)  # no weight of the softmax rounds to 0
    before, moved = run(net, params, batch)[1][0], []
    for j in range(S + T):
        changed = {name: batch[name].copy() for name in ("source", "tokens")}
        for row, start in enumerate(SOURCES):
            name, place = ("source", j) if j < start else ("tokens", j - start)
            if place < changed[name].shape[1]:
                changed[name][row, place] -= 70
        moved.append((run(net, params, batch | changed)[1][0] != before).any(axis=-1))
    found, real = np.stack(moved, axis=-1), np.arange(S + T) < (SOURCES + LENGTHS)[:, None]
    np.testing.assert_array_equal(found[real], seen(mask)[real])


def t5_stack(mask: str, params: Any) -> Any:
    """T5Stack with our parameters: as a decoder without a source, or as an encoder."""
    import torch
    from transformers.models.t5 import configuration_t5, modeling_t5

    config = configuration_t5.T5Config(
        vocab_size=VOCAB, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3, use_cache=False,
        is_decoder=mask == "causal", is_encoder_decoder=False,
    )  # fmt: skip
    stack = modeling_t5.T5Stack(config).double().eval()
    own = params["decoder"]["stack"]
    named = {
        "embed_tokens.weight": params["decoder"]["embed"]["tokens"]["table"],
        "final_layer_norm.weight": own["norm"]["scale"],
        "block.0.layer.0.SelfAttention.relative_attention_bias.weight": own["buckets"],
    }
    for n in range(2):
        layer = jax.tree.map(lambda x, n=n: x[n], own["stack"]["layer"])
        first, last = (f"block.{n}.layer.{k}" for k in (0, 2 if mask == "causal" else 1))
        named[f"{first}.layer_norm.weight"] = layer["attention_norm"]["scale"]
        named[f"{last}.layer_norm.weight"] = layer["ffn_norm"]["scale"]
        for ours, its in zip(("query", "key", "value", "out"), "qkvo", strict=True):
            kernel = layer["attention"][ours]["kernel"].reshape(24, 24)
            named[f"{first}.SelfAttention.{its}.weight"] = kernel.T
        for ours, its in (("inner", "wi"), ("outer", "wo")):
            named[f"{last}.DenseReluDense.{its}.weight"] = layer["ffn"][ours]["kernel"].T
    given = {name: torch.tensor(np.asarray(x, np.float64)) for name, x in named.items()}
    missing, extra = stack.load_state_dict(given, strict=False)
    assert not extra and all(".layer.1." in name for name in missing)  # unused cross-attention
    return stack


@pytest.mark.ci
@pytest.mark.parity
@pytest.mark.parametrize("mask", MASKS)
def test_it_is_t5stack_with_an_explicit_mask(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    batch, params = make_batch(), build(mask)[1]
    rows = np.zeros((3, S + T), np.int64)
    for row, (n, m) in enumerate(zip(SOURCES, LENGTHS, strict=True)):
        rows[row, : n + m] = [*batch["source"][row, :n], *batch["tokens"][row, :m]]
    least = torch.finfo(torch.float64).min
    shown = torch.tensor(np.where(seen(mask), 0.0, least))[:, None]
    with torch.no_grad(), declared.get("t5").peer.exact():
        states = t5_stack(mask, params)(input_ids=torch.tensor(rows), attention_mask=shown)
    places = SOURCES[:, None] + np.arange(T)
    expected = states.last_hidden_state.numpy()[np.arange(3)[:, None], places]

    def error(other: str = mask) -> float:
        with tiny.in_double():
            exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
            found = run(build(other, dtype=jnp.float32)[0], exact, batch)[0]
        return float(np.abs(found - expected)[np.arange(T) < LENGTHS[:, None]].max())

    assert error() < 1e-10
    assert error(*{*MASKS} - {mask}) > 0.1
    one_way = buckets.bucket
    monkeypatch.setattr(buckets, "bucket", lambda distance, causal: one_way(distance, not causal))
    assert error() > 0.1


def test_without_a_source_a_prefix_is_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same buckets; with one token of a source, too, which has no token after it."""
    own, batch = buckets.bucket, make_batch(np.array([0, 1, 0]))
    monkeypatch.setattr(buckets, "bucket", lambda distance, _: own(distance, True))
    (prefix, params), (causal, _) = map(build, MASKS)
    expected = run(causal, params, batch)[0]
    np.testing.assert_array_equal(run(prefix, params, batch)[0], expected)
    more = make_batch(np.array([2, 2, 2]))
    assert np.abs(run(prefix, params, more)[0] - run(causal, params, more)[0]).min() > 0


@pytest.mark.parametrize("mask", MASKS)
def test_steps_behind_a_read_source_are_those_of_the_whole_pass(mask: str) -> None:
    """The source is read once; padding of the source, and how far it reaches, moves nothing."""
    net, params = build(mask)
    batch = make_batch()
    whole = run(net, params, batch)[0]
    batch["source"] = np.pad(batch["source"], ((0, 0), (0, 5)), constant_values=71)
    np.testing.assert_allclose(run(net, params, batch)[0], whole, rtol=1e-4, atol=1e-4)
    cache = net.apply({"params": params}, batch, T, method="encode")
    read = jax.jit(
        lambda piece, cache: net.apply({"params": params}, piece, train=False, cache=cache)
    )
    assert {x.shape[3] for x in jax.tree.leaves(cache.layers)} == {S + 5 + T}
    for t in range(T):
        piece = {"tokens": batch["tokens"][:, t : t + 1], "lengths": np.ones(3, np.int32)}
        piece |= {"examples": batch["examples"]}
        found, cache = read(piece, cache)
        real = t < LENGTHS
        np.testing.assert_allclose(found[real, 0], whole[real, t], rtol=1e-4, atol=1e-4)


def test_parameters_and_flops_beside_t5() -> None:
    """Raffel et al. 2020, 3.2.2: an encoder-decoder of L + L layers has twice the parameters of a
    language model of L layers, and about its FLOPs; sharing halves the parameters alone.

    Cross-attention, which the paper leaves out of this count, is a sixth of an encoder-decoder.
    """
    sizes = dict(model__width=64, model__max_len=64, short__max_len=64, tokenizer__vocab_size=97)
    sizes |= dict(data__format="denoising", format_options__style="bert_style")

    def count(system: str, **fields: Any) -> tuple[int, float]:
        made = tiny.parts(system, **sizes, **fields)
        params = objectives.abstract_variables(made.net, made.terms, max_len=64)["params"]
        (cost,) = flops.count_phases(params, made.net, made.terms, made.config)
        kernels = [x for path, x in jax.tree_util.tree_leaves_with_path(params)
                   if path[-1].key == "kernel"]  # fmt: skip
        n_model = systems.n_model(made.module, made.config.model, made.config.system_options)
        assert sum(x.size for x in kernels) == n_model
        return n_model, cost.body

    lm = count("prefix_lm")
    both, shared = count("t5"), count("t5", system_options__layers="shared")
    half = count("t5", model__num_layers=1), count("prefix_lm", model__num_layers=2)
    cross = 4 * 64**2 * tiny.SHAPE[2]
    assert both[0] == 2 * lm[0] + cross and shared[0] == lm[0] + cross
    assert both[1] == shared[1] == pytest.approx(lm[1] * 7 / 6, rel=0.01)
    assert half[0][0] == half[1][0] * 7 / 6 and 2 * half[0][1] == pytest.approx(half[1][1] * 7 / 6)
