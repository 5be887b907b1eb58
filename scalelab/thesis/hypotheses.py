"""Statements that a study confirms or refutes: the seven observations of the benchmark's thesis.

And f1 to f5, on objective and format, which the thesis leaves open.

`evaluate` holds them against a study, or against the published tables. Each statement is a function
here or in of_*.py, whose docstring says which rows enter, what is compared, and what makes it
confirmed or refuted; what is neither is undecided, with the reason. Tests, intervals and Holm's
correction are as claims.py says: claims are few, means over all shapes or systems that enter; in
how many single cases a statement holds is counted beside them, without test.

Unless a docstring says otherwise: rows are of the baseline variant; the score is GLUE-Large; the
statement is confirmed if all its claims are, and refuted if one of them is.
"""

import itertools
from collections.abc import Callable, Iterable

from scalelab.helpers.names import nearest
from scalelab.lab.compare.claims import (
    ABOVE,
    ANY,
    BELOW,
    MOST,
    Case,
    Claim,
    Finding,
    Region,
    decide,
)
from scalelab.lab.evidence.evidence import Evidence
from scalelab.thesis import of_formats, of_shapes, of_training, select
from scalelab.thesis.parts import (
    DIMENSIONS,
    MARGIN,
    SIMILAR,
    Blocks,
    all_values,
    block_cases,
    compare,
    make_finding,
    value,
)
from scalelab.thesis.select import Row

# The systems of the thesis by what they are trained on.
MLM_NSP, MLM, CLM = "bert", "roberta", "gpt2"
COLA_MARGIN = Region(-0.05, 0.05)  # Matthews' correlation on 1,043 sentences has an error of 0.03


def evaluate(
    evidence: Evidence, ids: Iterable[str] | None = None, *, score: str = "large"
) -> list[Finding]:
    """Holds statements against the evidence.

    Args:
      evidence: a study's scores, or published.evidence().
      ids: of statements, such as "1a" or "f1", or of observations, such as "2" for all of 2a to
        2d; None: all.
      score: to use instead of GLUE-Large, a name in evidence.SCORES.

    Returns:
      A finding for each, in the order of the thesis; Holm's correction is over all their claims.

    Raises:
      ValueError: an unknown id or score.
    """
    chosen = list(HYPOTHESES) if ids is None else [x for name in ids for x in _named(name)]
    findings = [HYPOTHESES[name](evidence, score) for name in HYPOTHESES if name in chosen]
    return decide(findings, counts_only=evidence.counts_only)


def names() -> list[str]:
    """What `ids` may name: statements, and observations."""
    return list(dict.fromkeys([*HYPOTHESES, *(x.rstrip("abcd") for x in HYPOTHESES)]))


def _named(name: str) -> list[str]:
    """Statements of an id, or of an observation."""
    found = [x for x in HYPOTHESES if x == name or x.rstrip("abcd") == name]
    if not found:
        raise ValueError(f"no hypothesis {name!r}: {nearest(name, names())}")
    return found


def best_objective(evidence: Evidence, score: str) -> Finding:
    """1a: MLM with NSP does best on sentence-pair tasks.

    Rows: shapes that two systems share. Claims: bert minus roberta and bert minus gpt2, means over
    shapes, are above 0. Cases: shapes that all three share; bert has the highest score.
    """
    cases = _ranked(evidence, score, lambda v: v[MLM_NSP] > max(v[MLM], v[CLM]))
    return make_finding(
        evidence, "1a", "Pre-training on MLM with NSP does best on sentence-pair tasks.",
        "bert is above roberta and above gpt2 in the mean over shapes",
        [_apart(evidence, MLM_NSP, MLM, score), _apart(evidence, MLM_NSP, CLM, score)],
        cases, score,
    )  # fmt: skip


