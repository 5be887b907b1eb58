"""Planted sources: rates by hand, by brute force, and by sampling; a wrong order has another."""

import itertools
import math

import numpy as np
import pytest

from scalelab.worlds import markov
from scalelab.worlds.markov import Source


def coin(p: float) -> float:
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def test_order_1_by_hand() -> None:
    """0 stays with 3/4, 1 leaves with 1/2: two thirds of all tokens are 0."""
    source = Source(np.array([[3 / 4, 1 / 4], [1 / 2, 1 / 2]]))
    np.testing.assert_allclose(source.stationary, [2 / 3, 1 / 3], rtol=1e-12)
    assert source.bound(source.order) == pytest.approx(2 / 3 * coin(1 / 4) + 1 / 3 * math.log(2))
    assert source.bound(0) == pytest.approx(coin(1 / 3))


def nats_of(source: Source, tokens: np.ndarray) -> np.ndarray:
    """Minus the log-probability of each token [count, length], given the tokens before it."""
    found = np.zeros(tokens.shape)
    for place in range(tokens.shape[1]):
        seen = min(place, source.order)
        window = tuple(tokens[:, place - seen : place + 1].T)
        found[:, place] = -np.log(source.next_chances(seen)[window])
    return found


def exclusive_or(noise: float) -> Source:
    """The next of two tokens is the exclusive or of the last two, but for some noise."""
    table = np.full((2, 2, 2), noise)
    for a, b in itertools.product(range(2), repeat=2):
        table[a, b, a ^ b] = 1 - noise
    return Source(table)


def test_order_2_by_hand() -> None:
    """One neighbour tells little of an exclusive or, two all that can be told."""
    source = exclusive_or(0.1)
    assert source.bound(source.order) == pytest.approx(coin(0.1), rel=1e-12)
    assert source.bound(1) > 1.4 * source.bound(source.order)
    assert source.bound(1) <= source.bound(0)
    assert source.bound(2) == source.bound(5) == source.bound(source.order)


@pytest.mark.parametrize(("vocab_size", "order"), [(3, 1), (3, 2), (2, 3)])
def test_the_rate_is_that_of_all_texts(vocab_size: int, order: int) -> None:
    """The rate by brute force: all texts of n tokens, their entropy less that of n - 1."""
    source = markov.draw(vocab_size, order, seed=1, concentration=1.0)
    entropies = []
    for length in (order + 1, order + 2):
        texts = np.array(list(itertools.product(range(vocab_size), repeat=length)))
        nats = nats_of(source, texts).sum(-1)
        assert np.exp(-nats).sum() == pytest.approx(1, rel=1e-9)
        entropies.append((np.exp(-nats) * nats).sum())
    assert entropies[1] - entropies[0] == pytest.approx(source.bound(source.order), rel=1e-9)
    first = nats_of(source, texts)[:, 0]
    assert (np.exp(-nats) * first).sum() == pytest.approx(source.bound(0), rel=1e-9)


def test_texts_have_the_rate_and_no_other_order_has() -> None:
    source = markov.draw(6, 2, seed=0)
    tokens = source.sample(np.random.default_rng(0), 400, 40)
    nats = nats_of(source, tokens)
    means = nats[:, 2:].mean(1)
    error = means.std() / math.sqrt(len(means))
    assert abs(means.mean() - source.bound(source.order)) < 4 * error
    assert abs(means.mean() - source.bound(1)) > 20 * error
    assert nats[:, 0].mean() == pytest.approx(source.bound(0), rel=0.05)
    assert nats[:, 1].mean() == pytest.approx(source.bound(1), rel=0.05)


def test_the_seed_decides() -> None:
    first, same, other = (markov.draw(5, 2, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.transitions, same.transitions)
    assert (first.transitions != other.transitions).any()
    texts = [first.sample(np.random.default_rng(seed), 3, 9) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(texts[0], texts[1])
    assert (texts[0] != texts[2]).any()
