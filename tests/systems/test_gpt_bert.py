"""GPT-BERT's two kinds of examples against CLM, loops and each other."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.nn.heads import token_logits
from scalelab.systems import gpt_bert

T, V = tiny.LENGTH, tiny.VOCAB
SIZES = systems.Sizes(2, 12, 2, 20, T, dropout_rate=0.0)


terms = functools.partial(tiny.terms, gpt_bert, rate=0.3)


def prepared(rate: float, batch: Any = None) -> Any:
    (term,) = terms("mntp", masked_rate=rate)
    return jax.jit(term.objective.prepare)(batch or tiny.batch(gpt_bert, 0), jax.random.key(0))


@functools.cache
def drawn() -> tuple[Any, Any]:
    """The model, and parameters far from 0."""
    net = gpt_bert.build(SIZES, None, V)
    return net, tiny.draw(net, terms("mntp"))


@functools.partial(jax.jit, static_argnums=0)
def run(name: str, batch: Any) -> Any:
    """Sum and weight of the loss, and the gradients of the sum."""
    net, params = drawn()

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        ctx = objectives.Pass(jax.random.key(0))
        return objectives.forward(net, params, batch, terms(name), ctx)[0][name]["loss"]

    return jax.value_and_grad(loss, has_aux=True)(params)


def test_without_masked_examples_it_is_clm() -> None:
    assert [terms("mntp", masked_rate=r)[0].objective.shifts_masks for r in (0.0, 0.1)] == [
        False,
        True,
    ]
    expected, found = jax.device_get(
        (run("clm", tiny.batch(gpt_bert, 0)), run("mntp", prepared(0.0)))
    )
    largest = max(np.abs(x).max() for x in jax.tree.leaves(expected[1]))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * largest)
    masked = run("mntp", prepared(1.0))
    assert abs(masked[0][0] - expected[0][0]) > 0.01 * expected[0][0]


@pytest.mark.parametrize(("shift", "fits"), [(1, True), (0, False)])
def test_a_masked_token_is_predicted_one_place_before_it(shift: int, fits: bool) -> None:
    """By loops over BERT's masks; a prediction at the mask itself is another loss."""
    before = tiny.batch(gpt_bert, 0)
    prepare = jax.jit(terms("mntp", masked_rate=1.0)[0].objective.masks.prepare)
    masked = jax.device_get(prepare(before, jax.random.key(0)))
    net, params = drawn()
    everything = np.broadcast_to(np.array([0, T], np.int32), (*before["tokens"].shape, 2))

    @jax.jit
    def logits(batch: Any) -> jax.Array:
        hidden, _ = net.apply({"params": params}, batch, train=False)
        return net.apply({"params": params}, hidden, method=token_logits)

    scores = np.asarray(logits(masked | {"visible": everything}), np.float64)
    log_chances = np.log(np.exp(scores) / np.exp(scores).sum(-1, keepdims=True))
    loss = weight = 0.0
    for b, n in enumerate(before["lengths"]):
        used = np.asarray(masked["mlm_weights"][b]) > 0
        places = [k for k in np.asarray(masked["mlm_positions"][b])[used] if k > 0]
        nats = [-log_chances[b, k - shift, before["tokens"][b, k]] for k in places]
        loss, weight = loss + (n - 1) * np.mean(nats), weight + n - 1
    (found, count), _ = run("mntp", prepared(1.0))
    assert count == weight
    assert (found == pytest.approx(loss, rel=1e-5)) == fits


def test_who_sees_whom() -> None:
    """A state depends on all of a masked example, and on the left of a causal one."""
    original = tiny.batch(gpt_bert, 0)
    for rate, ahead in ((1.0, True), (0.0, False)):
        batch = jax.device_get(prepared(rate, original))
        assert (batch["tokens"] != original["tokens"]).any() == ahead
        seen = tiny.seen_places(*drawn(), batch)
        for b, n in enumerate(batch["lengths"]):
            left = np.tri(n, T, dtype=bool)
            expected = np.arange(T) < n if ahead else left
            np.testing.assert_array_equal(seen[b, :n], np.broadcast_to(expected, (n, T)))


def test_examples_draw_their_kind() -> None:
    """The share is binomial; a draw belongs to step and example; each counts its tokens less 1."""
    prepare = jax.jit(terms("mntp", masked_rate=0.3)[0].objective.prepare)
    batch = {"tokens": np.full((2000, 8), 9, np.int32), "lengths": np.full(2000, 8, np.int32)}
    batch |= {"examples": np.arange(2000, dtype=np.int32)}
    made = prepare(batch, jax.random.key(0))
    is_masked = np.asarray(made["visible"][:, 0, 1] == 8)
    assert abs(is_masked.mean() - 0.3) < 4 * (0.3 * 0.7 / 2000) ** 0.5
    np.testing.assert_allclose(made["mntp_weights"].sum(1), 7, rtol=1e-6)
    again = prepare({k: x[::-1] for k, x in batch.items()}, jax.random.key(0))
    for name in ("tokens", "visible", "mntp_weights"):
        np.testing.assert_array_equal(again[name][::-1], made[name])
    other = np.asarray(prepare(batch, jax.random.key(1))["visible"][:, 0, 1] == 8)
    assert (other != is_masked).mean() > 0.3
