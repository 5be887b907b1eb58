"""ELMo: torch's LSTMs in each direction, one side for each stream, the loss by hand."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.eval import token_scores
from scalelab.systems import elmo

B, T, D, L = 3, 6, 4, 2
LENGTHS = np.array([T, 4, 1])
ROWS = np.random.default_rng(0).integers(2, tiny.VOCAB, (B, T))
BATCH = {"tokens": ROWS, "lengths": LENGTHS, "examples": np.arange(B)}
TERMS = tiny.terms(elmo, "bilm")
IS_TEXT = np.arange(T) < LENGTHS[:, None]


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make() -> tuple[Any, Any]:
    net = elmo.build(systems.Sizes(1, D, L, 4 * D, T, 0.0, dtype=jnp.float64), None, tiny.VOCAB)
    return net, tiny.draw(net, TERMS)


def read(net: Any, params: Any, batch: Any = BATCH) -> jax.Array:
    return jax.jit(lambda p, b: net.apply({"params": p}, b, train=False)[0])(params, batch)


def test_each_stream_sees_one_side() -> None:
    seen = tiny.seen_places(*make(), BATCH | {"lengths": np.full(B, T)})
    assert seen.any(axis=0).all()
    net, params = make()
    before = read(net, params)
    for place in range(T):
        changed = ROWS.copy()
        changed[:, place] = (changed[:, place] + 1) % tiny.VOCAB
        moved = np.asarray(read(net, params, BATCH | {"tokens": changed}) != before)
        forward, backward = moved[0, :, :D].any(axis=-1), moved[0, :, D:].any(axis=-1)
        assert forward.tolist() == [i >= place for i in range(T)]
        assert backward.tolist() == [i <= place for i in range(T)]


def test_the_loss_is_the_mean_over_both_directions() -> None:
    net, params = make()
    hidden, table = np.asarray(read(net, params)), params["embed"]["tokens"]["table"]
    losses = []
    for b, i in np.argwhere(IS_TEXT):
        for side, other in ((hidden[b, i, :D], i + 1), (hidden[b, i, D:], i - 1)):
            if 0 <= other < LENGTHS[b]:
                scores = np.asarray(table) @ side
                losses.append(np.log(np.exp(scores).sum()) - scores[ROWS[b, other]])
    ctx = objectives.Pass(jax.random.key(0))
    found, _ = objectives.forward(net, params, BATCH, TERMS, ctx)
    total, weight = found["bilm"]["loss"]
    assert weight == len(losses) == 2 * (LENGTHS - 1).sum()
    np.testing.assert_allclose(total / weight, np.mean(losses), rtol=1e-6)


def test_evaluations_read_the_forward_stream() -> None:
    net, params = make()
    table = params["embed"]["tokens"]["table"]
    forward, backward = (side @ table.T for side in jnp.split(read(net, params), 2, axis=-1))
    places = np.broadcast_to(np.arange(T), (B, T))
    found = token_scores.log_chances(net, params, BATCH, places)[IS_TEXT]
    np.testing.assert_allclose(found, jax.nn.log_softmax(forward)[IS_TEXT], atol=1e-10)
    assert np.abs(found - jax.nn.log_softmax(backward)[IS_TEXT]).max() > 0.1


def torchs(params: Any, residual: bool) -> tuple[np.ndarray, np.ndarray]:
    """States of two torch.nn.LSTM a layer, one on turned rows; and a gradient."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    table = torch.tensor(np.asarray(params["embed"]["tokens"]["table"]) * D**0.5)
    streams, kernels = [], []
    for side in ("forward", "backward"):
        own = params["stack"]["stack"]["layer"][side]
        rows = [table[torch.tensor(row[:n])] for row, n in zip(ROWS, LENGTHS, strict=True)]
        x = [row.flip(0) if side == "backward" else row for row in rows]
        for n in range(L):
            cell = torch.nn.LSTM(D, D, batch_first=True, dtype=torch.float64)
            for name, value in (
                ("weight_ih", own["input"]["kernel"][n].T), ("bias_ih", own["input"]["bias"][n]),
                ("weight_hh", own["recurrent_kernel"][n].T), ("bias_hh", np.zeros(4 * D)),
            ):  # fmt: skip
                getattr(cell, f"{name}_l0").data.copy_(torch.tensor(np.asarray(value)))
            kernels.append(cell.weight_hh_l0)
            above = [cell(row[None])[0][0] for row in x]
            x = [a + b * (residual and n > 0) for a, b in zip(above, x, strict=True)]
        streams.append([row.flip(0) if side == "backward" else row for row in x])
    states = torch.cat([torch.cat(pair, dim=-1) for pair in zip(*streams, strict=True)])
    (states**2 * torch.arange(2 * D)).sum().backward()
    gradients = torch.stack([kernel.grad for kernel in kernels])
    return states.detach().numpy(), gradients.numpy()


@pytest.mark.parity
def test_states_and_gradients_are_torchs() -> None:
    net, params = make()
    states, gradients = torchs(params, residual=True)

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        hidden = read(net, params)[IS_TEXT]
        return (hidden**2 * jnp.arange(2 * D)).sum(), hidden

    found, hidden = jax.grad(loss, has_aux=True)(params)
    layer = found["stack"]["stack"]["layer"]
    ours = jnp.concatenate([layer[s]["recurrent_kernel"] for s in ("forward", "backward")])
    np.testing.assert_allclose(hidden, states, atol=1e-10)
    np.testing.assert_allclose(ours.swapaxes(1, 2), gradients, rtol=1e-9, atol=1e-9)
    assert np.abs(torchs(params, residual=False)[0] - hidden).max() > 1e-3
