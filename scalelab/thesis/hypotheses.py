"""Observations 1 to 4 of the thesis as hypotheses: objectives, growth, and shapes of equal size.

Each function states a hypothesis and what confirms it; its docstring names the rows. A hypothesis
has few claims, which are means over shapes or systems; single cases are counted without a test.
Unless a docstring says otherwise, rows are of the default variant, the score is GLUE-Large, a
hypothesis is confirmed if all its claims are confirmed and refuted if one is refuted, and cases are
the single comparisons of a claim's mean.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scalelab.lab.compare.claims import ABOVE, ALL, ANY, BELOW, Finding, Region
from scalelab.lab.compare.hypotheses import (
    Block,
    build_claim,
    value,
    weighted,
)
from scalelab.lab.compare.scores import Row, Scores
from scalelab.thesis import select
from scalelab.thesis.counts import MOST, Case, block_cases, make_finding

# The systems of the thesis by training objective.
MLM_NSP, MLM, CLM = "bert", "roberta", "gpt2"
MARGIN = 0.02  # a doubling of N raises a score by about this at the upper end of Table 7.3
SIMILAR = Region(-MARGIN, MARGIN)
COLA_MARGIN = Region(-0.05, 0.05)  # Matthews' correlation on 1,043 sentences has an error of 0.03
DIMENSIONS = {"width": "width", "depth": "num_layers"}  # word -> field of a shape
# Hypothesis -> its text, and the rule that confirms it.
TEXTS = {
    "1a": ("Pre-training on MLM with NSP does best on sentence-pair tasks.",
           "bert is above roberta and above gpt2 in the mean over shapes"),
    "1b": ("Pre-training on CLM in general does worst.",
           "gpt2 is below bert and below roberta in the mean over shapes"),
    "2a": ("In most cases the score grows when width or depth grows alone.",
           "the largest rows of the shape groups are above the smallest, in width and in depth"),
    "2b": ("That growth ends at a level: the last step gains less than the first.",
           "the last step gains less for each doubling of N, in width and in depth"),
    "2c": ("How the score grows depends on the objective.",
           f"two systems' growths differ by more than {MARGIN:g}, in one comparison at least"),
    "2d": ("On CoLA the score grows with width alone.",
           f"it grows with width, and with depth changes by less than {COLA_MARGIN.high:g}"),
    "3": ("At equal N, growing several dimensions beats growing one.",
           "rows grown in both are above the wide ones and above the deep ones"),
    "4a": ("At equal N scores are similar over many shapes, if A follows H.",
           f"the widest and the deepest shape differ by less than {MARGIN:g}"),
    "4b": ("A wide net gains when the number of heads follows its width.",
           "with more heads the score of the same H and L is higher"),
}  # fmt: skip


class Part(NamedTuple):
    """A claim: the mean of blocks of weighted rows lies in a region; or why there is no block."""

    what: str
    region: Region
    blocks: Sequence[Block]
    missing: str


def build_finding(
    scores: Scores,
    score: str,
    parts: Sequence[Part],
    name: str,
    cases: Sequence[Case] | None = None,
    needs: str = ALL,
) -> Finding:
    """Makes the finding of TEXTS[name]; without cases, with one for each block."""
    claims = [build_claim(scores, *part[:3], score, part.missing) for part in parts]
    if cases is None:
        cases = [c for p in parts for c in block_cases(scores, p.blocks, p.region, score)]
    return make_finding(scores, name, *TEXTS[name], claims, cases, score, needs=needs)


# Which system is above which in the claims, and in each case.
OBJECTIVES: dict[str, tuple[tuple[tuple[str, str], ...], Callable[[dict[str, float]], bool]]] = {
    "1a": (((MLM_NSP, MLM), (MLM_NSP, CLM)), lambda v: v[MLM_NSP] > max(v[MLM], v[CLM])),
    "1b": (((MLM_NSP, CLM), (MLM, CLM)), lambda v: v[CLM] < min(v[MLM_NSP], v[MLM])),
}


def objectives(scores: Scores, score: str, *, name: str) -> Finding:
    """1a and 1b, from shapes that two systems share. Cases: shapes that all three share."""
    pairs, holds = OBJECTIVES[name]
    parts = []
    for a, b in pairs:
        blocks = [{own[a]: 1.0, own[b]: -1.0} for own in select.by_shape(scores, (a, b))]
        parts.append(Part(f"{a} minus {b}", ABOVE, blocks, "no shape that both have"))
    cases = []
    for own in select.by_shape(scores, (MLM_NSP, MLM, CLM)):
        found = {name: value(scores, row, score) for name, row in own.items()}
        values = {name: x for name, x in found.items() if x is not None}
        if len(values) == len(found):
            cases.append(Case(str(own[CLM].shape), holds(values)))
    return build_finding(scores, score, parts, name, cases)


def growth(scores: Scores, score: str) -> Finding:
    """2a, from the largest shape group of each system. Cases: of which most count."""
    parts = [_growth(scores, name, ABOVE) for name in DIMENSIONS]
    return build_finding(scores, score, parts, "2a", needs=MOST)


def saturation(scores: Scores, score: str) -> Finding:
    """2b, from shape groups of three or more: the last step's gain minus that of the first."""
    parts = []
    for name, dimension in DIMENSIONS.items():
        groups = (select.shape_group(own, dimension) for own in select.defaults(scores).values())
        blocks = []
        for steps in (steps for steps in groups if len(steps) > 2):
            weights = dict.fromkeys(steps[:2] + steps[-2:], 0.0)
            for sign, (a, b) in ((-1, steps[:2]), (1, steps[-2:])):
                doublings = math.log2(b.shape.n_model / a.shape.n_model)
                weights[b] += sign / doublings
                weights[a] -= sign / doublings
            blocks.append(weights)
        what = f"gain per doubling of N, last minus first step of {name}"
        parts.append(Part(what, BELOW, blocks, f"no shape group of three in {name}"))
    return build_finding(scores, score, parts, "2b")


