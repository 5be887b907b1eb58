"""The Multi-Bootstrap: intervals of scores and of weighted sums of scores.

It resamples every source of chance at once: pre-training seeds, fine-tuning seeds and dev examples
(Sellam et al. 2022, "The MultiBERTs", arXiv:2106.16163, section 3). A score is the mean over runs
of the metric of each run. A resample draws pre-training seeds with replacement, for each of them
fine-tuning seeds, and one multiset of examples. All rows of a contrast share these draws. A
pre-training seed is one order and masking for all shapes of a system, so independent draws
for each shape would average it away and make intervals too narrow.

`widen` departs from the paper, which has 25 pre-training seeds. With k seeds the resampled variance
is (k - 1) / k of the true one, with short tails: a 95% interval covers the true value in 85% of
cases with five seeds, and two seeds have three different resamples. So resamples keep their order
but take Student's distribution over seeds plus the distribution over examples, centered on the
value (estimates.student_resamples). The error is never below the resamples' own. `widen=False`
gives the paper's method. In a study all rows estimate the variance of seeds together
(estimates.pooled_variances), because two seeds of one row give only one degree of freedom.

A proportion of a single run has Wilson's interval over the examples, which are independent. So has
one of several runs if every resample equals the value, such as for 60 right answers of 60. Other
scores and all differences then have no interval.

If seeds disagree on examples by chance alone, joint resampling counts that noise more than once
(Owen 2007, "The pigeonhole bootstrap"): intervals are then too wide and tests conservative.
"""

import dataclasses
import math
import zlib
from collections.abc import Sequence

import numpy as np
import scipy.special

from scalelab.lab.compare import estimates
from scalelab.lab.compare.estimates import ROUNDING, UPPER, Estimate
from scalelab.tasks import metrics

# Numbers in a chunk of resamples: for a correlation [resamples, runs, examples], to fit in a cache;
# for other metrics the weights [resamples, examples], to need few passes over the runs.
CHUNK, CHUNK_OF_WEIGHTS = 500_000, 4_000_000

# Gold [n], rows as (weight, predictions [P, F, n]), metric.
DevSet = tuple[np.ndarray, Sequence[tuple[float, np.ndarray]], str]


def mean_score(
    sets: Sequence[DevSet],
    *,
    paired: bool = True,
    num_resamples: int = 1000,
    seed: int = 0,
    widen: bool = True,
    pooled: Sequence[tuple[float, float]] = (),
    draws: np.ndarray | None = None,
) -> Estimate:
    """Estimates the mean over dev sets of a weighted sum of scores.

    Args:
      sets: for each dev set its gold [n], rows of weight and predictions [P, F, n], and a metric of
        metrics.METRICS: P pre-training seeds with F fine-tuning seeds each. A factor of one level
        is not resampled, so the interval leaves out its variation.
      paired: whether [p, f] is the same pair of seeds in every row and set; else the seeds of each
        row are drawn independently.
      num_resamples: R.
      seed: of the resampling. With the same seed, metrics of the same arrays share all draws, and
        dev sets of the same runs share the draws of seeds.
      widen: whether to correct for few seeds, see above.
      pooled: variances of seeds, from all rows of a study (`estimates.pooled_variances`); the error
        is at least that of these rows alone.
      draws: weights [R, P, F] of paired runs from `draw_seeds`, to share; None: draws its own.
    """
    runs = {x.shape[:2] for _, rows, _ in sets for _, x in rows}
    assert not paired or len(runs) == 1, runs
    first = [x for _, x in sets[0][1]]
    # Rows whose seeds are drawn together.
    sides = [slice(0, len(first))] if paired else [slice(k, k + 1) for k in range(len(first))]
    rng = np.random.default_rng(seed)
    drawn = [
        draw_seeds(rng, num_resamples, *first[rows.start].shape[:2]) if draws is None else draws
        for rows in sides
    ]
    at_hand, resampled = [np.zeros(())] * len(sides), [np.zeros(())] * len(sides)
    low, high = 0.0, 0.0
    for gold, rows, metric in sets:
        scores = _score_all(seed, gold, [x for _, x in rows], metric, num_resamples)
        weights = [weight / len(sets) for weight, _ in rows]
        for k, own in enumerate(sides):
            parts = list(zip(weights, scores, strict=True))[own]
            at_hand[k] = at_hand[k] + sum(w * x for w, (x, _) in parts)
            resampled[k] = resampled[k] + sum(w * y for w, (_, y) in parts)
        ends = [sorted(w * end for end in metrics.RANGES[metric]) for w in weights]
        low, high = low + sum(end[0] for end in ends), high + sum(end[1] for end in ends)
    value = float(sum(x.mean() for x in at_hand))
    resamples = sum(
        ((y * z).sum(axis=(1, 2)) for y, z in zip(resampled, drawn, strict=True)), np.zeros(1)
    )
    by_examples = sum((y.mean(axis=(1, 2)) for y in resampled), np.zeros(1))
    num_examples = min(len(gold) for gold, _, _ in sets)
    variances = [(float(np.var(by_examples)), num_examples - 1.0)]
    for scores in at_hand:  # means over pre-training seeds include the variance of their own seeds
        numbers = scores.mean(axis=1) if len(scores) > 1 else scores[0]
        if len(numbers) > 1:
            variance = float(numbers.var(ddof=1)) / len(numbers)
            variances.append((variance, len(numbers) - 1.0))
    error = float(np.std(resamples))
    unbiased, degrees = estimates.satterthwaite(variances)
    if pooled and len(variances) > 1:
        own, variances = unbiased, [variances[0], *pooled]
        unbiased, degrees = estimates.satterthwaite(variances)
        error = max(error, own)
    is_flat = np.ptp(resamples) < ROUNDING
    if not widen and not is_flat:
        ends = np.clip(np.quantile(resamples, [1 - UPPER, UPPER]), low, high)
        return Estimate(value, float(ends[0]), float(ends[1]), error, degrees, resamples,
                        (low, high))  # fmt: skip
    scale = max(1.0, error / unbiased) if unbiased > 0 else 1.0
    terms = [] if is_flat else [(scale * math.sqrt(v), d) for v, d in variances]
    found = estimates.student_resamples(resamples, value, terms, (low, high))
    gold, rows, metric = sets[0]
    is_proportion = metric in metrics.PROPORTIONS and len(sets) == 1 and rows[0][0] == 1.0
    if is_proportion and len(rows) == 1 and (is_flat or len(variances) == 1):
        ends = estimates.wilson([(value, len(gold))])
        return dataclasses.replace(found, low=ends[0], high=ends[1])
    return found


