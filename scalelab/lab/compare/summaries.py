"""Summaries of several seeds, what they could tell apart, and the correction of several claims."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.stats

LEVEL = 0.95  # of intervals; a test's is 1 - LEVEL
POWER = 0.8  # with which the smallest detectable difference is found


@dataclasses.dataclass(frozen=True)
class Summary:
    """What several seeds scored.

    Attributes:
      num: finished runs, degenerate ones included.
      median: of their scores.
      mean: likewise.
      sd: with num - 1 in the denominator; NaN for fewer than two. All three are NaN for none.
      num_failed: runs that gave no score.
      num_degenerate: finished runs that learnt nothing.
    """

    num: int
    median: float
    mean: float
    sd: float
    num_failed: int = 0
    num_degenerate: int = 0


def summarise(values: Sequence[float], num_failed: int = 0, num_degenerate: int = 0) -> Summary:
    """Summarises the scores of several seeds."""
    if not len(values):
        return Summary(0, math.nan, math.nan, math.nan, num_failed, num_degenerate)
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    median, mean = float(np.median(values)), float(np.mean(values))
    return Summary(len(values), median, mean, sd, num_failed, num_degenerate)


def smallest_detectable(standard_error: float, degrees: float = math.inf) -> float:
    """The smallest true difference that a two-sided test at 5% finds with power 80%.

    Args:
      standard_error: of the difference.
      degrees: degrees of freedom of that standard error.

    Returns:
      (t_0.975 + t_0.8) SE; 2.80 SE with many degrees (Cohen 1988, "Statistical Power Analysis").
    """
    quantiles = scipy.stats.t.ppf([1 - (1 - LEVEL) / 2, POWER], degrees)
    return float(quantiles.sum() * standard_error)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects the p-values of several claims (Holm 1979, Scand. J. Stat. 6).

    Args:
      p_values: one a claim.

    Returns:
      In the same order: below 5%, the claim stands, and the chance that any of those that stand is
      wrong is at most 5%.
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    grown = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(grown, 1.0)
    return corrected.tolist()
