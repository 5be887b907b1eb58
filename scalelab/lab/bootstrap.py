"""The Multi-Bootstrap: the uncertainty of a score, and of the difference of two.

It resamples every source of chance at once: pre-training seeds, fine-tuning seeds and dev examples
(Sellam et al. 2022, "The MultiBERTs", arXiv:2106.16163, section 3). A system's score is the mean
over its runs of the metric of each run; a resample draws seeds with replacement, and one multiset
of examples that all runs share, in a comparison those of both systems.

We depart from the paper in one thing, `widen`. It has 25 pre-training seeds. With k, resampled
seeds vary (k - 1) / k as much as they should, and have the tails of a normal distribution where
Student's are due. Where seeds are all that varies, an interval that should hold in 95% of cases
then holds in 85% with five seeds, in 77% with three, and a test at 5% tells equal systems apart in
12% and 18%. So resamples are moved away from their mean, by the factor that makes the interval at
least as wide as Student's (after the "expanded percentiles" of Hesterberg 2015, Am. Stat. 69:371):
t * SE on each side, SE from the unbiased variance over seeds plus that over examples, t with
Satterthwaite's degrees of freedom for this sum. The same cases come out at 95%, 93%, 4% and 4%.
Resamples are never moved closer. `widen=False` is the paper's.

Where seeds disagree on examples by chance alone, the joint resampling counts that noise more than
once (Owen 2007, "The pigeonhole bootstrap"): intervals are then too wide, tests too careful.
"""

import dataclasses
import math
import zlib
from collections.abc import Sequence

import numpy as np
import scipy.stats

