"""Hypotheses counted case by case, without a test, and verdicts from counts alone.

The thesis prints numbers without intervals, so its tables allow only counts of cases.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from scalelab.lab.compare import hypotheses
from scalelab.lab.compare.claims import (
    ALL,
    ANY,
    CONFIRMED,
    REFUTED,
    UNDECIDED,
    Claim,
    Finding,
    Region,
)
from scalelab.lab.compare.hypotheses import weighted
from scalelab.lab.compare.scores import Comparison, Row, Scores

SCORE = "large"  # GLUE-Large: the score of a hypothesis that names none
MOST = "most"  # most of the cases must hold; all of the claims
LEAST_CASES = 2  # minimum number of cases for a verdict

Block = Mapping[Row, float]  # weights of rows


@dataclasses.dataclass(frozen=True)
class Case:
    """A comparison that is counted."""

    label: str  # name of the comparison
    holds: bool  # whether the numbers agree with the hypothesis


@dataclasses.dataclass(frozen=True, eq=False)
class Counted(Finding):
    """A finding with its cases."""

    cases: tuple[Case, ...] = ()

    @property
    def counted(self) -> str:
        """The count as text, such as "holds in 8 of 12"."""
        return f"holds in {sum(case.holds for case in self.cases)} of {len(self.cases)}"


def block_cases(
    scores: Scores, blocks: Iterable[Block], region: Region, score: str, name: str = ""
) -> list[Case]:
    """Returns a case for each block with scores; it holds if the value is in the region.

    Args:
      scores: the study's scores.
      blocks: row -> its weight, for each block.
      region: values for which a case holds.
      score: name of the score.
      name: of the comparison, for the labels; "": the rows' labels.
    """
    cases = []
    for block in blocks:
        found = weighted(scores, block, score)
        rows = list(block)
        label = f"{rows[0].system} {name}" if name else " against ".join(r.label for r in rows)
        if found is not None:
            cases.append(Case(label, region.holds(found)))
    return cases


def make_finding(
    scores: Scores,
    name: str,
    text: str,
    rule: str,
    made: Sequence[Claim],
    cases: Sequence[Case],
    score: str,
    *,
    needs: str = ALL,
) -> Counted:
    """Makes a finding without a verdict, with the remarks on its score and its cases.

    Args:
      scores: the study's scores.
      name: name of the hypothesis.
      text: the hypothesis in words.
      rule: how it is tested, in words.
      made: its claims.
      cases: its cases.
      score: name of the score.
      needs: ALL, MOST or ANY.
    """
    found = Counted(name, text, rule, tuple(made), needs, cases=tuple(cases))
    counted = [f"Counted case by case, without a test: it {found.counted}."] if cases else []
    return dataclasses.replace(found, remarks=(*scores.remarks([score]), *counted))


def evaluate(
    comparison: Comparison, scores: Scores, ids: Iterable[str] | None = None
) -> list[Finding]:
    """Returns findings with verdicts from counts alone, for scores without intervals."""
    found = []
    for finding in hypotheses.state(comparison, scores, ids):
        assert isinstance(finding, Counted)
        verdict, why = decide(finding)
        found.append(dataclasses.replace(finding, verdict=verdict, why=why))
    return found


def decide(finding: Counted) -> tuple[str, str]:
    """Returns the verdict from counts, and its reason; fewer than two cases give UNDECIDED.

    ALL: confirmed if the hypothesis holds in all cases, refuted if in none. MOST: confirmed if it
    holds in more than half, refuted if it fails in more than half. ANY: confirmed if it holds in
    two or more, refuted if in none.
    """
    cases, holds = len(finding.cases), sum(case.holds for case in finding.cases)
    if cases < LEAST_CASES:
        missing = next((c.why for c in finding.claims if c.effect is None), "too few to count")
        return UNDECIDED, f"{finding.counted}: {missing}"
    enough = {ALL: cases, MOST: cases // 2 + 1, ANY: LEAST_CASES}[finding.needs]
    fails = {ALL: cases, MOST: cases // 2 + 1, ANY: cases}[finding.needs]
    refuted = REFUTED if cases - holds >= fails else UNDECIDED
    verdict = CONFIRMED if holds >= enough else refuted
    return verdict, f"{finding.counted}; by counts alone, no value has an interval"
