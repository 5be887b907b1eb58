"""Observations 5 to 7: on losses, time, steps and batches. See hypotheses.py."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.optimize
import scipy.stats

from scalelab.lab.compare import contrasts
from scalelab.lab.compare.bootstrap import Estimate
from scalelab.lab.compare.claims import BELOW, Case, Claim, Finding, Region, claim
from scalelab.lab.compare.matched import TOLERANCE
from scalelab.lab.compare.summaries import LEVEL
from scalelab.lab.evidence.evidence import Evidence
from scalelab.lab.reading.study_runs import BASELINE
from scalelab.thesis import select
from scalelab.thesis.parts import MARGIN, SIMILAR, all_values, compare, make_finding, value
from scalelab.thesis.select import Row

RELIABLE = 0.9  # a rank correlation above it makes the loss a reliable indicator
LEAST_SHAPES = 4  # for a rank correlation
LARGER = 1.5  # ratio of N from which one net is the larger


def unreliable_loss(evidence: Evidence, score: str) -> Finding:
    """5: the validation loss is no reliable indicator of the fine-tuned score.

    Rows: of one system and one variant, those with both, four shapes at least. Claim: Spearman's
    correlation of the score with the negative loss over shapes, mean over such groups, is below
    RELIABLE. Noise lowers a rank correlation, so it must be lower, too, than noise makes it where
    the score follows the loss exactly: the scores' isotonic fit to the loss, with noise on both
    drawn as the intervals have it, gives the correlations to beat; p is the larger of the two
    tests'. The interval is that of the noisy correlation, rather too low. Refuted: it is above
    RELIABLE. Cases: pairs of shapes; the lower loss has not the higher score.
    """
    groups = [
        [r for r in rows if all(value(evidence, r, x) is not None for x in ("loss", score))]
        for rows in select.by_variant(evidence).values()
    ]
    cases = []
    for rows in groups:
        for i, a in enumerate(rows):
            for b in rows[:i]:
                gain = all_values(evidence, {a: 1.0, b: -1.0}, score)
                rise = all_values(evidence, {a: 1.0, b: -1.0}, "loss")
                if gain is not None and rise is not None:
                    cases.append(Case(f"{b.label} against {a.label}", gain * rise >= 0))
    made = _rank_claim(evidence, groups, score)
    return make_finding(
        evidence, "5", "The validation loss is no reliable indicator of the fine-tuned score.",
        f"their rank correlation over shapes is below {RELIABLE:g}, by more than noise makes it",
        [made], cases, score,
    )  # fmt: skip


def larger_for_less(evidence: Evidence, score: str) -> Finding:
    """6: at a fixed time, a larger net trained for fewer steps wins.

    Rows: of one system and one variant, with curves of validation loss against seconds. Claim: the
    loss of the larger minus that of the smaller net, N at least LARGER times as large, at the
    latest time at which all runs of both were validated at one maximum length, read off their
    curves by straight lines between evaluations; mean over such pairs, then over systems; is below
    0. Where all runs have equal seconds, that is their end. Of one system with a single
    pre-training of each net it is the mean over pairs that share no net, and the interval is over
    these. Cases: pairs. Where seconds are not equal, learning rates have not decayed equally far
    then: the smaller net's usually more, which is to the disadvantage of the statement.
    """
    del score
    groups = [_timed_pairs(evidence, rows) for rows in select.by_variant(evidence).values()]
    groups = [pairs for pairs in groups if pairs]
    cases = [
        Case(
            f"{pair.large.label} against {pair.small.label}",
            bool(pair.of_large.mean() < pair.of_small.mean()),
        )
        for pairs in groups
        for pair in pairs
    ]
    missing = "no curves of loss against seconds of two sizes in this study"
    what = "loss of the larger minus that of the smaller net at equal seconds"
    what += _where([pair for pairs in groups for pair in pairs])
    blocks = [_mean_of_pairs(pairs) for pairs in groups]
    if len(blocks) > 1:
        what += f", mean of {len(blocks)}"
    elif blocks and any(len(numbers) < 2 for _, numbers in blocks[0]):
        blocks = [_mean_of_pairs([pair]) for pair in _apart(groups[0])]
        what += f", mean of {len(blocks)} pairs"
    made = claim(what, BELOW, contrasts.of_numbers(blocks) if blocks else missing)
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
    gains = [
        (half, all_values(evidence, b, score)) for b, (_, half) in zip(blocks, pairs, strict=True)
    ]
    missing = "no baseline with its variant half_steps"
    return make_finding(
        evidence, "7a", "Twice the training steps gain little.",
        f"they change the score by less than {MARGIN:g}",
        [compare(evidence, "baseline minus half the steps", SIMILAR, blocks, score, missing)],
        [Case(row.label, SIMILAR.holds(gain)) for row, gain in gains if gain is not None], score,
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
    saved = [(half, all_values(evidence, b, "seconds"))
             for b, (_, half) in zip(blocks, pairs, strict=True)]  # fmt: skip
    what, missing = "baseline minus twice half the batch", "no baseline with its variant half_batch"
    return make_finding(
        evidence, "7b", "Twice the batch costs less time for each example.",
        "as many examples take fewer seconds in batches of twice the size",
        [compare(evidence, what, BELOW, blocks, "seconds", missing)],
        [Case(row.label, x < 0) for row, x in saved if x is not None], "seconds",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TimedPair:
    """A smaller and a larger net of one system at equal seconds.

    Attributes:
      small: the one.
      large: the other.
      secs: the time.
      length: maximum length of the validation examples.
      of_small: loss of each of its runs.
      of_large: likewise.
    """

    small: Row
    large: Row
    secs: float
    length: int
    of_small: np.ndarray
    of_large: np.ndarray


def _timed_pairs(evidence: Evidence, rows: Sequence[Row]) -> list[TimedPair]:
    """Smaller and larger nets of one system, with their losses at equal seconds."""
    timed = [row for row in rows if evidence.curves(row)]
    found = [_at_common_time(evidence, a, b) for a, b in select.growing(timed, LARGER)]
    return [pair for pair in found if pair is not None]


def _where(pairs: Sequence[TimedPair]) -> str:
    """At which times and lengths: " (55 to 104 s, length 128)"."""
    if not pairs:
        return ""
    ends = min(pair.secs for pair in pairs), max(pair.secs for pair in pairs)
    times = dict.fromkeys(f"{secs:,.0f}" for secs in ends)
    lengths = sorted({pair.length for pair in pairs})
    return f" ({' to '.join(times)} s, length {' or '.join(map(str, lengths))})"


def _mean_of_pairs(pairs: Sequence[TimedPair]) -> list[contrasts.Part]:
    """Larger minus smaller, mean over pairs: of each net, what its runs add to that."""
    parts: dict[Row, np.ndarray] = {}
    for pair in pairs:
        parts |= {pair.small: np.zeros(len(pair.of_small)),
                  pair.large: np.zeros(len(pair.of_large))}  # fmt: skip
    for pair in pairs:
        parts[pair.small] -= pair.of_small / len(pairs)
        parts[pair.large] += pair.of_large / len(pairs)
    return [(1.0, numbers.tolist()) for numbers in parts.values()]


def _apart(pairs: Sequence[TimedPair]) -> list[TimedPair]:
    """Pairs that share no net, each net with the next that is larger."""
    found: list[TimedPair] = []
    for pair in pairs:
        if not any(row in (p.small, p.large) for p in found for row in (pair.small, pair.large)):
            found.append(pair)
    return found


def _at_common_time(evidence: Evidence, small: Row, large: Row) -> TimedPair | None:
    """At the latest time at which all runs of both have a loss at one length; None: never."""
    sides = [evidence.curves(row) for row in (small, large)]
    runs = [run for side in sides for run in side]
    found = None
    for length in set.intersection(*(set(run) for run in runs)):
        secs = min(float(run[length][-1, 0]) for run in runs)
        began = max(float(run[length][0, 0]) for run in runs)
        # Runs of equal seconds may have one validation at the last length each, a moment apart.
        if began <= secs * (1 + TOLERANCE) and (found is None or secs > found[0]):
            found = secs, length
    if found is None:
        return None
    secs, length = found
    of_small, of_large = (
        np.array([np.interp(secs, *run[length].T) for run in side]) for side in sides
    )
    return TimedPair(small, large, secs, length, of_small, of_large)


def _rank_claim(evidence: Evidence, groups: Sequence[Sequence[Row]], score: str) -> Claim:
    """The claim of observation 5."""
    groups = [rows for rows in groups if len(rows) >= LEAST_SHAPES]
    what = f"rank correlation of {score} and negative loss over shapes"
    region = Region(-math.inf, RELIABLE)
    if not groups:
        missing = f"no system with loss and {score} of {LEAST_SHAPES} shapes in this study"
        return claim(what, region, missing)
    if len(groups) > 1:
        what += f", mean of {len(groups)}"
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
        return claim(what, region, contrasts.Contrast(effect, None, contrasts.ALONE))
    resamples, exact = (_mean(of) for of in (noisy, in_order))
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2])
    found = Estimate(effect, float(low), float(high), float(resamples.std()), math.inf, resamples)
    p_for, p_against = region.p_values(resamples)
    by_noise = 2 * float((exact <= effect + 1e-9).sum() + 1) / (len(exact) + 1)
    p_for = min(1.0, max(p_for, by_noise))
    return Claim(what, region, effect, found, contrasts.SEEDS, p_for, p_against)


def _mean(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Mean over groups of resamples [R], as many as all have."""
    num = min(map(len, groups))
    return np.mean([x[:num] for x in groups], axis=0)


def _spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's correlation of the rows of x and y, [R, k] each; 0 where one is constant."""
    one, two = (scipy.stats.rankdata(z, axis=1) for z in (x, y))
    one, two = (z - z.mean(axis=1, keepdims=True) for z in (one, two))
    scale = np.sqrt((one**2).sum(axis=1) * (two**2).sum(axis=1))
    return np.divide((one * two).sum(axis=1), scale, out=np.zeros(len(x)), where=scale > 0)
