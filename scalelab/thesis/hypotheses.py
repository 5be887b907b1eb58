"""Observations 1 to 4 of the thesis as hypotheses: objectives, growth, and shapes of equal size.

Each function tests one hypothesis; TEXTS has its words and its rule. A hypothesis has few claims,
each about a mean over shapes or systems. Single comparisons ("cases") are counted without a test.
The defaults are: rows of the default variant; the score GLUE-Large; confirmed if all claims are
confirmed, refuted if one is refuted; the cases are the summands of the claims' means. N is the
number of parameters, A heads, H width, L layers.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scalelab.lab.compare.claims import ABOVE, ALL, ANY, BELOW, Finding, Region
from scalelab.lab.compare.hypotheses import Block, build_claim, value, weighted
from scalelab.lab.compare.scores import Row, Scores
from scalelab.thesis import select
from scalelab.thesis.counts import MOST, SCORE, Case, block_cases, make_finding

# The systems of the thesis by training objective.
MLM_NSP, MLM, CLM = "bert", "roberta", "gpt2"
MARGIN = 0.02  # a doubling of N raises a score by about this at the upper end of Table 7.3
SIMILAR = Region(-MARGIN, MARGIN)
COLA_MARGIN = Region(-0.05, 0.05)  # standard error of CoLA's correlation: 0.03 (1,043 sentences)
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
    "4b": ("A wide model gains when the number of heads follows its width.",
           "with more heads the score of the same H and L is higher"),
}  # fmt: skip


class Part(NamedTuple):
    """A claim: the mean of blocks of weighted rows is in a region; `missing` explains no blocks."""

    what: str
    region: Region
    blocks: Sequence[Block]
    missing: str


def build_finding(
    scores: Scores,
    parts: Sequence[Part],
    name: str,
    cases: Sequence[Case] | None = None,
    needs: str = ALL,
    score: str = SCORE,
) -> Finding:
    """Makes the finding of TEXTS[name].

    Args:
      scores: the study's scores.
      parts: the claims to make.
      name: name of the hypothesis.
      cases: None: each block is a case.
      needs: ALL, MOST or ANY.
      score: name of the score.
    """
    claims = [build_claim(scores, *part[:3], score, part.missing) for part in parts]
    if cases is None:
        cases = [c for p in parts for c in block_cases(scores, p.blocks, p.region, score)]
    return make_finding(scores, name, *TEXTS[name], claims, cases, score, needs=needs)


# Which system is above which in the claims, and in each case.
OBJECTIVES: dict[str, tuple[tuple[tuple[str, str], ...], Callable[[dict[str, float]], bool]]] = {
    "1a": (((MLM_NSP, MLM), (MLM_NSP, CLM)), lambda v: v[MLM_NSP] > max(v[MLM], v[CLM])),
    "1b": (((MLM_NSP, CLM), (MLM, CLM)), lambda v: v[CLM] < min(v[MLM_NSP], v[MLM])),
}


def objectives(scores: Scores, *, name: str) -> Finding:
    """Tests 1a or 1b: the order of the systems, which are the objectives.

    Each claim is a mean over the shapes that its two systems share. Cases are the shapes that all
    three share.
    """
    pairs, holds = OBJECTIVES[name]
    parts = []
    for a, b in pairs:
        blocks = [{own[a]: 1.0, own[b]: -1.0} for own in select.by_shape(scores, (a, b))]
        parts.append(Part(f"{a} minus {b}", ABOVE, blocks, "no shape that both have"))
    cases = []
    for own in select.by_shape(scores, (MLM_NSP, MLM, CLM)):
        found = {name: value(scores, row, SCORE) for name, row in own.items()}
        values = {name: x for name, x in found.items() if x is not None}
        if len(values) == len(found):
            cases.append(Case(str(own[CLM].shape), holds(values)))
    return build_finding(scores, parts, name, cases)


def growth(scores: Scores) -> Finding:
    """Tests 2a: the score grows with width and with depth.

    Each claim is a mean over systems: the largest minus the smallest row of the system's largest
    group of shapes that differ in one dimension. By counts alone it is enough that most cases hold.
    """
    parts = [_growth(scores, name, ABOVE) for name in DIMENSIONS]
    return build_finding(scores, parts, "2a", needs=MOST)


def saturation(scores: Scores) -> Finding:
    """Tests 2b: the last step in size gains less than the first step, per doubling of N.

    It uses shape groups (as in 2a) of three or more rows.
    """
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
    return build_finding(scores, parts, "2b")


def different_growth(scores: Scores) -> Finding:
    """Tests 2c: the growth of the score depends on the objective.

    Each claim compares the growth of two systems, between the smallest and the largest shape that
    both groups share. Confirmed if one claim is confirmed, refuted if all are refuted.
    """
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
    return build_finding(scores, parts, "2c", needs=ANY)


def growth_of_cola(scores: Scores) -> Finding:
    """Tests 2d: CoLA grows with width but not with depth; shape groups as in 2a.

    Cases are the systems with both groups.
    """
    wide, deep = _growth(scores, "width", ABOVE), _growth(scores, "depth", COLA_MARGIN)
    cases = []
    for widths, depths in itertools.product(wide.blocks, deep.blocks):
        gains = [weighted(scores, block, "cola") for block in (widths, depths)]
        systems = {row.system for row in (*widths, *depths)}
        if len(systems) == 1 and gains[0] is not None and gains[1] is not None:
            holds = ABOVE.holds(gains[0]) and COLA_MARGIN.holds(gains[1])
            cases.append(Case(systems.pop(), holds))
    return build_finding(scores, [wide, deep], "2d", cases, score="cola")


def _growth(scores: Scores, name: str, region: Region) -> Part:
    """Returns the claim about growth: per system, largest minus smallest row of its shape group."""
    rows = select.defaults(scores).values()
    groups = [select.shape_group(own, DIMENSIONS[name]) for own in rows]
    blocks = [{steps[-1]: 1.0, steps[0]: -1.0} for steps in groups if steps]
    return Part(f"largest minus smallest {name}", region, blocks, f"no shape group in {name}")


def several_dimensions(scores: Scores) -> Finding:
    """Tests 3: at equal N, a shape grown in width and depth beats a shape grown in one of them.

    It compares rows outside the shape groups with a group's row of equal N and A (`balanced`).
    A case is a row that has grown in both; it holds if the row beats each of its partners.
    """
    parts, gains = [], {}
    for name, dimension in DIMENSIONS.items():
        pairs = [pair for rows in select.defaults(scores).values()
                 for pair in select.balanced(rows, dimension)]  # fmt: skip
        blocks = [{both: 1.0, single: -1.0} for single, both in pairs]
        missing = f"no row of equal N that has grown in both, beside one grown in {name}"
        parts.append(Part(f"width and depth grown minus {name} alone", ABOVE, blocks, missing))
        for (_, both), block in zip(pairs, blocks, strict=True):
            gains.setdefault(both, []).append(weighted(scores, block, SCORE))
    cases = [Case(row.label, min(own) > 0) for row, own in gains.items() if None not in own]
    return build_finding(scores, parts, "3", cases)


def similar_shapes(scores: Scores) -> Finding:
    """Tests 4a: the widest and the deepest shape of equal N score alike (`select.equal_sizes`).

    Cases are all pairs of a group.
    """
    groups = [own for rows in _scored(scores) for own in select.equal_sizes(rows)]
    heads = f"whose heads are at most {select.WIDEST_HEAD} wide"
    blocks = [{own[-1]: 1.0, own[0]: -1.0} for own in groups]
    missing = f"no two shapes of equal N and other L {heads}"
    part = Part("widest minus deepest shape of equal N", SIMILAR, blocks, missing)
    pairs = [{b: 1.0, a: -1.0} for own in groups for a, b in itertools.combinations(own, 2)]
    cases = block_cases(scores, pairs, SIMILAR, SCORE)
    return build_finding(scores, [part], "4a", cases)


def heads_follow_width(scores: Scores) -> Finding:
    """Tests 4b: more heads are better than heads wider than select.WIDEST_HEAD.

    Each pair has equal H and L (`select.more_heads`).
    """
    blocks = [{more: 1.0, fewer: -1.0} for rows in _scored(scores)
              for fewer, more in select.more_heads(rows)]  # fmt: skip
    missing = f"no wide model both with and without heads wider than {select.WIDEST_HEAD}"
    part = Part("more minus fewer heads", ABOVE, blocks, missing)
    return build_finding(scores, [part], "4b")


def _scored(scores: Scores) -> list[list[Row]]:
    """Groups the rows with the score by system and variant; all rows if none has the score.

    A study fine-tunes only the best shapes of a grid; groups must consist of these shapes.
    """
    groups = list(select.by_variant(scores).values())
    found = [[r for r in own if value(scores, r, SCORE) is not None] for own in groups]
    return found if any(found) else groups
