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
Resamples are never moved closer. `widen=False` is the paper's. Moved resamples can leave the
metric's range, as with three examples; the ends of the interval are then those of the range.

Where seeds disagree on examples by chance alone, the joint resampling counts that noise more than
once (Owen 2007, "The pigeonhole bootstrap"): intervals are then too wide, tests too careful.
"""

import math
from collections.abc import Sequence

import numpy as np

from scalelab.lab.compare import resampling
from scalelab.lab.compare.resampling import Estimate


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
    predicted = resampling.check(gold, predicted, metric, design)
    rng = np.random.default_rng(seed)
    drawn = resampling.draw_seeds(rng, num_resamples, predicted, design)
    at_hand, (resampled,) = resampling.score_all(seed, gold, [predicted], metric, num_resamples)
    parts, limits = [(at_hand[0], resampled, drawn)], resampling.bounds(metric)
    return resampling.join(parts, len(gold), design, widen, limits)


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
    a, b = resampling.check(gold, a, metric, design), resampling.check(gold, b, metric, design)
    if paired and a.shape != b.shape:
        raise ValueError(f"paired seeds need as many runs of both, found {a.shape} and {b.shape}")
    rng = np.random.default_rng(seed)
    drawn = [resampling.draw_seeds(rng, num_resamples, x, design) for x in (a, b)]
    at_hand, resampled = resampling.score_all(seed, gold, [a, b], metric, num_resamples)
    if paired:
        parts = [(at_hand[1] - at_hand[0], resampled[1] - resampled[0], drawn[0])]
    else:
        parts = [(-at_hand[0], -resampled[0], drawn[0]), (at_hand[1], resampled[1], drawn[1])]
    limits = resampling.bounds(metric, (-1.0, 1.0))
    return resampling.join(parts, len(gold), design, widen, limits)


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
    flat = [
        (w / num, resampling.check(gold, x, metric, "nested")) for block in blocks for w, x in block
    ]
    rng = np.random.default_rng(seed)
    arrays = [x for _, x in flat]
    at_hand, resampled = resampling.score_all(seed, gold, arrays, metric, num_resamples)
    scored = [(w * a, w * r) for (w, _), a, r in zip(flat, at_hand, resampled, strict=True)]
    if all(len(x) > 1 for _, x in flat):
        parts = [(a, r, resampling.draw_seeds(rng, num_resamples, x, "nested"))
                 for (a, r), (_, x) in zip(scored, flat, strict=True)]  # fmt: skip
        return resampling.join(parts, len(gold), "nested", widen)
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
    return resampling.join([(a, r, drawn)], len(gold), "nested", widen)


def mean(estimates: Sequence[Estimate], *, same_runs: bool = False) -> Estimate:
    """The mean of several estimates, such as those of the tasks in a benchmark.

    Args:
      estimates: with as many resamples each. Resamples with the same number belong together.
      same_runs: whether they are metrics of the same runs, drawn with the same seed; else they are
        of different runs, drawn with different seeds.
    """
    num = len(estimates)
    apart = [(e.standard_error / num) ** 2 for e in estimates]
    variances = [(v, e.degrees) for v, e in zip(apart, estimates, strict=True)]
    degrees = resampling.satterthwaite(variances)[1]
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
    resamples = middle + moved * (resampling.quantile(degrees) / resampling.quantile(math.inf))
    low, high = (float(np.mean([e.bounds[end] for e in estimates])) for end in (0, 1))
    ends = resampling.interval(resamples, (low, high))
    return Estimate(value, *ends, error, degrees, resamples, (low, high))
