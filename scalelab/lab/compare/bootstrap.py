"""The Multi-Bootstrap: intervals of scores and of weighted sums of scores.

It resamples every source of chance at once: pre-training seeds, fine-tuning seeds and dev examples
(Sellam et al. 2022, "The MultiBERTs", arXiv:2106.16163, section 3). A score is the mean over runs
of the metric of each run. A resample draws pre-training seeds with replacement, for each of them
fine-tuning seeds, and one multiset of examples. Everything that a contrast compares shares these
draws: a pre-training seed is one split, order and masking for all shapes of a system, so drawing it
for each shape anew would average that away and make intervals too narrow.

One departure from the paper, `widen`. The paper has 25 pre-training seeds. With k, resampled seeds
vary (k - 1) / k as much as they should and have short tails: an interval at 95% then holds in 85%
of cases with five seeds, and two seeds have three resamples in all. So resamples keep their order
but take the distribution of Student's over seeds plus that over examples, about the value
(estimates.student_resamples). Its error is never below that of the resamples. `widen=False` is the
paper's.

Where seeds disagree on examples by chance alone, joint resampling counts that noise more than once
(Owen 2007, "The pigeonhole bootstrap"): intervals are then too wide and tests too careful.
"""

# The stubs of pandas and altair are narrower than what they accept.
# pyright: reportArgumentType=false

import math
import zlib
from collections.abc import Sequence

import numpy as np

from scalelab.lab.compare import estimates
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.scores import metrics

# Numbers in a chunk of resamples: a correlation's [resamples, runs, examples] fit in a cache; the
# weights of other metrics [resamples, examples] pay for each pass over the runs.
CHUNK, CHUNK_OF_WEIGHTS = 500_000, 4_000_000

# Scores at hand [P, F], with resampled examples [R, P, F], and weights of runs [R, P, F].
Part = tuple[np.ndarray, np.ndarray, np.ndarray]
# Gold, rows as (weight, predictions), metric.
DevSet = tuple[np.ndarray, Sequence[tuple[float, np.ndarray]], str]


def multi_bootstrap(
    gold: np.ndarray, predicted: np.ndarray, metric: str, *, num_resamples: int = 1000,
    seed: int = 0, widen: bool = True,
) -> Estimate:  # fmt: skip
    """Estimates the score of one system from several of its runs; arguments as for `contrast`."""
    return contrast(
        gold, [(1.0, predicted)], metric, num_resamples=num_resamples, seed=seed, widen=widen
    )


def contrast(
    gold: np.ndarray,
    rows: Sequence[tuple[float, np.ndarray]],
    metric: str,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    widen: bool = True,
) -> Estimate:
    """Estimates a weighted sum of scores whose seeds are shared, on one dev set; see `mean_score`.

    Args:
      gold: [n] classes or scores.
      rows: weights and predictions [P, F, n].
      metric: a name in metrics.METRICS.
      num_resamples: R.
      seed: of the resampling.
      widen: whether to make up for few seeds, see above.
    """
    sets = [(gold, rows, metric)]
    return mean_score(sets, num_resamples=num_resamples, seed=seed, widen=widen)


