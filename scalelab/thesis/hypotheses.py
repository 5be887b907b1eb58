"""Observations 1 to 4 of the thesis as hypotheses: objectives, growth, and shapes of equal size.

Each function's docstring says which rows enter, what is compared, and what confirms or refutes the
statement; otherwise it is undecided, or not testable. Claims are few, means over all shapes or
systems that enter; single cases are counted beside them without a test.

Unless a docstring says otherwise: rows are of the baseline variant, the score is GLUE-Large, and
the statement is confirmed if all its claims are and refuted if one of them is.
"""

import itertools
from collections.abc import Callable

from scalelab.lab.compare.claims import ABOVE, ANY, BELOW, MOST, Case, Claim, Finding, Region
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.compare.hypotheses import (
    Block,
    Row,
    block_cases,
    build_claim,
    make_finding,
    value,
    weighted,
)
from scalelab.thesis import select

# The systems of the thesis by what they are trained on.
MLM_NSP, MLM, CLM = "bert", "roberta", "gpt2"
MARGIN = 0.02  # of a score: about what a doubling of N brings at the upper end of Table 7.3
SIMILAR = Region(-MARGIN, MARGIN)
COLA_MARGIN = Region(-0.05, 0.05)  # Matthews' correlation on 1,043 sentences has an error of 0.03
DIMENSIONS = {"width": "width", "depth": "num_layers"}  # of a shape, in words and as fields


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
        claims.append(build_claim(evidence, what, ABOVE, blocks, score, f"no ladder of {name}"))
        cases += block_cases(evidence, blocks, ABOVE, score, name)
    return make_finding(
        evidence, "2a", "In most cases the score grows when width or depth grows alone.",
        "the ladders' largest rows are above their smallest, in width and in depth",
        claims, cases, score, needs=MOST,
    )  # fmt: skip


def saturation(evidence: Evidence, score: str) -> Finding:
    """2b: that growth ends at a level.

    Rows: ladders of three or more. Claims, one a dimension: the gain per doubling of N of the last
    step minus that of the first, mean over systems, is below 0. Cases: systems and dimensions.
    """
    claims, cases = [], []
    for name, dimension in DIMENSIONS.items():
        ladders = [select.ladder(r, dimension) for r in select.baselines(evidence).values()]
        blocks = [_slowing(steps) for steps in ladders if len(steps) > 2]
        what = f"gain per doubling of N, last minus first step of {name}"
        missing = f"no ladder of three in {name}"
        claims.append(build_claim(evidence, what, BELOW, blocks, score, missing))
        cases += block_cases(evidence, blocks, BELOW, score, name)
    return make_finding(
        evidence, "2b", "That growth ends at a level: the last step gains less than the first.",
        "the last step gains less for each doubling of N, in width and in depth",
        claims, cases, score,
    )  # fmt: skip


def different_growth(evidence: Evidence, score: str) -> Finding:
    """2c: how the score grows depends on the objective.

    Rows: ladder shapes that two systems share. Claims, one a dimension and pair of systems: the
    growth of one minus that of the other lies beyond the margin. Confirmed if one of them is,
    refuted if all are. Cases: the same.
    """
    outside = Region(SIMILAR.low, SIMILAR.high, outside=True)
    of_system = select.baselines(evidence)
    claims, cases = [], []
    for name, dimension in DIMENSIONS.items():
        for a, b in itertools.combinations((MLM_NSP, MLM, CLM), 2):
            blocks = _growth_apart(of_system.get(a, []), of_system.get(b, []), dimension)
            what = f"growth with {name}, {a} minus {b}"
            missing = f"no ladder of {name} that both have"
            claims.append(build_claim(evidence, what, outside, blocks, score, missing))
            if claims[-1].effect is not None:
                cases.append(Case(what, outside.holds(claims[-1].effect)))
    return make_finding(
        evidence, "2c", "How the score grows depends on the objective.",
        f"two systems' growths differ by more than {MARGIN:g}, in one comparison at least",
        claims, cases, score, needs=ANY,
    )  # fmt: skip