from scalelab.lab import scores
from scalelab.lab.statistics import LEVEL, smallest_detectable

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
      resamples: [R] the resampled values.
    """

    value: float
    low: float
    high: float
    standard_error: float
    degrees: float
    resamples: np.ndarray

    @property
    def p_value(self) -> float:
        """Two-sided p of the hypothesis that the true value is 0.

        Twice the share of resamples on the other side of 0 (Sellam et al. 2022 have the
        one-sided share), the value at hand counted as one of them: it is never 0.
        """
        below, above = (self.resamples <= 0).sum(), (self.resamples >= 0).sum()
        return min(1.0, 2 * float(min(below, above) + 1) / (len(self.resamples) + 1))

    @property
    def detectable(self) -> float:
        """The smallest true value that such data would tell from 0.

        In a two-sided test at 5% with power 80%: (t_0.975 + t_0.8) standard errors.
        """
        return smallest_detectable(self.standard_error, self.degrees)


def multi_bootstrap(
    gold: np.ndarray,
    predicted: np.ndarray,
    metric: str,
    *,
    design: str = "nested",
    num_resamples: int = 1000,
    seed: int = 0,
    widen: bool = True,
) -> Estimate:
    """Estimates the score of a system from several of its runs.

    Args:
      gold: [n] classes or scores.
      predicted: [P, F, n] for P pre-training seeds with F fine-tuning seeds each.
      metric: a name in scores.METRICS.
      design: "nested" if each pre-training seed has fine-tuning seeds of its own, drawn anew for
        every time that it is drawn; "crossed" if fine-tuning seed f is the same thing, such as one
        order of the data, for all P, so that it is drawn for all of them at once. A factor of one
        level is not resampled, so the interval says nothing of it.
      num_resamples: R.
      seed: of the resampling. With the same seed, metrics of the same arrays share all draws, and
        dev sets of the same runs the draws of seeds.
      widen: whether to make up for few seeds, see above.

    Raises:
      ValueError: an unknown metric or design, or shapes that do not fit.
    """
    predicted = _check(gold, predicted, metric, design)
    rng = np.random.default_rng(seed)
    drawn = _draw_seeds(rng, num_resamples, predicted, design)
    at_hand, (resampled,) = _score(seed, gold, [predicted], metric, num_resamples)
    return _estimate([(at_hand[0], resampled, drawn)], len(gold), design, widen)


def compare(
    gold: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    metric: str,
    *,
    paired: bool,
    design: str = "nested",
    num_resamples: int = 1000,
    seed: int = 0,
    widen: bool = True,
) -> Estimate:
    """Estimates the score of system B minus that of system A on the same examples.

    Every resample has one multiset of examples for both. Seeds are

    - paired: run [p, f] of A and run [p, f] of B go in and out of the resamples together. Right
      where they begin with the same weights and the same fine-tuning seed, so that what the two
      share cancels in the difference.
    - independent: those of A and of B are drawn apart. Right for all else, also where a seed has
      the same number but means another pre-training run.

    Args:
      gold: [n] classes or scores.
      a: [P, F, n] predictions of A.
      b: [P', F', n] of B.
      metric: a name in scores.METRICS.
      paired: which of the two; needs a and b of one shape.
      design: as for `multi_bootstrap`, of both.
      num_resamples: R.
      seed: of the resampling.
      widen: whether to make up for few seeds.

    Raises:
      ValueError: an unknown metric or design, or shapes that do not fit.
    """
    a, b = _check(gold, a, metric, design), _check(gold, b, metric, design)
    if paired and a.shape != b.shape:
        raise ValueError(f"paired seeds need as many runs of both, found {a.shape} and {b.shape}")
    rng = np.random.default_rng(seed)
    drawn = [_draw_seeds(rng, num_resamples, x, design) for x in (a, b)]
    at_hand, resampled = _score(seed, gold, [a, b], metric, num_resamples)
    if paired:
        parts = [(at_hand[1] - at_hand[0], resampled[1] - resampled[0], drawn[0])]
    else:
        parts = [(-at_hand[0], -resampled[0], drawn[0]), (at_hand[1], resampled[1], drawn[1])]
    return _estimate(parts, len(gold), design, widen)


def contrast(
    gold: np.ndarray,
    blocks: Sequence[Sequence[tuple[float, np.ndarray]]],
    metric: str,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    widen: bool = True,
) -> Estimate:
    """Estimates the mean over blocks of a weighted sum of scores, on the same examples.

    Such as, over several shapes, the score of one system minus that of another. Where all systems
    have two or more pre-training seeds, these are drawn apart for each system, nested. Where one
    has a single seed, blocks are drawn instead of seeds: how much they differ then stands for the
    chance in each, and the interval is about further blocks of this kind.

    Args:
      gold: [n] classes or scores.
      blocks: of each block, weights and predictions [P, F, n]; no system is in two blocks.
      metric: a name in scores.METRICS.
      num_resamples: R.
      seed: of the resampling. With the same seed, contrasts of the same runs share their draws.
      widen: whether to make up for few seeds, or few blocks.

    Raises:
      ValueError: an unknown metric, shapes that do not fit, or one block with a single seed.
    """
    num = len(blocks)
    flat = [(w / num, _check(gold, x, metric, "nested")) for block in blocks for w, x in block]
    rng = np.random.default_rng(seed)
    at_hand, resampled = _score(seed, gold, [x for _, x in flat], metric, num_resamples)
    scored = [(w * a, w * r) for (w, _), a, r in zip(flat, at_hand, resampled, strict=True)]
    if all(len(x) > 1 for _, x in flat):
        parts = [(a, r, _draw_seeds(rng, num_resamples, x, "nested"))
                 for (a, r), (_, x) in zip(scored, flat, strict=True)]  # fmt: skip
        return _estimate(parts, len(gold), "nested", widen)
    if num < 2:
        raise ValueError("expected two pre-training seeds of each system, or several blocks")
    rest = iter(scored)
    totals = []
    for block in blocks:
        own = [next(rest) for _ in block]
        a, r = sum(float(a.mean()) for a, _ in own), sum(r.mean(axis=(1, 2)) for _, r in own)
        totals.append((num * a, num * r))
    drawn = rng.multinomial(num, np.full(num, 1 / num), num_resamples)[:, :, None] / num
    a, r = np.array([[a] for a, _ in totals]), np.stack([r for _, r in totals], axis=1)[:, :, None]
    return _estimate([(a, r, drawn)], len(gold), "nested", widen)


def mean(estimates: Sequence[Estimate], *, same_runs: bool = False) -> Estimate:
    """The mean of several estimates, such as those of the tasks in a benchmark.

    Args:
      estimates: with as many resamples each. Resamples with the same number belong together.
      same_runs: whether they are metrics of the same runs, drawn with the same seed; else they are
        of different runs, drawn with different seeds.
    """
    num = len(estimates)
    apart = [(e.standard_error / num) ** 2 for e in estimates]
    degrees = _satterthwaite(list(zip(apart, [e.degrees for e in estimates], strict=True)))[1]
    if same_runs:
        degrees = min(e.degrees for e in estimates)
    # To the standard error of each, that is without its widening; the mean has its own.
    moved = np.zeros_like(estimates[0].resamples)
    for e in estimates:
        spread = e.resamples.std()
        if spread > 0:
            moved += (e.resamples - e.resamples.mean()) * (e.standard_error / spread / num)
    value, error = float(np.mean([e.value for e in estimates])), float(moved.std())
    middle = np.mean([e.resamples.mean() for e in estimates])
    resamples = middle + moved * (_quantile(degrees) / _quantile(math.inf))
    return Estimate(value, *_interval(resamples), error, degrees, resamples)


def _check(gold: np.ndarray, predicted: np.ndarray, metric: str, design: str) -> np.ndarray:
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


def _draw_seeds(
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


def _score(
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


def _estimate(parts: list[Part], num_examples: int, design: str, widen: bool) -> Estimate:
    """Joins the parts, whose seeds are drawn apart, to the sum of their means."""
    value = float(sum(at_hand.mean() for at_hand, _, _ in parts))
    resamples = sum(((scored * drawn).sum(axis=(1, 2)) for _, scored, drawn in parts), np.zeros(1))
    error = float(np.std(resamples))
    by_examples = sum((scored.mean(axis=(1, 2)) for _, scored, _ in parts), np.zeros(1))
    variances = [(float(np.var(by_examples)), num_examples - 1.0)]
    for at_hand, _, _ in parts:
        variances += _seed_variances(at_hand, design)
    unbiased, degrees = _satterthwaite(variances)
    if widen and error > 0:
        factor = max(1.0, unbiased * _quantile(degrees) / (error * _quantile(math.inf)))
        resamples = resamples.mean() + factor * (resamples - resamples.mean())
        error = max(error, unbiased)
    return Estimate(value, *_interval(resamples), error, degrees, resamples)


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


def _satterthwaite(variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error of a sum of independent terms, and its degrees of freedom."""
    total = sum(v for v, _ in variances)
    if total == 0:
        return 0.0, math.inf
    return math.sqrt(total), total**2 / sum(v**2 / d for v, d in variances if v > 0)


def _quantile(degrees: float) -> float:
    """Standard errors from the middle of a 95% interval to its end."""
    return float(scipy.stats.t.ppf(1 - (1 - LEVEL) / 2, degrees))


def _interval(resamples: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2])
    return float(low), float(high)