def mean_score(
    sets: Sequence[DevSet], *, num_resamples: int = 1000, seed: int = 0, widen: bool = True
) -> Estimate:
    """Estimates the mean over dev sets of a weighted sum of scores whose seeds are shared.

    Args:
      sets: of each dev set gold [n], weights and predictions [P, F, n] of rows, and a metric in
        metrics.METRICS. There are P pre-training seeds with F fine-tuning seeds each; [p, f] is the
        same pair of seeds in every row and set. A factor of one level is not resampled, so the
        interval says nothing of it.
      num_resamples: R.
      seed: of the resampling. With the same seed, metrics of the same arrays share all draws, and
        dev sets of the same runs the draws of seeds.
      widen: whether to make up for few seeds, see above.

    Raises:
      ValueError: an unknown metric, or shapes that do not fit.
    """
    checked = [(g, [(w, _check(g, x, m)) for w, x in rows], m) for g, rows, m in sets]
    runs = {x.shape[:2] for _, rows, _ in checked for _, x in rows}
    if len(runs) > 1:
        found = " and ".join(map(str, sorted(runs)))
        raise ValueError(f"shared seeds need as many runs in every row, found {found}")
    drawn = _draw_seeds(np.random.default_rng(seed), num_resamples, checked[0][1][0][1])
    total, totals = 0.0, 0.0
    low, high = 0.0, 0.0
    for gold, rows, metric in checked:
        at_hand, resampled = _score_all(seed, gold, [x for _, x in rows], metric, num_resamples)
        weights = [weight / len(checked) for weight, _ in rows]
        total = total + sum(w * x for w, x in zip(weights, at_hand, strict=True))
        totals = totals + sum(w * x for w, x in zip(weights, resampled, strict=True))
        ends = _limits(metric, weights)
        low, high = low + ends[0], high + ends[1]
    num_examples = min(len(gold) for gold, _, _ in checked)
    return _join([(np.asarray(total), np.asarray(totals), drawn)], num_examples, widen, (low, high))


def compare(
    gold: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    metric: str,
    *,
    paired: bool,
    num_resamples: int = 1000,
    seed: int = 0,
    widen: bool = True,
) -> Estimate:
    """Estimates the score of system B minus that of system A on the same examples.

    Args:
      gold: [n] classes or scores.
      a: [P, F, n] predictions of A.
      b: [P', F', n] of B.
      metric: a name in metrics.METRICS.
      paired: whether run [p, f] of both shares its seeds, as in `contrast`; else the seeds of A and
        of B are drawn apart.
      num_resamples: R.
      seed: of the resampling.
      widen: whether to make up for few seeds.

    Raises:
      ValueError: an unknown metric, or shapes that do not fit.
    """
    if paired:
        rows = [(-1.0, a), (1.0, b)]
        return contrast(gold, rows, metric, num_resamples=num_resamples, seed=seed, widen=widen)
    arrays = [_check(gold, x, metric) for x in (a, b)]
    rng = np.random.default_rng(seed)
    drawn = [_draw_seeds(rng, num_resamples, x) for x in arrays]
    at_hand, resampled = _score_all(seed, gold, arrays, metric, num_resamples)
    parts = [
        (w * x, w * y, z) for w, x, y, z in zip((-1, 1), at_hand, resampled, drawn, strict=True)
    ]
    return _join(parts, len(gold), widen, _limits(metric, (-1.0, 1.0)))


def mean(found: Sequence[Estimate], *, same_runs: bool = False) -> Estimate:
    """Estimates the mean of several estimates, such as those of the tasks in a benchmark.

    Args:
      found: with as many resamples each. Resamples with the same number belong together.
      same_runs: whether they are metrics of the same runs, drawn with the same seed; else they are
        of different runs, drawn with different seeds.
    """
    num = len(found)
    moved = sum(estimates.normal_scores(e.resamples) * e.standard_error / num for e in found)
    value = float(np.mean([e.value for e in found]))
    low, high = (float(np.mean([e.bounds[end] for e in found])) for end in (0, 1))
    if same_runs:
        term = float(np.std(moved)), min(e.degrees for e in found)
    else:
        variances = [((e.standard_error / num) ** 2, e.degrees) for e in found]
        term = estimates.satterthwaite(variances)
    return estimates.student_resamples(moved, value, [term], (low, high))