def different_growth(scores: Scores, score: str) -> Finding:
    """2c, from shapes that the groups of two systems share; refuted if all claims are."""
    outside = Region(SIMILAR.low, SIMILAR.high, outside=True)
    rows, parts = select.defaults(scores), []
    for (name, dimension), (a, b) in itertools.product(
        DIMENSIONS.items(), itertools.combinations((MLM_NSP, MLM, CLM), 2)
    ):
        groups = [select.shape_group(rows.get(system, []), dimension) for system in (a, b)]
        rows_a, rows_b = ({row.shape: row for row in group} for group in groups)
        shared = [shape for shape in rows_a if shape in rows_b]
        blocks = [
            {rows_a[high]: 1.0, rows_a[low]: -1.0, rows_b[high]: -1.0, rows_b[low]: 1.0}
            for low, high in zip(shared[:1], shared[1:][-1:], strict=False)
        ]
        what, missing = f"growth with {name}, {a} minus {b}", f"no shape group of both in {name}"
        parts.append(Part(what, outside, blocks, missing))
    return build_finding(scores, score, parts, "2c", needs=ANY)


def growth_of_cola(scores: Scores, score: str) -> Finding:
    """2d, from shape groups as in 2a, always on CoLA. Cases: systems with both groups."""
    del score
    wide, deep = _growth(scores, "width", ABOVE), _growth(scores, "depth", COLA_MARGIN)
    cases = []
    for widths, depths in itertools.product(wide.blocks, deep.blocks):
        gains = [weighted(scores, block, "cola") for block in (widths, depths)]
        systems = {row.system for row in (*widths, *depths)}
        if len(systems) == 1 and gains[0] is not None and gains[1] is not None:
            holds = ABOVE.holds(gains[0]) and COLA_MARGIN.holds(gains[1])
            cases.append(Case(systems.pop(), holds))
    return build_finding(scores, "cola", [wide, deep], "2d", cases)


def _growth(scores: Scores, name: str, region: Region) -> Part:
    """Returns, for each system, the largest row of its shape group minus the smallest."""
    rows = select.defaults(scores).values()
    groups = [select.shape_group(own, DIMENSIONS[name]) for own in rows]
    blocks = [{steps[-1]: 1.0, steps[0]: -1.0} for steps in groups if steps]
    return Part(f"largest minus smallest {name}", region, blocks, f"no shape group in {name}")


def several_dimensions(scores: Scores, score: str) -> Finding:
    """3, from rows in neither shape group, each beside the group's row of equal N and A.

    Cases: balanced rows; they beat each of their partners.
    """
    parts, gains = [], {}
    for name, dimension in DIMENSIONS.items():
        pairs = [pair for rows in select.defaults(scores).values()
                 for pair in select.balanced(rows, dimension)]  # fmt: skip
        blocks = [{both: 1.0, single: -1.0} for single, both in pairs]
        missing = f"no row of equal N that has grown in both, beside one grown in {name}"
        parts.append(Part(f"width and depth grown minus {name} alone", ABOVE, blocks, missing))
        for (_, both), block in zip(pairs, blocks, strict=True):
            gains.setdefault(both, []).append(weighted(scores, block, score))
    cases = [Case(row.label, min(own) > 0) for row, own in gains.items() if None not in own]
    return build_finding(scores, score, parts, "3", cases)


def similar_shapes(scores: Scores, score: str) -> Finding:
    """4a, from scored rows in groups of equal N and different L. Cases: pairs of a group."""
    groups = [own for rows in _scored(scores, score) for own in select.equal_sizes(rows)]
    heads = f"whose heads are at most {select.WIDEST_HEAD} wide"
    blocks = [{own[-1]: 1.0, own[0]: -1.0} for own in groups]
    missing = f"no two shapes of equal N and other L {heads}"
    part = Part("widest minus deepest shape of equal N", SIMILAR, blocks, missing)
    pairs = [{b: 1.0, a: -1.0} for own in groups for a, b in itertools.combinations(own, 2)]
    cases = block_cases(scores, pairs, SIMILAR, score)
    return build_finding(scores, score, [part], "4a", cases)


def heads_follow_width(scores: Scores, score: str) -> Finding:
    """4b, from pairs of equal H and L, of which one has heads wider than select.WIDEST_HEAD."""
    blocks = [{more: 1.0, fewer: -1.0} for rows in _scored(scores, score)
              for fewer, more in select.more_heads(rows)]  # fmt: skip
    missing = f"no wide net both with and without heads wider than {select.WIDEST_HEAD}"
    part = Part("more minus fewer heads", ABOVE, blocks, missing)
    return build_finding(scores, score, [part], "4b")


def _scored(scores: Scores, score: str) -> list[list[Row]]:
    """Returns rows with a score by system and variant; all rows, if none has it.

    Only the best shapes of a grid are fine-tuned, and groups are made of these.
    """
    groups = list(select.by_variant(scores).values())
    found = [[r for r in own if value(scores, r, score) is not None] for own in groups]
    return found if any(found) else groups