def worst_objective(evidence: Evidence, score: str) -> Finding:
    """1b: CLM in general does worst.

    Rows as in 1a. Claims: bert minus gpt2 and roberta minus gpt2, means over shapes, are above 0.
    Cases: shapes that all three share; gpt2 has the lowest score.
    """
    cases = _ranked(evidence, score, lambda v: v[CLM] < min(v[MLM_NSP], v[MLM]))
    return make_finding(
        evidence, "1b", "Pre-training on CLM in general does worst.",
        "gpt2 is below bert and below roberta in the mean over shapes",
        [_apart(evidence, MLM_NSP, CLM, score), _apart(evidence, MLM, CLM, score)],
        cases, score,
    )  # fmt: skip


def growth(evidence: Evidence, score: str) -> Finding:
    """2a: the score grows when width, or depth, grows alone.

    Rows: of each system the longest ladder of one dimension. Claims, one a dimension: largest minus
    smallest row, mean over systems, is above 0. Cases: systems and dimensions, of which most count.
    """
    claims, cases = [], []
    for name in DIMENSIONS:
        blocks = _ends(evidence, name)
        what = f"largest minus smallest {name}"
        claims.append(compare(evidence, what, ABOVE, blocks, score, f"no ladder of {name}"))
        cases += block_cases(evidence, blocks, ABOVE, score, name)
    return make_finding(
        evidence, "2a", "In most cases the score grows when width or depth grows alone.",
        "the ladders' largest rows are above their smallest, in width and in depth",
        claims, cases, score, needs=MOST,
    )  # fmt: skip


def saturation(evidence: Evidence, score: str) -> Finding:
    """2b: it grows up to a level.

    Rows: ladders of three or more. Claims, one a dimension: the gain per doubling of N of the last
    step minus that of the first, mean over systems, is below 0. Cases: systems and dimensions.
    """
    claims, cases = [], []
    for name, dimension in DIMENSIONS.items():
        blocks = []
        for rows in select.baselines(evidence).values():
            steps = select.ladder(rows, dimension)
            if len(steps) > 2:
                blocks.append(_slowing(steps))
        what = f"gain per doubling of N, last minus first step of {name}"
        missing = f"no ladder of three in {name}"
        claims.append(compare(evidence, what, BELOW, blocks, score, missing))
        cases += block_cases(evidence, blocks, BELOW, score, name)
    return make_finding(
        evidence, "2b", "That growth ends at a level: the last step gains less than the first.",
        "the last step gains less for each doubling of N, in width and in depth",
        claims, cases, score,
    )  # fmt: skip


def different_growth(evidence: Evidence, score: str) -> Finding:
    """2c: how it grows depends on the objective.

    Rows: ladder shapes that two systems share. Claims, one a dimension and pair of systems: the
    growth of one minus that of the other lies beyond the margin. Confirmed if one of them is,
    refuted if all are. Cases: the same.
    """
    outside = Region(SIMILAR.low, SIMILAR.high, outside=True)
    of_system = select.baselines(evidence)
    claims, cases = [], []
    for name, dimension in DIMENSIONS.items():
        for a, b in itertools.combinations((MLM_NSP, MLM, CLM), 2):
            block = _growth_apart(of_system.get(a, []), of_system.get(b, []), dimension)
            what = f"growth with {name}, {a} minus {b}"
            missing = f"no ladder of {name} that both have"
            claims.append(compare(evidence, what, outside, block, score, missing))
            if claims[-1].effect is not None:
                cases.append(Case(what, outside.holds(claims[-1].effect)))
    return make_finding(
        evidence, "2c", "How the score grows depends on the objective.",
        f"two systems' growths differ by more than {MARGIN:g}, in one comparison at least",
        claims, cases, score, needs=ANY,
    )  # fmt: skip


