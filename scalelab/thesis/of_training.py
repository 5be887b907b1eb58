"""Observations 5 to 7 of the thesis as hypotheses: losses, time, steps and batches.

Docstrings are to be read as in hypotheses.py.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.optimize
import scipy.stats

from scalelab.lab.compare import estimates
from scalelab.lab.compare.claims import BELOW, Case, Claim, Finding, Region, claim
from scalelab.lab.compare.comparability import TOLERANCE
from scalelab.lab.compare.estimates import LEVEL, Estimate
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.compare.hypotheses import (
    Row,
    block_cases,
    build_claim,
    make_finding,
    value,
    weighted,
)
from scalelab.lab.load.study_runs import BASELINE
from scalelab.thesis import select
from scalelab.thesis.hypotheses import MARGIN, SIMILAR

RELIABLE = 0.9  # a rank correlation above it makes the loss a reliable indicator
LEAST_SHAPES = 4  # for a rank correlation
LARGER = 1.5  # ratio of N from which one net is the larger


def unreliable_loss(evidence: Evidence, score: str) -> Finding:
    """5: the validation loss is no reliable indicator of the fine-tuned score.

    Rows: of one system and one variant, those with both, four shapes at least. Claim: Spearman's
    correlation of the score with the negative loss over shapes, mean over such groups, is below
    RELIABLE. Noise lowers a rank correlation, so the claim asks for less than noise explains: the
    scores' isotonic fit to the loss, with noise on both as wide as their intervals, gives the
    correlations to beat; p is the larger of the two tests'. Refuted: the correlation is above
    RELIABLE. Cases: pairs of shapes; the lower loss has not the higher score.
    """
    groups = [
        [r for r in rows if all(value(evidence, r, x) is not None for x in ("loss", score))]
        for rows in select.by_variant(evidence).values()
    ]
    cases = []
    for a, b in ((a, b) for rows in groups for i, a in enumerate(rows) for b in rows[:i]):
        gain, rise = (weighted(evidence, {a: 1.0, b: -1.0}, x) for x in (score, "loss"))
        if gain is not None and rise is not None:
            cases.append(Case(f"{b.label} against {a.label}", gain * rise >= 0))
    return make_finding(
        evidence, "5", "The validation loss is no reliable indicator of the fine-tuned score.",
        f"their rank correlation over shapes is below {RELIABLE:g}, by more than noise makes it",
        [_rank_claim(evidence, groups, score)], cases, score,
    )  # fmt: skip


def larger_for_less(evidence: Evidence, score: str) -> Finding:
    """6: at a fixed time, a larger net trained for fewer steps wins.

    Rows: of one system and one variant, with curves of validation loss against seconds. Claim: the
    loss of the larger minus that of the smaller net, N at least LARGER times as large, is below 0,
    at the latest time at which all runs of both were validated at one maximum length, read off
    their curves by straight lines; mean over such pairs, then over systems. Where all runs have
    equal seconds, that is their end. Cases: pairs. Where seconds are not equal, the smaller net's
    learning rate has usually decayed further by then, to the disadvantage of the statement.
    """
    del score
    groups = [_timed_pairs(evidence, rows) for rows in select.by_variant(evidence).values()]
    groups = [pairs for pairs in groups if pairs]
    pairs = [pair for of in groups for pair in of]
    cases = [Case(f"{p.large.label} against {p.small.label}", p.mean_gain < 0) for p in pairs]
    what = "loss of the larger minus that of the smaller net at equal seconds"
    if pairs:
        times = dict.fromkeys(f"{f(p.secs for p in pairs):,.0f}" for f in (min, max))
        lengths = " or ".join(map(str, sorted({p.length for p in pairs})))
        what += f" ({' to '.join(times)} s, length {lengths})"
    if len(groups) > 1:
        what += f", mean of {len(groups)}"
    parts = [(1 / len(of) / len(groups), p.gains) for of in groups for p in of]
    found = estimates.contrast_numbers(parts) if parts else None
    missing = "no curves of loss against seconds of two sizes in this study"
    rows = [row for p in pairs for row in (p.small, p.large)]
    made = claim(what, BELOW, found or missing, evidence.untestable(rows, "loss") if rows else "")
    return make_finding(
        evidence, "6", "At a fixed time, a larger net trained for fewer steps wins.",
        "at the latest time that both reached at one length, the larger net has the lower"
        " validation loss",
        [made], cases, "seconds",
    )  # fmt: skip


def steps_gain_little(evidence: Evidence, score: str) -> Finding:
    """7a: twice the steps gain little.

    Rows: baselines with their variant "half_steps". Claim: baseline minus half the steps, mean over
    them, lies within the margin. Cases: the same.
    """
    pairs = select.by_variants(evidence, BASELINE, "half_steps")
    blocks = [{whole: 1.0, half: -1.0} for whole, half in pairs]
    missing = "no baseline with its variant half_steps"
    made = build_claim(evidence, "baseline minus half the steps", SIMILAR, blocks, score, missing)
    return make_finding(
        evidence, "7a", "Twice the training steps gain little.",
        f"they change the score by less than {MARGIN:g}",
        [made], block_cases(evidence, blocks, SIMILAR, score), score,
    )  # fmt: skip


def batch_saves_time(evidence: Evidence, score: str) -> Finding:
    """7b: twice the batch costs less time for each example.

    Rows: baselines with their variant "half_batch", which sees half as many examples in as many
    steps. Claim: seconds of the baseline minus twice those of half the batch, mean over them, are
    below 0. Cases: the same.
    """
    del score
    pairs = select.by_variants(evidence, BASELINE, "half_batch")
    blocks = [{whole: 1.0, half: -2.0} for whole, half in pairs]
    missing = "no baseline with its variant half_batch"
    made = build_claim(
        evidence, "baseline minus twice half the batch", BELOW, blocks, "seconds", missing
    )
    return make_finding(
        evidence, "7b", "Twice the batch costs less time for each example.",
        "as many examples take fewer seconds in batches of twice the size",
        [made], block_cases(evidence, blocks, BELOW, "seconds"), "seconds",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TimedPair:
    """A smaller and a larger net of one system at equal seconds.

    Attributes:
      small: row of the smaller net.
      large: row of the larger net.
      secs: the time.
      length: maximum length of the validation examples.
      gains: seed -> loss of the larger minus that of the smaller net.
    """

    small: Row
    large: Row
    secs: float
    length: int
    gains: Mapping[int, float]

    @property
    def mean_gain(self) -> float:
        """Mean over seeds."""
        return float(np.mean(list(self.gains.values())))


def _timed_pairs(evidence: Evidence, rows: Sequence[Row]) -> list[TimedPair]:
    """Returns smaller and larger nets of one system, with their losses at equal seconds."""
    timed = [row for row in rows if evidence.curves(row)]
    found = [_at_common_time(evidence, a, b) for a, b in select.growing(timed, LARGER)]
    return [pair for pair in found if pair is not None]


def _at_common_time(evidence: Evidence, small: Row, large: Row) -> TimedPair | None:
    """Returns two nets at the latest time at which all runs of both have a loss at one length."""
    sides = [evidence.curves(row) for row in (small, large)]
    runs = [run for side in sides for run in side.values()]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    found: tuple[float, int] | None = None
    for length in set.intersection(*(set(run) for run in runs)):
        secs = min(float(run[length][-1, 0]) for run in runs)
        began = max(float(run[length][0, 0]) for run in runs)
        # Runs of equal seconds may have one validation at the last length each, a moment apart.
        if began <= secs * (1 + TOLERANCE) and (found is None or secs > found[0]):
            found = secs, length
    if found is None or not seeds:
        return None
    secs, length = found
    losses = [{s: float(np.interp(secs, *side[s][length].T)) for s in seeds} for side in sides]
    return TimedPair(small, large, secs, length, {s: losses[1][s] - losses[0][s] for s in seeds})


def _rank_claim(evidence: Evidence, groups: Sequence[Sequence[Row]], score: str) -> Claim:
    """Makes the claim of observation 5."""
    groups = [rows for rows in groups if len(rows) >= LEAST_SHAPES]
    what = f"rank correlation of {score} and negative loss over shapes"
    region = Region(-math.inf, RELIABLE)
    if not groups:
        missing = f"no system with loss and {score} of {LEAST_SHAPES} shapes in this study"
        return claim(what, region, missing)
    if len(groups) > 1:
        what += f", mean of {len(groups)}"
    untestable = evidence.untestable([row for rows in groups for row in rows], score)
    at_hand, noisy, in_order = [], [], []
    for rows in groups:
        loss = [x for row in rows if (x := evidence.value(row, "loss"))]
        scores = [x for row in rows if (x := evidence.value(row, score))]
        x, y = (np.array([e.value for e in of]) for of in (loss, scores))
        at_hand.append(float(_spearman(-x[None], y[None])[0]))
        if not all(len(e.resamples) for e in (*loss, *scores)):
            continue
        num = min(len(e.resamples) for e in (*loss, *scores))
        chance = [np.stack([e.resamples[:num] - e.value for e in of], axis=1)
                  for of in (loss, scores)]  # fmt: skip
        noisy.append(_spearman(-(x + chance[0]), y + chance[1]))
        order = np.argsort(-x)
        ideal = np.empty_like(y)
        ideal[order] = scipy.optimize.isotonic_regression(y[order]).x
        in_order.append(_spearman(-(x + chance[0]), ideal + chance[1]))
    effect = float(np.mean(at_hand))
    if len(noisy) < len(groups):
        alone = estimates.Contrast(effect, None, estimates.ALONE)
        return claim(what, region, alone, untestable)
    resamples, exact = (_mean(of) for of in (noisy, in_order))
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2])
    found = Estimate(effect, float(low), float(high), float(resamples.std()), math.inf, resamples)
    made = claim(what, region, estimates.Contrast(effect, found, estimates.SEEDS), untestable)
    by_noise = 2 * float((exact <= effect + 1e-9).sum() + 1) / (len(exact) + 1)
    return dataclasses.replace(made, p_for=min(1.0, max(made.p_for or 0.0, by_noise)))


def _mean(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean over groups of resamples [R], as many as all have."""
    num = min(map(len, groups))
    return np.mean([x[:num] for x in groups], axis=0)


def _spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns Spearman's correlation of the rows of x and y, [R, k]; 0 where one is constant."""
    one, two = (scipy.stats.rankdata(z, axis=1) for z in (x, y))
    one, two = (z - z.mean(axis=1, keepdims=True) for z in (one, two))
    scale = np.sqrt((one**2).sum(axis=1) * (two**2).sum(axis=1))
    return np.divide((one * two).sum(axis=1), scale, out=np.zeros(len(x)), where=scale > 0)
