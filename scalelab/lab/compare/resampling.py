"""What the Multi-Bootstrap is made of: draws of seeds and examples, and what becomes of them."""

import dataclasses
import math
import zlib
from collections.abc import Sequence

import numpy as np
import scipy.stats

from scalelab.lab import scores
from scalelab.lab.compare.summaries import LEVEL, smallest_detectable

ROUNDING = 1e-12  # what resamples that are all the same may differ by
DESIGNS = ("nested", "crossed")
# Numbers that a chunk of resamples holds: a correlation's [resamples, runs, examples] fit in a
# cache; the others' weights [resamples, examples] pay for each look at the runs.
CHUNK, CHUNK_OF_WEIGHTS = 500_000, 4_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A score, or a difference of two, with its uncertainty.

    Attributes:
      value: of the runs and examples at hand.
      low: lower end of the 95% percentile interval.
      high: its upper end.
      standard_error: of `value`.
      degrees: Satterthwaite's degrees of freedom of the standard error; infinite if that is 0.
      resamples: [R] the resampled values, which widening may move out of the metric's range.
      bounds: least and greatest possible value, to which the interval is cut.
    """

    value: float
    low: float
    high: float
    standard_error: float
    degrees: float
    resamples: np.ndarray
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @property
    def p_value(self) -> float:
        """Two-sided p of the hypothesis that the true value is 0.

        Twice the share of resamples on the other side of 0 (Sellam et al. 2022 have the
        one-sided share), the value at hand counted as one of them: it is never 0. What differs
        from 0 by rounding alone is 0, which is on either side.
        """
        below = (self.resamples <= ROUNDING).sum()
        above = (self.resamples >= -ROUNDING).sum()
        return min(1.0, 2 * float(min(below, above) + 1) / (len(self.resamples) + 1))

    @property
    def detectable(self) -> float | None:
        """The smallest true value that such data would tell from 0.

        In a two-sided test at 5% with power 80%: (t_0.975 + t_0.8) standard errors. None where the
        resamples do not vary at all, as when every run predicts one class: then nothing is known of
        how runs that have learnt something would vary.
        """
        if self.standard_error < ROUNDING:
            return None
        return smallest_detectable(self.standard_error, self.degrees)


def check(gold: np.ndarray, predicted: np.ndarray, metric: str, design: str) -> np.ndarray:
    """Predictions as an array, or a ValueError where they, metric or design do not fit."""
    if metric not in scores.METRICS:
        raise ValueError(f"unknown metric {metric!r}: expected one of {', '.join(scores.METRICS)}")
    if design not in DESIGNS:
        raise ValueError(f"unknown design {design!r}: expected one of {', '.join(DESIGNS)}")
    predicted = np.asarray(predicted)
    if predicted.ndim != 3 or predicted.shape[2:] != np.shape(gold) or not predicted.size:
        raise ValueError(
            "expected predictions [pre-training seeds, fine-tuning seeds, n] and gold [n], found"
            f" {predicted.shape} and {np.shape(gold)}"
        )
    return predicted


def draw_seeds(
    rng: np.random.Generator, num_resamples: int, predicted: np.ndarray, design: str
) -> np.ndarray:
    """Weights [R, P, F] of runs, summing to 1 in each resample."""
    num_pretrain, num_finetune = predicted.shape[:2]
    outer = rng.multinomial(num_pretrain, np.full(num_pretrain, 1 / num_pretrain), num_resamples)
    even = np.full(num_finetune, 1 / num_finetune)
    if design == "nested":  # F draws for every time that a pre-training seed was drawn
        drawn = rng.multinomial(outer * num_finetune, even)
    else:
        drawn = outer[:, :, None] * rng.multinomial(num_finetune, even, num_resamples)[:, None]
    return drawn / (num_pretrain * num_finetune)


def score_all(
    seed: int,
    gold: np.ndarray,
    systems: list[np.ndarray],
    metric: str,
    num_resamples: int,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Scores of every run, [P, F] at hand and [R, P, F] with resampled examples, by system.

    Examples that are alike in gold and in every prediction are drawn as one, with their number as
    weight: the same distribution, and of two classes and five seeds there are 64 kinds at most.
    """
    rng = np.random.default_rng([seed, zlib.crc32(gold.tobytes())])
    runs = np.concatenate([s.reshape(-1, len(gold)) for s in systems])
    kinds, counts = np.unique(np.vstack([gold[None], runs]), axis=1, return_counts=True)
    gold, runs = kinds[0], kinds[1:]
    function = scores.METRICS[metric]
    at_hand = function(gold, runs, counts)
    apart = metric not in ("pearson", "spearman")
    chunk = max(1, CHUNK_OF_WEIGHTS // len(gold) if apart else CHUNK // runs.size)
    resampled = np.empty((num_resamples, len(runs)))
    for begin in range(0, num_resamples, chunk):
        size = min(chunk, num_resamples - begin)
        weights = rng.multinomial(counts.sum(), counts / counts.sum(), size)
        resampled[begin : begin + size] = function(gold, runs, weights)
    ends = np.cumsum([s.shape[0] * s.shape[1] for s in systems])[:-1]
    shapes = [s.shape[:2] for s in systems]
    return (
        [x.reshape(shape) for x, shape in zip(np.split(at_hand, ends), shapes, strict=True)],
        [
            x.reshape(num_resamples, *shape)
            for x, shape in zip(np.split(resampled, ends, axis=1), shapes, strict=True)
        ],
    )


Part = tuple[np.ndarray, np.ndarray, np.ndarray]  # at hand [P, F], resampled and weights [R, P, F]


def bounds(metric: str, weights: Sequence[float] = (1.0,)) -> tuple[float, float]:
    """The least and the greatest weighted sum of values of a metric."""
    ends = [sorted(w * end for end in scores.RANGES[metric]) for w in weights]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def join(
    parts: list[Part],
    num_examples: int,
    design: str,
    widen: bool,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Joins the parts, whose seeds are drawn apart, to the sum of their means, within limits."""
    value = float(sum(at_hand.mean() for at_hand, _, _ in parts))
    resamples = sum(((scored * drawn).sum(axis=(1, 2)) for _, scored, drawn in parts), np.zeros(1))
    error = float(np.std(resamples))
    by_examples = sum((scored.mean(axis=(1, 2)) for _, scored, _ in parts), np.zeros(1))
    variances = [(float(np.var(by_examples)), num_examples - 1.0)]
    for at_hand, _, _ in parts:
        variances += _seed_variances(at_hand, design)
    unbiased, degrees = satterthwaite(variances)
    if widen and error > 0:
        factor = max(1.0, unbiased * quantile(degrees) / (error * quantile(math.inf)))
        resamples = resamples.mean() + factor * (resamples - resamples.mean())
        error = max(error, unbiased)
    return Estimate(value, *interval(resamples, limits), error, degrees, resamples, limits)


def _seed_variances(at_hand: np.ndarray, design: str) -> list[tuple[float, float]]:
    """Unbiased variances of the mean of [P, F] scores over seeds, with their degrees of freedom.

    Nested: the means of the pre-training seeds hold what their fine-tuning seeds vary. Crossed: the
    two factors add up, which counts their interaction twice.
    """
    num_pretrain, num_finetune = at_hand.shape
    found = []
    if num_pretrain > 1:
        found.append((at_hand.mean(axis=1).var(ddof=1) / num_pretrain, num_pretrain - 1.0))
    if num_finetune > 1 and (num_pretrain == 1 or design == "crossed"):
        found.append((at_hand.mean(axis=0).var(ddof=1) / num_finetune, num_finetune - 1.0))
    return found


def satterthwaite(variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error of a sum of independent terms, and its degrees of freedom."""
    total = sum(v for v, _ in variances)
    if total == 0:
        return 0.0, math.inf
    return math.sqrt(total), total**2 / sum(v**2 / d for v, d in variances if v > 0)


def quantile(degrees: float) -> float:
    """Standard errors from the middle of a 95% interval to its end."""
    return float(scipy.stats.t.ppf(1 - (1 - LEVEL) / 2, degrees))


def interval(
    resamples: np.ndarray, limits: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float]:
    """The 95% percentile interval, within limits."""
    ends = np.quantile(resamples, [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2])
    low, high = np.clip(ends, *limits)
    return float(low), float(high)