def growth_of_cola(evidence: Evidence, score: str) -> Finding:
    """2d: CoLA grows with width alone.

    Rows as in 2a, whatever the score asked for it is CoLA's. Claims, means over systems: largest
    minus smallest width is above 0; largest minus smallest depth lies within the margin. Cases:
    systems with both ladders.
    """
    del score
    blocks = {name: _ends(evidence, name) for name in DIMENSIONS}
    claims = [
        compare(evidence, f"largest minus smallest {name}", region, blocks[name], "cola",
                f"no ladder of {name}")
        for name, region in (("width", ABOVE), ("depth", COLA_MARGIN))
    ]  # fmt: skip
    cases = []
    wide, deep = ({next(iter(b)).system: b for b in blocks[name]} for name in DIMENSIONS)
    for system in wide:
        if system in deep:
            gains = [all_values(evidence, b, "cola") for b in (wide[system], deep[system])]
            if gains[0] is not None and gains[1] is not None:
                holds = ABOVE.holds(gains[0]) and COLA_MARGIN.holds(gains[1])
                cases.append(Case(system, holds))
    return make_finding(
        evidence, "2d", "On CoLA the score grows with width alone.",
        f"it grows with width, and with depth changes by less than {COLA_MARGIN.high:g}",
        claims, cases, "cola",
    )  # fmt: skip


HYPOTHESES: dict[str, Callable[[Evidence, str], Finding]] = {
    "1a": best_objective,
    "1b": worst_objective,
    "2a": growth,
    "2b": saturation,
    "2c": different_growth,
    "2d": growth_of_cola,
    "3": of_shapes.several_dimensions,
    "4a": of_shapes.similar_shapes,
    "4b": of_shapes.heads_follow_width,
    "5": of_training.unreliable_loss,
    "6": of_training.larger_for_less,
    "7a": of_training.steps_gain_little,
    "7b": of_training.batch_saves_time,
    "f1": of_formats.gain_of_nsp,
    "f2": of_formats.gain_of_pairs,
    "f3": of_formats.gain_of_pairs_unique,
    "f4": of_formats.gain_of_both,
    "f5": of_formats.gain_of_both_sides,
}


def _apart(evidence: Evidence, a: str, b: str, score: str) -> Claim:
    """Whether A is above B in the mean over the shapes that both have."""
    blocks = [{of[a]: 1.0, of[b]: -1.0} for of in select.by_shape(evidence, (a, b))]
    return compare(evidence, f"{a} minus {b}", ABOVE, blocks, score, "no shape that both have")


def _ranked(
    evidence: Evidence, score: str, holds: Callable[[dict[str, float]], bool]
) -> list[Case]:
    """The shapes that all three systems have a score for, and whether `holds` says so of them."""
    cases = []
    for of in select.by_shape(evidence, (MLM_NSP, MLM, CLM)):
        found = {name: value(evidence, row, score) for name, row in of.items()}
        values = {name: x for name, x in found.items() if x is not None}
        if len(values) == len(found):
            cases.append(Case(str(of[CLM].shape), holds(values)))
    return cases


def _ends(evidence: Evidence, name: str) -> Blocks:
    """Of each system the largest row of its ladder minus the smallest."""
    found = (select.ladder(rows, DIMENSIONS[name]) for rows in select.baselines(evidence).values())
    return [{steps[-1]: 1.0, steps[0]: -1.0} for steps in found if steps]


def _slowing(steps: list[Row]) -> dict[Row, float]:
    """Gain per doubling of N in the last step of a ladder minus that in the first."""
    weights = dict.fromkeys((steps[0], steps[1], steps[-2], steps[-1]), 0.0)
    for sign, a, b in ((-1.0, steps[0], steps[1]), (1.0, steps[-2], steps[-1])):
        per_doubling = sign / select.doublings(a, b)
        weights[b] += per_doubling
        weights[a] -= per_doubling
    return weights


def _growth_apart(a: list[Row], b: list[Row], dimension: str) -> Blocks:
    """Growth of A minus that of B, between the ends of what their ladders share."""
    one, two = ({r.shape: r for r in select.ladder(rows, dimension)} for rows in (a, b))
    shared = [shape for shape in one if shape in two]
    if len(shared) < 2:
        return []
    low, high = shared[0], shared[-1]
    return [{one[high]: 1.0, one[low]: -1.0, two[high]: -1.0, two[low]: 1.0}]
