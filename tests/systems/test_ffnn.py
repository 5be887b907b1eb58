"""The feed-forward model: a loop and torch, its window, decoding, and the bounds of a source."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.nn.heads import token_logits
from scalelab.systems import ffnn
from scalelab.worlds import markov

B, T, D = 3, 7, 4
ROWS = np.random.default_rng(0).integers(1, tiny.VOCAB, (B, T))
CASES = [  # K, kind, direct connections, layers
    (1, "tanh", False, 1), (3, "tanh", True, 2), (9, "tanh", False, 1),
    (3, "log_bilinear", False, 1),
]  # fmt: skip
TERMS = tiny.terms(ffnn, "clm")


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(
    num_taps: int, kind: str, direct: bool, layers: int, size: int = tiny.VOCAB, width: int = D
) -> Any:
    sizes = systems.Sizes(1, width, layers, 4 * width, 16, 0.0, dtype=jnp.float64)
    return ffnn.build(sizes, ffnn.Options(num_taps, kind, direct), size)


def batch_of(rows: np.ndarray, lengths: Any = None) -> dict[str, Any]:
    size, length = rows.shape
    lengths = np.full(size, length) if lengths is None else lengths
    return {"tokens": rows, "lengths": lengths, "examples": np.arange(size)}


def scores_of(net: Any, params: Any, rows: np.ndarray = ROWS) -> jax.Array:
    def scores(model: Any) -> jax.Array:
        return token_logits(model, model(batch_of(rows), train=False)[0])

    return jax.jit(lambda params: net.apply({"params": params}, method=scores))(params)


def by_hand(lib: Any, params: Any, kind: str, num_taps: int, shift: int = 0) -> Any:
    """Scores [B, T, V] by the papers' equations, place by place; `lib` is numpy or torch."""
    table, stack = params["embed"]["tokens"]["table"], params["stack"]
    window = stack["window"]
    scores = []
    for row in ROWS:
        for t in range(T):
            z, direct = window["bias"], 0
            for k in range(num_taps):
                if t - k - shift >= 0:
                    x, part = table[int(row[t - k - shift])], slice(k * D, (k + 1) * D)
                    z = z + x @ window["kernel"][part]
                    if "added" in stack:
                        direct = direct + x @ stack["added"]["kernel"][part]
            if kind == "tanh":
                dense = stack["stack"]["layer"]["dense"]
                for n in range(len(dense["kernel"])):
                    z = lib.tanh(z) @ dense["kernel"][n] + dense["bias"][n]
            scores.append(table @ (z + direct) + params["token_head"]["bias"])
    return lib.stack(scores).reshape(B, T, tiny.VOCAB)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_equations(case: Any) -> None:
    net = make(*case)
    params = tiny.draw(net, TERMS)
    ours, given = scores_of(net, params), jax.tree.map(np.asarray, params)
    num_taps, kind, *_ = case
    np.testing.assert_allclose(ours, by_hand(np, given, kind, num_taps), atol=1e-10)
    assert np.abs(ours - by_hand(np, given, kind, num_taps, shift=1)).max() > 0.1


