"""Observations 5 and 6 of the thesis as hypotheses: losses against scores, losses at equal time.

Docstrings follow the conventions of hypotheses.py.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.stats

from scalelab.lab.compare import estimates
from scalelab.lab.compare.claims import BELOW, Claim, Finding, Region, claim
from scalelab.lab.compare.comparability import TOLERANCE
from scalelab.lab.compare.estimates import LEVEL, Estimate
from scalelab.lab.compare.hypotheses import value, weighted
from scalelab.lab.compare.scores import Row, Scores
from scalelab.thesis import select
from scalelab.thesis.counts import SCORE, Case, make_finding

RELIABLE = 0.9  # a rank correlation above it makes the loss a reliable indicator
LEAST_SHAPES = 4  # minimum number of shapes for a rank correlation
LARGER = 1.5  # minimum ratio of N of a larger and a smaller model


def unreliable_loss(scores: Scores) -> Finding:
    """Tests 5: the validation loss is not a reliable indicator of the fine-tuned score.

    A group is the rows of one system and variant with loss and score, at least four shapes. The
    claim is that Spearman's correlation of score and negative loss, mean over groups, is below
    RELIABLE. Noise alone lowers a rank correlation. So the correlation must also be below the
    values under noise: scores from their isotonic fit to the loss, with noise of the intervals'
    width added to both. p is the larger p of the two tests. Refuted if the correlation is above
    RELIABLE. A case is a pair of shapes; it holds if the lower loss does not have the higher score.
    """
    groups = [
        [r for r in rows if all(value(scores, r, x) is not None for x in ("loss", SCORE))]
        for rows in select.by_variant(scores).values()
    ]
    cases = []
    for b, a in (pair for rows in groups for pair in itertools.combinations(rows, 2)):
        gain, rise = (weighted(scores, {a: 1.0, b: -1.0}, x) for x in (SCORE, "loss"))
        if gain is not None and rise is not None:
            cases.append(Case(f"{b.label} against {a.label}", gain * rise >= 0))
    return make_finding(
        scores, "5", "The validation loss is no reliable indicator of the fine-tuned score.",
        f"their rank correlation over shapes is below {RELIABLE:g}, by more than noise makes it",
        [_rank_claim(scores, groups)], cases, SCORE,
    )  # fmt: skip


def _rank_claim(scores: Scores, groups: Sequence[Sequence[Row]]) -> Claim:
    """Makes the claim of observation 5."""
    groups = [rows for rows in groups if len(rows) >= LEAST_SHAPES]
    what = f"rank correlation of {SCORE} and negative loss over shapes"
    region = Region(-math.inf, RELIABLE)
    if not groups:
        missing = f"no system with loss and {SCORE} of {LEAST_SHAPES} shapes in this study"
        return claim(what, region, missing)
    what += f", mean of {len(groups)}" * (len(groups) > 1)
    checks = scores.check_treatment([row for rows in groups for row in rows], SCORE)
    at_hand, noisy, in_order = [], [], []
    for rows in groups:
        losses, tuned = (
            [e for row in rows if (e := scores.value(row, name))] for name in ("loss", SCORE)
        )
        x, y = (np.array([e.value for e in own]) for own in (losses, tuned))
        at_hand.append(float(_spearman(-x[None], y[None])[0]))
        num = min(len(e.resamples) for e in (*losses, *tuned))
        noise = [np.stack([e.resamples[:num] - e.value for e in own], axis=1)
                 for own in (losses, tuned)]  # fmt: skip
        order = np.argsort(-x)
        ideal = np.empty_like(y)
        ideal[order] = scipy.optimize.isotonic_regression(y[order]).x
        noisy.append(_spearman(-(x + noise[0]), y + noise[1]))
        in_order.append(_spearman(-(x + noise[0]), ideal + noise[1]))
    effect, num = float(np.mean(at_hand)), min(map(len, noisy))
    if not num:
        return claim(what, region, estimates.without_interval(effect), checks)
    resamples, exact = (np.mean([x[:num] for x in own], axis=0) for own in (noisy, in_order))
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2])
    found = Estimate(effect, float(low), float(high), float(resamples.std()), math.inf, resamples)
    made = claim(what, region, found, checks)
    by_noise = 2 * float((exact <= effect + 1e-9).sum() + 1) / (len(exact) + 1)
    return dataclasses.replace(made, p_for=min(1.0, max(made.p_for or 0.0, by_noise)))


def _spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns Spearman's correlation of the rows of x and y [R, k]: [R]; 0 if one is constant."""
    ranks = (scipy.stats.rankdata(z, axis=1) for z in (x, y))
    x, y = (z - z.mean(axis=1, keepdims=True) for z in ranks)
    scale = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.divide((x * y).sum(axis=1), scale, out=np.zeros(len(x)), where=scale > 0)


