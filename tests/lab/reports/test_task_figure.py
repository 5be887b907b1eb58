"""The figure of single tasks, and what is said where nothing varies."""

import numpy as np
import pytest
import reported_study

from scalelab.lab.compare import bootstrap, claims
from scalelab.lab.compare.claims import ABOVE, Finding
from scalelab.lab.compare.estimates import Contrast
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.reading import study_runs
from scalelab.lab.reports import content, report, study_figures, study_notes, task_figure

TASKS = ("mnli", "qqp", "qnli", "sst2")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    reported_study.write(folder, seeds=1, tasks=TASKS, figures=["score_by_task"])
    return study_runs.read(folder)


def test_constant_answers_by_hand(study) -> None:
    """60 dev examples, every second of a class, in MNLI every third; F1 of always 1: 2/3."""
    assert task_figure.constant(study, "qnli") == 0.5
    assert task_figure.constant(study, "mnli_m") == pytest.approx(1 / 3)
    assert task_figure.constant(study, "qqp_f1") == pytest.approx(2 / 3)
    assert task_figure.constant(study, "cola") is None


def test_each_task_has_a_panel_with_every_net(study, tmp_path) -> None:
    evidence = StudyScores(study)
    figure = task_figure.draw(study, evidence)
    assert [a.get_title() for a in figure.axes] == ["MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [
        p.label for p in study.points
    ]  # fmt: skip
    for axis, score in zip(figure.axes, ("mnli_m", "mnli_mm", "qqp", "qnli", "sst2"), strict=True):
        for place, (point, drawn) in enumerate(zip(study.points, axis.containers, strict=True)):
            found = evidence.value(point, score)
            assert drawn.lines[0].get_xydata()[0] == pytest.approx((100 * found.value, place))
            (bar,) = drawn.lines[2][0].get_segments()
            assert bar[:, 0] == pytest.approx([100 * found.low, 100 * found.high])
        always = 100 * task_figure.constant(study, score)
        assert any(list(line.get_xdata()) == [always, always] for line in axis.get_lines())
    assert study_figures.write(study, evidence, tmp_path) == ["score_by_task"]
    chart = content.gather(study, evidence).charts["score"]
    assert "Always the same class gets: MNLI-m 33.3, MNLI-mm 33.3, QQP 50.0" in chart["note"]


def test_a_study_without_scores_has_no_such_figure(tmp_path) -> None:
    reported_study.write(tmp_path, seeds=1, tasks=())
    bare = study_runs.read(tmp_path)
    assert task_figure.draw(bare, StudyScores(bare)) is None


def test_finished_runs_have_cards(tmp_path) -> None:
    reported_study.write(tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=())
    bad = tmp_path / "runs/bert-2x16x2-seed1"
    (bad / "config.json").unlink()
    path = report.write(study_runs.read(tmp_path), tmp_path / "out")
    (card,) = (path.parent / "cards").iterdir()
    assert card.read_text().startswith("# bert-2x16x2-seed0")
    text = (path.parent / "report.md").read_text()
    assert "[bert-2x16x2-seed0](cards/bert-2x16x2-seed0.md)" in text
    assert f"| {bad.name} |" in text  # without config.json: no card, and no link
    assert f"No card of {bad.name}: runs/{bad.name} holds no run" in text


# --- Where nothing varies -------------------------------------------------------------------------


def test_what_could_be_found_is_unknown_where_every_run_says_the_same() -> None:
    """All runs predict class 0: no difference, no spread, and nothing known of a smallest one."""
    gold, zeros = np.arange(40) % 2, np.zeros((2, 3, 40), int)
    found = bootstrap.compare(gold, zeros, zeros, "accuracy", paired=False)
    assert (found.value, found.detectable) == (0, None)
    learnt = zeros.copy()
    learnt[:, :, :20] = gold[:20]
    assert bootstrap.compare(gold, zeros, learnt, "accuracy", paired=False).detectable > 0
    claim = claims.claim("a minus b", ABOVE, Contrast(0.0, found, "over seeds"))
    (decided,) = claims.decide([Finding("x", "a is better", "so", (claim,), ())])
    assert decided.verdict == claims.UNDECIDED
    assert "the smallest" not in decided.why and "nan" not in decided.why


def test_with_one_pretraining_it_is_for_these_weights_only(study, tmp_path) -> None:
    assert "these weights only" in study_notes.detectable(study.points)
    two = study_runs.read(reported_study.write(tmp_path, tasks=("qnli",)))
    assert "these weights only" not in study_notes.detectable(two.points)
