"""Calibration of token predictions, and confidence intervals over documents.

A model is calibrated if a share p of its guesses with probability p is right. For the expected
calibration error, the most probable tokens (guesses) are sorted into 15 bins of equal width by
probability. The error is the mean of |share right - mean probability| over bins, weighted by the
number of guesses (Guo et al. 2017, "On calibration of modern neural networks", eq. 3).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

NUM_BINS = 15


def bin_guesses(best_nats: np.ndarray, right: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Counts the guesses of each document in bins of their probability.

    Args:
      best_nats: [n], minus the log-probability of the most probable token; NaN without a guess.
      right: [n], whether that token is the text's token.
      starts: [num_documents + 1], offset of each document.

    Returns:
      [num_documents, bins, 3] float64: guesses, right guesses, sum of probabilities.
    """
    known = ~np.isnan(best_nats)
    chances = np.exp(-best_nats[known].astype(np.float64))
    document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[known]
    found = np.minimum((chances * NUM_BINS).astype(int), NUM_BINS - 1) + document * NUM_BINS
    size = (len(starts) - 1) * NUM_BINS
    sums = [np.bincount(found, w, size) for w in (np.ones_like(chances), right[known], chances)]
    return np.stack(sums, axis=-1).reshape(-1, NUM_BINS, 3)


def calibration_error(bins: np.ndarray) -> np.ndarray:
    """Returns the expected calibration error of bins [..., bins, 3]: [...], in [0, 1].

    Guo et al. 2017, eq. 3.
    """
    gaps = np.abs(bins[..., 1] - bins[..., 2]).sum(axis=-1)
    return gaps / bins[..., 0].sum(axis=-1)


def reliability(bins: np.ndarray) -> pd.DataFrame:
    """Returns the reliability table of bins [bins, 3], without empty bins."""
    edges = np.arange(NUM_BINS + 1) / NUM_BINS
    made = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "guesses": bins[:, 0].astype(int)})
    used = bins[:, 0] > 0
    shares = bins[used, 1:] / bins[used, :1]
    return made[used].assign(right=shares[:, 0], probability=shares[:, 1])


def jackknife(
    parts: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> tuple[float, list[float] | None]:
    """Estimates a function of sums over documents.

    Args:
      parts: [n, ...], the summands of each document.
      statistic: smooth function, sums [m, ...] -> [m].

    Returns:
      The value, and its 95% interval over documents; None if one document determines it. The
      standard error is the jackknife's (Efron and Stein 1981), the interval Student's.
    """
    total, num = parts.sum(axis=0), len(parts)
    value = float(statistic(total[None])[0])
    if num < 2:
        return value, None
    with np.errstate(divide="ignore", invalid="ignore"):  # one document may have all guesses
        without = statistic(total - parts)
    half = float(stats.t.ppf(0.975, num - 1) * math.sqrt(num - 1) * np.std(without))
    return value, [value - half, value + half] if 0 < half < math.inf else None


def show(interval: Sequence[float] | None) -> str:
    """Formats an interval."""
    return "[{:,.4f}, {:,.4f}]".format(*interval) if interval else "-"


def summarize(bins: np.ndarray) -> dict[str, Any]:
    """Returns accuracy, calibration error and its interval from bins [num_documents, bins, 3]."""
    error, interval = jackknife(bins, calibration_error)
    guesses, right, _ = bins.sum(axis=(0, 1))
    return {
        "accuracy": right / guesses,
        "calibration_error": error,
        "calibration_error_interval": interval and [max(0.0, interval[0]), interval[1]],
    }


def describe(facts: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Formats the result of `summarize` and the reliability table."""
    from scalelab.lab import tables

    rows = [
        [f"{begin:.3f} to {end:.3f}", f"{guesses:,}", f"{right:.4f}", f"{mean:.4f}"]
        for begin, end, guesses, right, mean in table.itertuples(index=False)
    ]
    ends = show(facts["calibration_error_interval"])
    head = f"calibration error {facts['calibration_error']:.4f}, 95% interval {ends}\n"
    return head + tables.plain(["probability of a guess", "guesses", "right", "mean"], rows)
