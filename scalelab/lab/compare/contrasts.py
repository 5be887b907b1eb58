"""Weighted sums of numbers that pre-trainings left, such as losses, with Student's interval.

A contrast is a mean over blocks; a block is a weighted sum of means over seeds, such as, for one
shape, the loss of one system minus that of another. `bootstrap.contrast` is the same for scores.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.special

from scalelab.lab.compare.resampling import Estimate
from scalelab.lab.compare.summaries import LEVEL

HALF = 1000  # resamples on each side of the value
SEEDS = "over pre-training seeds"
BLOCKS = "over what is compared, as some rows have a single pre-training"
ALONE = "a single pre-training: how much another would differ is unknown"

Part = tuple[float, Sequence[float]]  # weight, and the numbers whose mean it is of


@dataclasses.dataclass(frozen=True, eq=False)
class Contrast:
    """A weighted sum of scores.

    Attributes:
      value: of the runs at hand.
      estimate: with its interval; None if it has none.
      why: what the interval is over, or why there is none.
    """

    value: float
    estimate: Estimate | None
    why: str


def of_numbers(blocks: Sequence[Sequence[Part]], *, seed: int = 0) -> Contrast:
    """The mean over blocks of the weighted sums of means.

    Args:
      blocks: of each block its parts; all parts are independent.
      seed: of the order of resamples.

    Returns:
      With an interval over seeds if each part has two numbers or more; else over blocks, if there
      are several.
    """
    if all(len(x) > 1 for block in blocks for _, x in block):
        found = student([(w / len(blocks), x) for block in blocks for w, x in block], seed=seed)
        return Contrast(found.value, found, SEEDS)
    totals = [sum(w * float(np.mean(x)) for w, x in block) for block in blocks]
    if len(totals) > 1:
        return Contrast(float(np.mean(totals)), student([(1.0, totals)], seed=seed), BLOCKS)
    return Contrast(totals[0], None, ALONE)


def student(parts: Sequence[Part], *, seed: int = 0) -> Estimate:
    """Estimates a weighted sum of means of independent parts, with Student's interval.

    Returns:
      Its resamples are quantiles of Student's distribution about the value, in a random order, with
      Welch's standard error and degrees of freedom. `without_interval` if a part has one number.
    """
    value = sum(weight * float(np.mean(x)) for weight, x in parts)
    if any(len(x) < 2 for _, x in parts):
        return without_interval(value)
    variances = [(w**2 * float(np.var(x, ddof=1)) / len(x), len(x) - 1) for w, x in parts]
    total = sum(v for v, _ in variances)
    degrees = total**2 / sum(v**2 / d for v, d in variances) if total > 0 else math.inf
    error = math.sqrt(total)
    degrees_there = min(degrees, 1e9)
    half = error * scipy.special.stdtrit(degrees_there, (np.arange(HALF) + 0.5) / (2 * HALF))
    spread = np.concatenate([half, -half])
    reach = error * float(scipy.special.stdtrit(degrees_there, 1 - (1 - LEVEL) / 2))
    resamples = value + np.random.default_rng(seed).permutation(spread)
    return Estimate(value, value - reach, value + reach, error, degrees, resamples)


def without_interval(value: float) -> Estimate:
    """A number of which only the value is known: the rest is NaN, and there are no resamples."""
    return Estimate(value, math.nan, math.nan, math.nan, math.nan, np.empty(0))
