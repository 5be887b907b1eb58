"""Verdicts without rows that have collapsed: on an invented study with planted collapses."""

import json
import pathlib

import pytest
import reported_study

from scalelab.lab.compare import collapsed, study_findings
from scalelab.lab.evidence.study_scores import StudyScores
from scalelab.lab.reading import study_runs
from scalelab.lab.reading.study_runs import Study
from scalelab.lab.reports import study_tables

TASKS = ("mnli", "qqp", "qnli")


def collapse(workdir: pathlib.Path, run: str, tasks: tuple[str, ...]) -> Study:
    """Makes all fine-tunings of a run on some tasks degenerate."""
    for path in (workdir / "runs" / run / "tasks").glob("*/seed*/result.json"):
        if path.parts[-3] in tasks:
            result = json.loads(path.read_text()) | {"degenerate": "says one thing of everything"}
            path.write_text(json.dumps(result))
    return study_runs.read(workdir)


@pytest.fixture
def workdir(tmp_path) -> pathlib.Path:
    return reported_study.write(
        tmp_path, shapes=((2, 16, 2), (2, 32, 2), (2, 64, 2)), tasks=TASKS,
        tables=["large"], hypotheses=[],
    )  # fmt: skip


def test_a_verdict_is_asked_again_without_what_has_collapsed(workdir) -> None:
    for seed in range(2):
        study = collapse(workdir, f"bert-2x16x2-seed{seed}", TASKS)
    assert [p.label for p in collapsed.rows(study)] == ["bert 2x16x2"]
    findings = study_findings.of_study(study, StudyScores(study))
    asked = []

    def evidence_of(fewer: Study) -> StudyScores:
        asked.extend(p.label for p in fewer.points)
        return StudyScores(fewer)

    (before,), (after,) = findings, collapsed.remarked(study, findings, evidence_of)
    assert before.verdict == "confirmed" and (after.verdict, after.claims) == (
        before.verdict, before.claims)  # fmt: skip
    assert asked == ["bert 2x32x2", "bert 2x64x2"] + [f"gpt2 2x{h}x2" for h in (16, 32, 64)]
    (remark,) = set(after.remarks) - set(before.remarks)
    assert remark.startswith("Without bert 2x16x2, of which a fifth or more of the fine-tunings")
    again = study_runs.Study(study.workdir, study.facts, study.points[1:])
    (expected,) = study_findings.of_study(again, StudyScores(again))
    assert f": {expected.verdict}" in remark


def test_few_collapses_say_nothing_of_a_verdict_but_stand_below_the_table(workdir) -> None:
    study = collapse(workdir, "bert-2x16x2-seed0", TASKS[2:])  # 2 of 12
    assert collapsed.rows(study) == []
    findings = study_findings.of_study(study, StudyScores(study))
    assert collapsed.remarked(study, findings) == findings
    (table,) = study_tables.build(study, StudyScores(study))
    said = [note for note in table.notes if "degenerate" in note]
    assert said == [
        "QNLI: 2 of 24 fine-tunings degenerate, and counted in: 2 of bert-2x16x2-seed0."
    ]