@pytest.mark.parity
@pytest.mark.parametrize("case", CASES)
def test_the_gradients_are_torchs(case: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    net = make(*case)
    params = tiny.draw(net, TERMS)
    num_taps, kind, *_ = case
    weights = np.random.default_rng(1).normal(size=(B, T, tiny.VOCAB))
    ours = jax.jit(jax.grad(lambda params: (scores_of(net, params) ** 2 * weights).sum()))(params)
    for shift in (0, 1):
        theirs = jax.tree.map(
            lambda x: torch.tensor(np.asarray(x), dtype=torch.float64, requires_grad=True), params
        )
        scores = by_hand(torch, theirs, kind, num_taps, shift)
        (scores**2 * torch.tensor(weights)).sum().backward()
        wanted = jax.tree.map(lambda x: x.grad.numpy(), theirs)
        apart = jax.tree.map(lambda a, b: np.abs(a - b).max() / np.abs(b).max(), ours, wanted)
        if shift:
            assert apart["stack"]["window"]["kernel"] > 1e-3
        else:
            assert max(jax.tree.leaves(apart)) < 1e-10


@pytest.mark.parametrize("case", CASES)
def test_a_state_reads_the_window_and_nothing_else(case: Any) -> None:
    net = make(*case)
    seen = tiny.seen_places(net, tiny.draw(net, TERMS), batch_of(ROWS))
    places = np.arange(T)
    back = places[:, None] - places
    np.testing.assert_array_equal(seen, np.tile((back >= 0) & (back < case[0]), (B, 1, 1)))


@pytest.mark.parametrize("case", CASES)
def test_decoding_from_the_last_vectors_is_the_whole_pass(case: Any) -> None:
    net = make(*case)
    params = tiny.draw(net, TERMS)
    step = jax.jit(
        lambda batch, cache: net.apply({"params": params}, batch, train=False, cache=cache)
    )
    whole, _ = step(batch_of(ROWS), None)
    lengths, rows = np.array([3, 1, 2]), np.arange(B)
    hidden, cache = step(batch_of(ROWS[:, :3], lengths), net.init_cache(B, 4))
    assert cache.layers.shape == (1, B, case[0] - 1, D)
    np.testing.assert_allclose(hidden[rows, lengths - 1], whole[rows, lengths - 1], atol=1e-12)
    for k in range(T - 3):
        hidden, cache = step(batch_of(ROWS[rows, lengths + k][:, None]), cache)
        np.testing.assert_allclose(hidden[:, 0], whole[rows, lengths + k], atol=1e-12)


@pytest.mark.parametrize(("kind", "seen"), [("tanh", 2), ("tanh", 1), ("log_bilinear", 1)])
def test_a_source_of_order_two_bounds_the_loss_by_the_window(kind: str, seen: int) -> None:
    """Trained on the exact distribution of three tokens, the loss reaches the bound from above."""
    source = markov.draw(5, 2, seed=0)
    chances = source.stationary[..., None] * source.transitions
    rows = np.stack(np.meshgrid(*[np.arange(5)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    net, tx = make(seen, kind, False, 1, size=5, width=32), optax.adam(0.01)

    def loss(params: Any) -> jax.Array:
        logs = jax.nn.log_softmax(scores_of(net, params, rows)[:, 1])
        return -(chances.ravel() * logs[np.arange(len(rows)), rows[:, 2]]).sum()

    @jax.jit
    def train(params: Any) -> jax.Array:
        def step(now: Any, _: None) -> Any:
            value, gradient = jax.value_and_grad(loss)(now[0])
            changes, state = tx.update(gradient, now[1])
            return (optax.apply_updates(now[0], changes), state), value

        return jax.lax.scan(step, (params, tx.init(params)), None, length=600)[1]

    terms = objectives.make({"clm": 1.0}, objectives.Setting(5, {}, 0.15))
    losses = np.asarray(train(tiny.draw(net, terms)))
    bound = source.bound(seen)
    assert source.bound(2) < source.bound(1) - 0.1
    assert losses.min() > bound - 1e-9
    assert losses[-1] < bound + 0.02


@pytest.mark.parametrize(("fields", "message"), [
    (dict(system_options__num_taps=0), "system_options.num_taps = 0"),
    (dict(system_options__num_taps=99), "system_options.num_taps = 99 exceeds the model's pos"),
    (dict(system_options__kind="lbl"), "system_options.kind"),
    (dict(system_options__kind="log_bilinear"), "num_layers = 3, expected 1"),
    (dict(system_options__kind="log_bilinear", system_options__direct=True), "direct"),
])  # fmt: skip
def test_options_without_a_meaning_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.parts("ffnn", **fields)
