"""Gibbs sampling on a joint distribution of two tokens, against its exact chain."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from scalelab.decode import gibbs
from scalelab.decode.choose import Rules

V, MASK, FIRST = 3, 3, 1  # texts are [7, x, y, 8]
JOINT = np.random.default_rng(1).dirichlet(np.full(V * V, 0.7)).reshape(V, V)
COPY = 2.0  # what a model that sees the token itself adds to its score
NUM = 20_000


def score(joint: Any, tokens: Any, lengths: Any, places: Any) -> jax.Array:
    """A model with the joint's conditionals, which repeats a token that is not masked."""
    del lengths
    own, other = tokens[jnp.arange(len(tokens)), places], tokens[:, 1:3].sum(1)
    given = jnp.log(
        jnp.where((places == FIRST)[:, None], joint[:, other - own].T, joint[other - own])
    )
    return given + COPY * jax.nn.one_hot(own, V)  # a mask adds nothing


def kernel(place: int, copy: float = 0.0) -> np.ndarray:
    """The transition matrix [V * V, V * V] of drawing one of the tokens."""
    made = np.zeros((V, V, V, V))
    for x, y, new in itertools.product(range(V), repeat=3):
        chances = JOINT[:, y] if place == 0 else JOINT[x]
        chances = chances * np.exp(copy * (np.arange(V) == (x, y)[place]))
        after = (new, y) if place == 0 else (x, new)
        made[(x, y, *after)] = chances[new] / chances.sum()
    return made.reshape(V * V, V * V)


def sweep(order: str, copy: float = 0.0) -> np.ndarray:
    a, b = kernel(0, copy), kernel(1, copy)
    return a @ b if order == "left_to_right" else (a @ b + b @ a) / 2


def stationary(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eig(matrix.T)
    found = np.real(vectors[:, np.argmax(np.real(values))])
    return found / found.sum()


def drawn(order: str, sweeps: int, first: tuple[int, int]) -> np.ndarray:
    """How often each pair is the end of a chain."""
    tokens = jnp.broadcast_to(jnp.array([7, *first, 8]), (NUM, 4))
    lengths, starts = jnp.full(NUM, 4), jnp.full(NUM, FIRST)
    keys = jax.random.split(jax.random.key(0), NUM)
    sizes: Any = dict(count=2, sweeps=sweeps, order=order, rules=Rules(temperature=1.0), mask=MASK)
    found = gibbs.sample(score, jnp.array(JOINT), tokens, lengths, starts, keys, **sizes)
    assert (found[:, [0, 3]] == jnp.array([7, 8])).all()
    return np.bincount(np.asarray(found[:, 1] * V + found[:, 2]), minlength=V * V)


@pytest.mark.parametrize("order", gibbs.ORDERS)
def test_the_chain_has_its_exact_law_and_tends_to_the_joint(order: str) -> None:
    matrix = sweep(order)
    np.testing.assert_allclose(stationary(matrix), JOINT.ravel(), atol=1e-12)
    laws = {1: matrix[0], 12: JOINT.ravel()}
    for sweeps, law in laws.items():
        counts = drawn(order, sweeps, (0, 0))
        assert stats.chisquare(counts, NUM * law).pvalue > 1e-3
        # Not of a chain that draws a token without masking it, nor of the other order.
        wrong = sweep(order, COPY)
        wrong = wrong[0] if sweeps == 1 else stationary(wrong)
        assert stats.chisquare(counts, NUM * wrong).pvalue < 1e-12
    other = sweep(*set(gibbs.ORDERS) - {order})
    assert stats.chisquare(drawn(order, 1, (0, 0)), NUM * other[0]).pvalue < 1e-12