def growth_of_cola(evidence: Evidence, score: str) -> Finding:
    """2d: CoLA grows with width alone.

    Rows as in 2a; the score is always CoLA's. Claims, means over systems: largest minus smallest
    width is above 0; largest minus smallest depth lies within the margin. Cases: systems with both
    ladders.
    """
    del score
    blocks = {name: _ends(evidence, name) for name in DIMENSIONS}
    claims = [
        build_claim(evidence, f"largest minus smallest {name}", region, blocks[name], "cola",
                    f"no ladder of {name}")
        for name, region in (("width", ABOVE), ("depth", COLA_MARGIN))
    ]  # fmt: skip
    wide, deep = ({next(iter(b)).system: b for b in blocks[name]} for name in DIMENSIONS)
    cases = []
    for system in wide.keys() & deep.keys():
        gains = [weighted(evidence, b, "cola") for b in (wide[system], deep[system])]
        if gains[0] is not None and gains[1] is not None:
            cases.append(Case(system, ABOVE.holds(gains[0]) and COLA_MARGIN.holds(gains[1])))
    return make_finding(
        evidence, "2d", "On CoLA the score grows with width alone.",
        f"it grows with width, and with depth changes by less than {COLA_MARGIN.high:g}",
        claims, cases, "cola",
    )  # fmt: skip


def several_dimensions(evidence: Evidence, score: str) -> Finding:
    """3: at equal N, growing several dimensions beats growing one.

    Rows: of each system those in neither ladder, each with the ladders' row of equal N and A.
    Claims, means over these pairs: balanced minus wide, balanced minus deep, are above 0. Cases:
    balanced rows; they beat each of their partners.
    """
    pairs = {
        name: [pair for rows in select.baselines(evidence).values()
               for pair in select.balanced(rows, dimension)]
        for name, dimension in DIMENSIONS.items()
    }  # fmt: skip
    claims = [
        build_claim(
            evidence, f"width and depth grown minus {name} alone", ABOVE,
            [{both: 1.0, single: -1.0} for single, both in pairs[name]], score,
            f"no row of equal N that has grown in both, beside one grown in {name}",
        )
        for name in DIMENSIONS
    ]  # fmt: skip
    partners: dict[Row, list[Row]] = {}
    for single, both in itertools.chain.from_iterable(pairs.values()):
        partners.setdefault(both, []).append(single)
    cases = []
    for both, singles in partners.items():
        found = [weighted(evidence, {both: 1.0, single: -1.0}, score) for single in singles]
        gains = [gain for gain in found if gain is not None]
        if len(gains) == len(found):
            cases.append(Case(both.label, min(gains) > 0))
    return make_finding(
        evidence, "3", "At equal N, growing several dimensions beats growing one.",
        "rows grown in both are above the wide ones and above the deep ones",
        claims, cases, score,
    )  # fmt: skip


def similar_shapes(evidence: Evidence, score: str) -> Finding:
    """4a: at equal N, scores are similar over a wide range of shapes, if A follows H.

    Rows: of one system and one variant, those with a score, in groups of equal N and different L,
    heads at most select.WIDEST_HEAD wide. Claim: widest minus deepest row, mean over groups, lies
    within the margin: its 95% interval does. Cases: pairs of rows of a group.
    """
    groups = [of for rows in _scored(evidence, score) for of in select.equal_sizes(rows)]
    found = build_claim(
        evidence, "widest minus deepest shape of equal N", SIMILAR,
        [{of[-1]: 1.0, of[0]: -1.0} for of in groups], score,
        f"no two shapes of equal N and other L whose heads are at most {select.WIDEST_HEAD} wide",
    )  # fmt: skip
    pairs = [{b: 1.0, a: -1.0} for of in groups for a, b in itertools.combinations(of, 2)]
    return make_finding(
        evidence, "4a", "At equal N scores are similar over many shapes, if A follows H.",
        f"the widest and the deepest shape differ by less than {MARGIN:g}",
        [found], block_cases(evidence, pairs, SIMILAR, score), score,
    )  # fmt: skip