def by_seed(sets: Sequence[DevSet]) -> np.ndarray:
    """Returns the weighted sum of scores, as in `mean_score`, of each pre-training seed: [P]."""
    found = np.zeros(1)
    for gold, rows, metric in sets:
        for weight, predicted in rows:
            runs = predicted.reshape(-1, len(gold))
            scores = metrics.METRICS[metric](gold, runs, np.ones(len(gold), int))
            found = found + weight * scores.reshape(predicted.shape[:2]).mean(axis=1) / len(sets)
    return found


def mean(found: Sequence[Estimate], *, same_runs: bool = False) -> Estimate:
    """Estimates the mean of several estimates, such as those of the tasks in a benchmark.

    Args:
      found: the estimates, all with R resamples. Resamples with the same index belong together.
      same_runs: whether they are metrics of the same runs, drawn with the same seed; else they are
        of different runs, drawn with different seeds.
    """
    num = len(found)
    moved = np.zeros(1)
    for estimate in found:  # the resamples' ranks as standard normal quantiles
        ranks = np.argsort(np.argsort(estimate.resamples, kind="stable"), kind="stable")
        normal = scipy.special.ndtri((ranks + 0.5) / len(ranks))
        varies = np.ptp(estimate.resamples) >= ROUNDING
        moved = moved + (normal if varies else 0 * normal) * estimate.standard_error / num
    value = float(np.mean([e.value for e in found]))
    low, high = (float(np.mean([e.bounds[end] for e in found])) for end in (0, 1))
    if same_runs:
        term = float(np.std(moved)), min(e.degrees for e in found)
    else:
        variances = [((e.standard_error / num) ** 2, e.degrees) for e in found]
        term = estimates.satterthwaite(variances)
    return estimates.student_resamples(moved, value, [term], (low, high))


def draw_seeds(
    rng: np.random.Generator, num_resamples: int, num_pretrain: int, num_finetune: int
) -> np.ndarray:
    """Draws weights [R, P, F] of runs, summing to 1 in each resample.

    The bootstrap has two stages: pre-trainings, then fine-tunings of each (Davison and Hinkley
    1997, 3.8).

    Args:
      rng: generator of the draws.
      num_resamples: R.
      num_pretrain: P, seeds of pre-training.
      num_finetune: F, seeds of fine-tuning of each.
    """
    outer = rng.multinomial(num_pretrain, np.full(num_pretrain, 1 / num_pretrain), num_resamples)
    even = np.full(num_finetune, 1 / num_finetune)
    drawn = rng.multinomial(outer * num_finetune, even)  # anew for every time p was drawn
    return drawn / (num_pretrain * num_finetune)


def _score_all(
    seed: int, gold: np.ndarray, rows: list[np.ndarray], metric: str, num_resamples: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Scores every run of each row: [P, F] at hand and [R, P, F] with resampled examples.

    Examples with equal gold and equal predictions are drawn as one group, weighted by its size. The
    distribution is the same, and two classes with five seeds have at most 64 groups.
    """
    rng = np.random.default_rng([seed, zlib.crc32(gold.tobytes())])
    runs = np.concatenate([row.reshape(-1, len(gold)) for row in rows])
    groups, counts = np.unique(np.vstack([gold[None], runs]), axis=1, return_counts=True)
    gold, runs = groups[0], groups[1:]
    function = metrics.METRICS[metric]
    at_hand = function(gold, runs, counts)
    apart = metric not in ("pearson", "spearman")
    chunk = max(1, CHUNK_OF_WEIGHTS // len(gold) if apart else CHUNK // runs.size)
    resampled = np.empty((num_resamples, len(runs)))
    for begin in range(0, num_resamples, chunk):
        size = min(chunk, num_resamples - begin)
        weights = rng.multinomial(counts.sum(), counts / counts.sum(), size)
        resampled[begin : begin + size] = function(gold, runs, weights)
    scores, begin = [], 0
    for num_pretrain, num_finetune, _ in (row.shape for row in rows):
        end, shape = begin + num_pretrain * num_finetune, (num_pretrain, num_finetune)
        own = resampled[:, begin:end].reshape(num_resamples, *shape)
        scores.append((at_hand[begin:end].reshape(shape), own))
        begin = end
    return scores
