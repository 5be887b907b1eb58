"""Calibration by hand and of planted models; intervals over documents against scipy's bootstrap."""

import math

import numpy as np
import pytest
from scipy import stats

from scalelab.eval import calibration


def test_the_error_by_hand() -> None:
    """Probabilities .5, .5 | .9, .9 | 1: one right of two, two of two, and one wrong."""
    chances = np.array([0.5, np.nan, 0.9, 0.9, 0.5, 1.0])
    right = np.array([True, True, True, True, False, False])
    bins = calibration.bin_guesses(-np.log(chances), right, np.array([0, 3, 3, 6]))
    assert bins.shape == (3, calibration.NUM_BINS, 3)
    assert bins.sum(axis=1)[:, 0].tolist() == [2, 0, 3]  # guesses of the three documents
    made = calibration.reliability(bins.sum(axis=0))
    np.testing.assert_allclose(made["right"], [0.5, 1.0, 0.0])
    np.testing.assert_allclose(made["probability"], [0.5, 0.9, 1.0])
    np.testing.assert_allclose(made["from"], np.array([7, 13, 14]) / 15)
    expected = (2 * 0.0 + 2 * 0.1 + 1 * 1.0) / 5
    assert calibration.calibration_error(bins.sum(axis=0)) == pytest.approx(expected)


@pytest.mark.parametrize("shift", [0.0, 0.2])
def test_a_planted_net(shift: float) -> None:
    """It is right less often than it says, by `shift`."""
    rng = np.random.default_rng(0)
    chances = rng.uniform(0.3, 1.0, 60_000)
    right = rng.random(60_000) < chances - shift
    bins = calibration.bin_guesses(-np.log(chances), right, np.arange(0, 60_001, 100))
    made = calibration.summarize(bins)
    assert made["calibration_error"] == pytest.approx(shift, abs=0.02)
    assert made["accuracy"] == pytest.approx(0.65 - shift, abs=0.01)
    low, high = made["calibration_error_interval"]
    assert low <= made["calibration_error"] <= high and high - low < 0.03


def ratio(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def test_intervals_are_over_documents() -> None:
    """As wide as the bootstrap's; much wider than if tokens were independent."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(20, 400, 80)
    tokens = [rng.normal(rng.normal(5, 1), 1, n) for n in sizes]  # documents differ by 1 nat
    parts = np.array([[x.sum(), len(x)] for x in tokens])
    value, interval = calibration.jackknife(parts, ratio)
    assert value == pytest.approx(np.concatenate(tokens).mean()) and interval is not None
    resampled = stats.bootstrap(
        (np.arange(80),), lambda rows, axis: ratio(parts[rows].sum(axis=-2)),
        n_resamples=4000, vectorized=True, rng=rng, method="basic",
    )  # fmt: skip
    error = np.ptp(interval) / 2 / stats.t.ppf(0.975, 79)
    assert error == pytest.approx(resampled.standard_error, rel=0.1)
    by_tokens = np.concatenate(tokens).std() / math.sqrt(sizes.sum())
    assert error > 5 * by_tokens
    assert calibration.jackknife(parts[:1], ratio) == (pytest.approx(tokens[0].mean()), None)
    assert calibration.jackknife(np.ones((2, 2)), ratio) == (1.0, None)  # equal documents
