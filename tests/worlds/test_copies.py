"""Lagged copies: both bounds by brute force and by sampling; what a memory must reach."""

import itertools
import math

import numpy as np
import pytest

from scalelab.worlds.copies import Copies


def nats_of(source: Copies, tokens: np.ndarray) -> np.ndarray:
    """Minus the log-probability of each word under the rule: partners cost nothing."""
    rate, nats = source.percent_copied / 100, np.zeros(tokens.shape)
    for place in range(0, tokens.shape[1], 2):
        same = tokens[:, place] == tokens[:, place - source.lag] if place >= source.lag else False
        uniform = (1 - rate * (place >= source.lag)) / source.num_letters
        nats[:, place] = -np.log(np.where(same, rate + uniform, uniform))
    return nats


def entropy(texts: np.ndarray, chances: np.ndarray) -> float:
    """Nats of the texts' distribution, of which some texts may be equal."""
    _, places = np.unique(texts, axis=0, return_inverse=True)
    merged = np.bincount(places.ravel(), chances)
    return float(-(merged * np.log(merged)).sum())


@pytest.mark.parametrize("length", [7, 8])
def test_the_bounds_are_those_of_all_texts(length: int) -> None:
    """All texts of two letters, with lag 4: their entropy, and that of a word after few words."""
    source = Copies(num_letters=2, lag=4, percent_copied=70)
    letters = np.array([*itertools.product(range(2), repeat=(length + 1) // 2)])
    texts = np.stack([letters, 2 + letters], -1).reshape(len(letters), -1)[:, :length]
    nats = nats_of(source, texts).sum(-1)
    chances = np.exp(-nats)
    assert chances.sum() == pytest.approx(1, rel=1e-12)
    assert chances @ nats / length == pytest.approx(source.bound(length, length), rel=1e-12)
    for seen in range(1, source.lag + 2):
        parts = ((texts[:, max(0, t - seen) : t + 1], texts[:, max(0, t - seen) : t])
                 for t in range(4, length))  # fmt: skip
        after = sum(entropy(with_it, chances) - entropy(only, chances) for with_it, only in parts)
        wanted = length * source.bound(seen, length) - 2 * math.log(2)
        assert after == pytest.approx(wanted, rel=1e-9)


def test_texts_have_the_rate_at_this_lag_and_at_no_other() -> None:
    source, length = Copies(num_letters=8, lag=10, percent_copied=90), 61
    tokens = source.sample(np.random.default_rng(0), 400, length)
    np.testing.assert_array_equal(tokens[:, 1::2], 8 + tokens[:, :-1:2])
    means = nats_of(source, tokens).mean(1)
    error = means.std() / math.sqrt(len(means))
    assert abs(means.mean() - source.facts(length)["nats_per_word"]) < 4 * error
    without = source.facts(length)["nats_per_word_without_memory"]
    assert without == pytest.approx(31 / 61 * math.log(8), rel=1e-12)
    for lag in (8, 12):
        other = Copies(num_letters=8, lag=lag, percent_copied=90)
        assert nats_of(other, tokens).mean() > without
    letters = np.bincount(tokens[:, ::2].ravel(), minlength=8) / tokens[:, ::2].size
    np.testing.assert_allclose(letters, 1 / 8, atol=0.02)


def test_extremes() -> None:
    always, never = (Copies(num_letters=4, lag=2, percent_copied=p) for p in (100, 0))
    assert always.copied == 0 and never.copied == pytest.approx(math.log(4))
    tokens = always.sample(np.random.default_rng(0), 5, 9)
    assert (tokens == np.tile(tokens[:, :2], 5)[:, :9]).all()


def test_the_generator_decides() -> None:
    source = Copies(num_letters=4, lag=4, percent_copied=50)
    texts = [source.sample(np.random.default_rng(seed), 3, 9) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(texts[0], texts[1])
    assert (texts[0] != texts[2]).any()