def heads_follow_width(evidence: Evidence, score: str) -> Finding:
    """4b: a wide net gains from more heads.

    Rows: of one system and one variant, pairs of equal H and L, of which one has heads wider than
    select.WIDEST_HEAD. Claim: more minus fewer heads, mean over pairs, is above 0. Cases: pairs.
    """
    pairs = [p for rows in _scored(evidence, score) for p in select.more_heads(rows)]
    blocks = [{more: 1.0, fewer: -1.0} for fewer, more in pairs]
    missing = f"no wide net both with and without heads wider than {select.WIDEST_HEAD}"
    return make_finding(
        evidence, "4b", "A wide net gains when the number of heads follows its width.",
        "with more heads the score of the same H and L is higher",
        [build_claim(evidence, "more minus fewer heads", ABOVE, blocks, score, missing)],
        block_cases(evidence, blocks, ABOVE, score), score,
    )  # fmt: skip


def _apart(evidence: Evidence, a: str, b: str, score: str) -> Claim:
    """Claims that A is above B in the mean over the shapes that both have."""
    blocks = [{of[a]: 1.0, of[b]: -1.0} for of in select.by_shape(evidence, (a, b))]
    return build_claim(evidence, f"{a} minus {b}", ABOVE, blocks, score, "no shape that both have")


def _ranked(
    evidence: Evidence, score: str, holds: Callable[[dict[str, float]], bool]
) -> list[Case]:
    """Makes a case of each shape that all three systems have a score for."""
    cases = []
    for of in select.by_shape(evidence, (MLM_NSP, MLM, CLM)):
        found = {name: value(evidence, row, score) for name, row in of.items()}
        values = {name: x for name, x in found.items() if x is not None}
        if len(values) == len(found):
            cases.append(Case(str(of[CLM].shape), holds(values)))
    return cases


def _ends(evidence: Evidence, name: str) -> list[Block]:
    """Returns, for each system, the largest row of its ladder minus the smallest."""
    rows = select.baselines(evidence).values()
    ladders = [select.ladder(of_system, DIMENSIONS[name]) for of_system in rows]
    return [{steps[-1]: 1.0, steps[0]: -1.0} for steps in ladders if steps]


def _slowing(steps: list[Row]) -> Block:
    """Returns the gain per doubling of N in the last step of a ladder minus that in the first."""
    weights = dict.fromkeys((steps[0], steps[1], steps[-2], steps[-1]), 0.0)
    for sign, a, b in ((-1.0, steps[0], steps[1]), (1.0, steps[-2], steps[-1])):
        per_doubling = sign / select.doublings(a, b)
        weights[b] += per_doubling
        weights[a] -= per_doubling
    return weights


def _growth_apart(a: list[Row], b: list[Row], dimension: str) -> list[Block]:
    """Returns the growth of A minus that of B, between the ends of the ladder that both have."""
    one, two = ({r.shape: r for r in select.ladder(rows, dimension)} for rows in (a, b))
    shared = [shape for shape in one if shape in two]
    if len(shared) < 2:
        return []
    low, high = shared[0], shared[-1]
    return [{one[high]: 1.0, one[low]: -1.0, two[high]: -1.0, two[low]: 1.0}]


def _scored(evidence: Evidence, score: str) -> list[list[Row]]:
    """Returns rows with a score by system and variant; all rows, if none has it.

    Only the best shapes of a grid are fine-tuned, and groups are made of these.
    """
    groups = list(select.by_variant(evidence).values())
    found = [[r for r in of if value(evidence, r, score) is not None] for of in groups]
    return found if any(found) else groups
