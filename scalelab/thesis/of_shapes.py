"""Observations 3 and 4: on shapes of equal size. See hypotheses.py."""

import itertools

from scalelab.lab.compare.claims import ABOVE, Case, Finding
from scalelab.lab.evidence.evidence import Evidence
from scalelab.thesis import select
from scalelab.thesis.parts import (
    DIMENSIONS,
    MARGIN,
    SIMILAR,
    all_values,
    block_cases,
    compare,
    make_finding,
    value,
)
from scalelab.thesis.select import Row


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
        compare(evidence, f"width and depth grown minus {name} alone", ABOVE,
                [{both: 1.0, single: -1.0} for single, both in pairs[name]], score,
                f"no row of equal N that has grown in both, beside one grown in {name}")
        for name in DIMENSIONS
    ]  # fmt: skip
    partners: dict[Row, list[Row]] = {}
    for single, both in itertools.chain.from_iterable(pairs.values()):
        partners.setdefault(both, []).append(single)
    cases = []
    for both, singles in partners.items():
        found = [all_values(evidence, {both: 1.0, single: -1.0}, score) for single in singles]
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
    found = compare(
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
        [compare(evidence, "more minus fewer heads", ABOVE, blocks, score, missing)],
        block_cases(evidence, blocks, ABOVE, score), score,
    )  # fmt: skip


def _scored(evidence: Evidence, score: str) -> list[list[Row]]:
    """Rows with a score by system and variant; all rows, if none has it.

    Of a grid of shapes the best alone are fine-tuned, and the groups are of these.
    """
    groups = list(select.by_variant(evidence).values())
    found = [[r for r in of if value(evidence, r, score) is not None] for of in groups]
    return found if any(found) else groups