def _check(gold: np.ndarray, predicted: np.ndarray, metric: str) -> np.ndarray:
    """Returns predictions as an array; raises a ValueError where they do not fit."""
    if metric not in metrics.METRICS:
        raise ValueError(f"unknown metric {metric!r}: expected one of {', '.join(metrics.METRICS)}")
    predicted = np.asarray(predicted)
    if predicted.ndim != 3 or predicted.shape[2:] != np.shape(gold) or not predicted.size:
        raise ValueError(
            "expected predictions [pre-training seeds, fine-tuning seeds, n] and gold [n], found"
            f" {predicted.shape} and {np.shape(gold)}"
        )
    return predicted


def _draw_seeds(rng: np.random.Generator, num_resamples: int, predicted: np.ndarray) -> np.ndarray:
    """Draws weights [R, P, F] of runs, summing to 1 in each resample."""
    num_pretrain, num_finetune = predicted.shape[:2]
    outer = rng.multinomial(num_pretrain, np.full(num_pretrain, 1 / num_pretrain), num_resamples)
    even = np.full(num_finetune, 1 / num_finetune)
    drawn = rng.multinomial(outer * num_finetune, even)  # anew for every time p was drawn
    return drawn / (num_pretrain * num_finetune)


def _score_all(
    seed: int, gold: np.ndarray, systems: list[np.ndarray], metric: str, num_resamples: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Scores every run: [P, F] at hand and [R, P, F] with resampled examples, by system.

    Examples that are alike in gold and in every prediction are drawn as one, with their number as
    weight: the same distribution, and two classes and five seeds have 64 kinds at most.
    """
    rng = np.random.default_rng([seed, zlib.crc32(gold.tobytes())])
    runs = np.concatenate([s.reshape(-1, len(gold)) for s in systems])
    kinds, counts = np.unique(np.vstack([gold[None], runs]), axis=1, return_counts=True)
    gold, runs = kinds[0], kinds[1:]
    function = metrics.METRICS[metric]
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
    split_hand, split_resampled = np.split(at_hand, ends), np.split(resampled, ends, axis=1)
    return (
        [x.reshape(shape) for x, shape in zip(split_hand, shapes, strict=True)],
        [x.reshape(num_resamples, *shape)
         for x, shape in zip(split_resampled, shapes, strict=True)],
    )  # fmt: skip


def _limits(metric: str, weights: Sequence[float]) -> tuple[float, float]:
    """Returns the least and the greatest weighted sum of values of a metric."""
    ends = [sorted(w * end for end in metrics.RANGES[metric]) for w in weights]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _join(
    parts: list[Part], num_examples: int, widen: bool, limits: tuple[float, float]
) -> Estimate:
    """Adds up parts whose seeds are drawn apart."""
    value = float(sum(at_hand.mean() for at_hand, _, _ in parts))
    resamples = sum(((scored * drawn).sum(axis=(1, 2)) for _, scored, drawn in parts), np.zeros(1))
    error = float(np.std(resamples))
    by_examples = sum((scored.mean(axis=(1, 2)) for _, scored, _ in parts), np.zeros(1))
    variances = [(float(np.var(by_examples)), num_examples - 1.0)]
    variances += [term for at_hand, _, _ in parts for term in _seed_variance(at_hand)]
    unbiased, degrees = estimates.satterthwaite(variances)
    if widen:
        scale = max(1.0, error / unbiased) if unbiased > 0 else 1.0
        terms = [(scale * math.sqrt(v), d) for v, d in variances]
        return estimates.student_resamples(resamples, value, terms, limits)
    ends = estimates.interval(resamples, limits)
    return Estimate(value, *ends, error, degrees, resamples, limits)


def _seed_variance(at_hand: np.ndarray) -> list[tuple[float, float]]:
    """Unbiased variance of the mean of [P, F] scores over seeds, with its degrees of freedom.

    The means of the pre-training seeds include the variance of their fine-tuning seeds.
    """
    numbers = at_hand.mean(axis=1) if len(at_hand) > 1 else at_hand[0]
    if len(numbers) < 2:
        return []
    return [(float(numbers.var(ddof=1)) / len(numbers), len(numbers) - 1.0)]
