"""What a verdict is worth where nets have collapsed in fine-tuning: it is asked again without them.

A degenerate fine-tuning, whose net says one thing of everything, counts in every score like any
other, since leaving it out would flatter the net. But a verdict that rests on such nets is one of
whether they train at all.
"""

import dataclasses
from collections.abc import Callable, Sequence

from scalelab.lab.compare import study_findings
from scalelab.lab.compare.claims import UNDECIDED, Finding
from scalelab.lab.evidence.evidence import Evidence
from scalelab.lab.evidence.study_scores import StudyScores
from scalelab.lab.reading.study_runs import Point, Study

SHARE = 0.2  # of a row's fine-tunings, from which on it counts as collapsed


def rows(study: Study) -> list[Point]:
    """Those of which at least a fifth of the fine-tunings are degenerate."""
    found = []
    for point in study.points:
        seeds = [
            seed for run in point.runs for task in run.tasks.values() for seed in task.finished
        ]
        collapsed = sum(bool(seed.result.get("degenerate")) for seed in seeds)
        if seeds and collapsed >= SHARE * len(seeds):
            found.append(point)
    return found


def remarked(
    study: Study,
    findings: Sequence[Finding],
    evidence_of: Callable[[Study], Evidence] = StudyScores,
) -> list[Finding]:
    """Findings with a remark on what each would be without the collapsed rows.

    Args:
      study: the study.
      findings: of all its rows, decided.
      evidence_of: gives the scores of a study.
    """
    left_out = rows(study)
    rest = tuple(point for point in study.points if point not in left_out)
    if not left_out or not findings or not any(point.finished for point in rest):
        return list(findings)
    fewer = dataclasses.replace(study, points=rest)
    again = {f.id: f for f in study_findings.of_study(fewer, evidence_of(fewer))}
    names = ", ".join(point.label for point in left_out)
    return [_with_remark(finding, again.get(finding.id), names) for finding in findings]


def _with_remark(finding: Finding, without: Finding | None, names: str) -> Finding:
    """Of a finding that is decided, with or without the rows."""
    verdict = UNDECIDED if without is None else without.verdict
    if finding.verdict == verdict == UNDECIDED:
        return finding
    why = f", {without.why}" if without and without.why else ""
    said = (
        f"Without {names}, of which a fifth or more of the fine-tunings are degenerate:"
        f" {verdict}{why}."
    )
    return dataclasses.replace(finding, remarks=(*finding.remarks, said))