def larger_for_less(scores: Scores) -> Finding:
    """Tests 6: at a fixed time, a larger model trained for fewer steps wins.

    A pair is two rows of one system and variant with curves of validation loss against seconds; one
    has at least LARGER times the other's N. The claim is that the larger model's loss minus the
    smaller model's loss is below 0, mean over pairs, then over systems. Losses are interpolated at
    the latest time at which all runs of both have a validation at one maximum length. With equal
    seconds this is the end of the runs. With unequal seconds the smaller model's learning rate has
    usually decayed further, which is a disadvantage for the hypothesis. Cases are the pairs.
    """
    groups = []
    for rows in select.by_variant(scores).values():
        timed = sorted((r for r in rows if scores.curves(r)), key=lambda r: r.shape.n_model)
        found = [_at_common_time(scores, a, b) for a, b in itertools.combinations(timed, 2)
                 if b.shape.n_model >= LARGER * a.shape.n_model]  # fmt: skip
        groups.append([pair for pair in found if pair is not None])
    groups = [own for own in groups if own]
    pairs = [pair for own in groups for pair in own]
    cases = [Case(f"{p.large.label} against {p.small.label}", np.mean([*p.gains.values()]) < 0)
             for p in pairs]  # fmt: skip
    what = "loss of the larger minus that of the smaller model at equal seconds"
    if pairs:
        times = dict.fromkeys(f"{f(p.secs for p in pairs):,.0f}" for f in (min, max))
        lengths = " or ".join(map(str, sorted({p.length for p in pairs})))
        what += f" ({' to '.join(times)} s, length {lengths})"
        what += f", mean of {len(groups)}" * (len(groups) > 1)
    parts = [(1 / len(own) / len(groups), p.gains) for own in groups for p in own]
    seeds = set.intersection(*(set(gains) for _, gains in parts)) if parts else set[int]()
    sums = [sum(weight * gains[s] for weight, gains in parts) for s in sorted(seeds)]
    missing = "no curves of loss against seconds of two sizes in this study"
    found = estimates.student(sums) if sums else missing
    rows = [row for p in pairs for row in (p.small, p.large)]
    made = claim(what, BELOW, found, scores.check_treatment(rows, "loss"))
    return make_finding(
        scores, "6", "At a fixed time, a larger model trained for fewer steps wins.",
        "at the latest time that both reached at one length, the larger model has the lower"
        " validation loss",
        [made], cases, "seconds",
    )  # fmt: skip


class TimedPair(NamedTuple):
    """Two models at equal seconds; gains by seed: the larger model's loss minus the smaller's."""

    small: Row
    large: Row
    secs: float
    length: int
    gains: Mapping[int, float]


def _at_common_time(scores: Scores, small: Row, large: Row) -> TimedPair | None:
    """Compares two models at the latest time when all runs of both have a loss at one length."""
    sides = [scores.curves(row) for row in (small, large)]
    runs = [run for side in sides for run in side.values()]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    found: list[tuple[float, int]] = []
    for length in set.intersection(*(set(run) for run in runs)):
        secs = min(float(run[length][-1, 0]) for run in runs)
        began = max(float(run[length][0, 0]) for run in runs)
        # Runs of equal seconds may have one validation at the last length each, a moment apart.
        if began <= secs * (1 + TOLERANCE):
            found.append((secs, length))
    if not found or not seeds:
        return None
    secs, length = max(found)
    losses = [{s: float(np.interp(secs, *side[s][length].T)) for s in seeds} for side in sides]
    return TimedPair(small, large, secs, length, {s: losses[1][s] - losses[0][s] for s in seeds})
