"""Permutation language modeling: exact conditionals give the same likelihood in every order."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab.nn.masks import Mask
from scalelab.objectives import Pass, Setting, plm
from scalelab.systems.xlnet import net as two_streams

V, T = 4, 3
JOINT = np.random.default_rng(0).dirichlet(np.ones(V**T)).reshape([V] * T)
PLM = plm.make(Setting(V, {"mask": V}, 0.15), plm.Options(predict_every=1))
PREPARE = jax.jit(PLM.prepare)


def given_all(tokens: np.ndarray, place: int, seen: np.ndarray) -> np.ndarray:
    """p(token at a place | the tokens that are seen) [V] of the joint."""
    fits = JOINT * np.all(
        [(x == t) | ~s for x, t, s in zip(np.indices(JOINT.shape), tokens, seen, strict=True)],
        axis=0,
    )
    found = fits.sum(axis=tuple(j for j in range(T) if j != place))
    return found / found.sum()


def given_one(tokens: np.ndarray, place: int, seen: np.ndarray) -> np.ndarray:
    """Of a marginal: p(token at a place | the first token that is seen)."""
    return given_all(tokens, place, seen & (np.cumsum(seen) == 1))


@dataclasses.dataclass
class Exact:
    """Two streams whose states are the log-probabilities by the tokens that the mask shows."""

    conditional: Callable[[np.ndarray, int, np.ndarray], np.ndarray]

    token_states = two_streams.TwoStreams.token_states

    def _read(self, batch: Any, order: Any, train: bool, step: Any) -> jax.Array:
        mask = Mask(batch["lengths"], ranks=order.ranks, query_ranks=order.limits)
        made = np.zeros((1, 2 * T, V))
        for slot, seen in enumerate(np.asarray(mask.dense(T, T))[0, 0]):
            made[0, T + slot] = self.conditional(batch["tokens"][0], order.places[0, slot], seen)
        return jnp.log(made + 1e-300)

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, None]:
        return hidden, jnp.eye(V), None


def spread(conditional: Any, tokens: np.ndarray) -> tuple[float, float]:
    """Largest distance of the loss of a text from -log p, and between two of its orders."""
    size = 60
    batch = {"tokens": np.tile(tokens, (size, 1)), "lengths": np.full(size, T)}
    made = PREPARE(batch | {"examples": np.arange(size)}, jax.random.key(0))
    losses = {}
    for b, order in enumerate(map(tuple, np.asarray(made["ranks"]))):
        if order not in losses:
            row = {name: np.asarray(x[b : b + 1]) for name, x in made.items()}
            found = PLM.losses(Exact(conditional), row, Pass(jax.random.key(0)))["loss"]
            losses[order] = float(found[0])
            assert found[1] == T
    assert len(losses) == 6
    wanted = -np.log(JOINT[tuple(tokens)])
    return max(abs(x - wanted) for x in losses.values()), np.ptp([*losses.values()])


def test_every_order_has_the_likelihood_of_the_joint(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.array([2, 0, 3])
    with tiny.in_double():
        assert max(spread(given_all, tokens)) < 1e-10
        # Conditionals of another joint for each order; no conditions; the token itself is seen.
        assert min(spread(given_one, tokens)) > 1e-2
        assert spread(lambda *given: given_all(*given[:2], given[2] & False), tokens)[0] > 1e-2
        order = two_streams.Order
        monkeypatch.setattr(two_streams, "Order", lambda r, at, limits: order(r, at, limits + 1))
        assert spread(given_all, tokens)[0] > 1e-2
