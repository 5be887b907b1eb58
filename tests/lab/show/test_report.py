"""The report of a study: its files, tables, figures, cards, and its page in a real browser."""

import html
import json
import re
import time
from xml.etree import ElementTree

import browser
import numpy as np
import pytest
import reported_study

from scalelab.lab.compare import bootstrap, claims, hypotheses
from scalelab.lab.compare.claims import ABOVE, Finding
from scalelab.lab.compare.estimates import Contrast
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.show import card, charts, content, figures, notes, report
from scalelab.thesis import comparison

NASTY = '</script><script>alert("x")</script><img src=x onerror=alert(1)> & $_^ [a](b)'
ONE_SHAPE = {"systems": ("bert",), "shapes": ((2, 16, 2),), "tasks": ("qnli",)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A half-finished study with hostile text, its scores and the path of its report."""
    folder = tmp_path_factory.mktemp("report")
    reported_study.write(
        folder, unfinished=("gpt2-2x32x2-seed1",), tasks=("qnli",), title=NASTY, question=NASTY,
        figures=["score_by_size", "loss_by_time", "loss_by_tokens"], command=NASTY,
        variants=("baseline", "<i>half"),
    )  # fmt: skip
    study = study_runs.read(folder)
    evidence = StudyScores(study)
    findings = hypotheses.evaluate(comparison, evidence, ["1a"], score="qnli")
    path = report.write(
        study, folder / "out", evidence=evidence, findings=findings, footnotes=[NASTY]
    )
    return study, evidence, path


def test_every_file_is_there(made) -> None:
    folder = made[2].parent
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    tables = ("data", "large", "grid", "cost", "hypotheses", "departures")
    expected = {f"tables/{t}.{e}" for t in tables for e in ("md", "tex", "csv")}
    # No task of GLUE-Large but QNLI: score_by_size has nothing to show.
    drawn = ("loss_by_time", "loss_by_tokens")
    expected |= {f"figures/{f}.{e}" for f in drawn for e in ("png", "svg")}
    expected |= {f"cards/{run.name}.md" for run in made[0].runs if run.finished}
    assert names == expected | {"report.md", "report.html"}


def test_the_page_is_one_small_file_without_network(made) -> None:
    text = made[2].read_text()
    assert len(text) < 2_000_000
    page = text.replace(charts.library(), "")
    targets = re.findall(r"<[a-z][^>]*\s(?:href|src|action|data)=\"([^\"]*)\"", page)
    assert targets and all(target.startswith("#") for target in targets)
    assert not re.search(r"@import|url\(|<(link|iframe|base)\b", page)
    assert "default-src 'none'" in html.unescape(page)


def test_text_of_a_study_is_escaped(made) -> None:
    page = made[2].read_text().replace(charts.library(), "")
    assert page.count("<script") == 3 == page.count("</script>")
    assert "<img" not in page and "<i>" not in page
    for path in (made[2].with_name("report.md"), *made[2].parent.glob("*/*.md")):
        text = re.sub(r"^(```+)\n.*?\n\1$", "", path.read_text(), flags=re.S | re.M)
        assert not re.search(r"<[a-zA-Z/]", text), path
        assert "[a](b)" not in text
    assert r"\& \$\_\textasciicircum{}" in (made[2].parent / "tables/large.tex").read_text()


def test_a_half_finished_study_is_reported_as_such(made) -> None:
    for name in ("report.md", "report.html"):
        text = made[2].with_name(name).read_text()
        assert "15 of 16 pre-trainings finished" in text and "gpt2-2x32x2-seed1" in text
    text = made[2].with_name("report.md").read_text()
    for expected in ("figures/loss_by_time.svg", "### 1a: ", reported_study.COMMIT[:12],
                     "[bert-2x16x2-seed0](cards/bert-2x16x2-seed0.md)"):  # fmt: skip
        assert expected in text, expected


def test_a_study_without_finished_runs_is_refused(tmp_path) -> None:
    names = tuple(f"bert-2x16x2-seed{k}" for k in (0, 1))
    reported_study.write(tmp_path, **ONE_SHAPE, unfinished=names)
    with pytest.raises(ValueError, match="invented"):
        report.write(study_runs.read(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_card_that_cannot_be_made_is_named(tmp_path, monkeypatch) -> None:
    """A fault of ours in a card is no missing card."""
    reported_study.write(tmp_path, **ONE_SHAPE, figures=[])
    make = card.write

    def failing(folder, error):
        if folder.name.endswith("seed1"):
            raise error
        return make(folder)

    monkeypatch.setattr(card, "write", lambda f: failing(f, ValueError(f"{f} is odd")))
    path = report.make(tmp_path)
    expected = "bert-2x16x2-seed1: runs/bert-2x16x2-seed1 is odd."
    assert expected in path.with_name("report.md").read_text() and expected in path.read_text()
    assert [p.name for p in (path.parent / "cards").iterdir()] == ["bert-2x16x2-seed0.md"]
    monkeypatch.setattr(card, "write", lambda f: failing(f, KeyError("max_len")))
    with pytest.raises(KeyError):
        report.make(tmp_path)


def test_commits_of_fine_tunings_are_told_apart_from_those_of_pretrainings(tmp_path) -> None:
    reported_study.write(tmp_path, **ONE_SHAPE, figures=[])
    commit = reported_study.COMMIT[:12]
    paths = sorted(tmp_path.glob("runs/*/tasks/**/environment.json"))
    for place, path in enumerate(paths):
        fields = {"git_commit": "f" * 40, "git_dirty": place == 0}
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    study = study_runs.read(tmp_path)
    makers = dict.fromkeys(study.facts["tables"], lambda request: None)
    facts = dict(content.gather(study, StudyScores(study), makers=makers).facts)
    assert facts["Commits"] == f"{commit} (2 runs)"
    more = f"{'f' * 12} ({len(paths) - 1} runs), {'f' * 12} with local changes (1 run)"
    assert facts["Commits of fine-tunings"] == more


def test_a_damaged_run_is_named_without_the_path_of_the_folder(tmp_path) -> None:
    reported_study.write(tmp_path, **ONE_SHAPE, figures=[])
    (tmp_path / "runs/bert-2x16x2-seed1/result.json").write_text("{")
    path = report.write(study_runs.read(tmp_path), tmp_path / "out")
    assert "1 of 2 runs are damaged: bert-2x16x2-seed1" in path.read_text()
    assert str(tmp_path) not in path.read_text()


def test_losses_are_drawn_for_every_run(made) -> None:
    figure = figures.draw_losses(made[0], clock="tokens")
    assert [a.get_title() for a in figure.axes] == [
        f"{system}, length {length}" for system in ("bert", "gpt2") for length in (32, 64)
    ]
    lines = figure.axes[2].get_lines()  # gpt2: four rows, two seeds, one of them stopped half-way
    assert sorted(len(line.get_xdata()) for line in lines) == [5] + 7 * [9]
    assert lines[0].get_xdata()[0] == 28 * 64 * 100
    for path in made[2].parent.glob("figures/*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    facts = made[0].facts | {"figures": ["loss_by_tim"]}
    wrong = study_runs.Study(made[0].workdir, facts, made[0].points)
    with pytest.raises(ValueError, match="'loss_by_tim'"):
        figures.write(wrong, made[1], made[2].parent, makers=figures.FIGURES)


def test_tasks_stand_beside_constant_answers(tmp_path) -> None:
    """60 dev examples, every second of a class, in MNLI every third; F1 of always 1: 2/3."""
    tasks = ("mnli", "qqp", "qnli", "sst2")
    reported_study.write(tmp_path, seeds=1, tasks=tasks, figures=["score_by_task"])
    study = study_runs.read(tmp_path)
    evidence = StudyScores(study)
    for score, constant in (("qnli", 0.5), ("mnli_m", 1 / 3), ("qqp_f1", 2 / 3)):
        assert figures.constant_score(study, score) == pytest.approx(constant)
    assert figures.constant_score(study, "cola") is None
    figure = figures.draw_tasks(study, evidence)
    assert [a.get_title() for a in figure.axes] == ["MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2"]
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == [p.label for p in study.points]
    for axis, score in zip(figure.axes, ("mnli_m", "mnli_mm", "qqp", "qnli", "sst2"), strict=True):
        for place, (point, drawn) in enumerate(zip(study.points, axis.containers, strict=True)):
            found = evidence.value(point, score)
            assert drawn.lines[0].get_xydata()[0] == pytest.approx((100 * found.value, place))
            (bar,) = drawn.lines[2][0].get_segments()
            assert bar[:, 0] == pytest.approx([100 * found.low, 100 * found.high])
        constant = 100 * figures.constant_score(study, score)
        assert any(list(line.get_xdata()) == [constant, constant] for line in axis.get_lines())
    assert "these weights only" in notes.describe_detectable(study.points)


def test_a_study_without_scores_has_no_figure_of_tasks(tmp_path) -> None:
    reported_study.write(tmp_path, seeds=1, tasks=())
    bare = study_runs.read(tmp_path)
    assert figures.draw_tasks(bare, StudyScores(bare)) is None
    assert charts.draw_scores(bare, StudyScores(bare)) is None


def test_nothing_is_detectable_where_every_run_predicts_the_same() -> None:
    """All runs predict class 0: no difference, no spread, and no smallest detectable difference."""
    gold, zeros = np.arange(40) % 2, np.zeros((2, 3, 40), int)
    found = bootstrap.compare(gold, zeros, zeros, "accuracy", paired=False)
    assert (found.value, found.detectable) == (0, None)
    claim = claims.claim("a minus b", ABOVE, Contrast(0.0, found, "over seeds"))
    (decided,) = claims.decide([Finding("x", "a is better", "so", (claim,), ())])
    assert decided.verdict == claims.UNDECIDED and "nan" not in decided.why


@pytest.mark.slow
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_the_page_works_in_a_browser(made) -> None:
    """Without errors or requests; charts are drawn, the clock switches, a table sorts."""
    with browser.opened(made[2]) as driver:
        find = lambda selector: driver.find_elements("css selector", selector)  # noqa: E731
        for _ in range(50):
            if len(find(".chart svg")) == 2:
                break
            time.sleep(0.2)
        assert driver.get_log("browser") == []
        requests = [json.loads(e["message"])["message"] for e in driver.get_log("performance")]
        addresses = {r["params"]["request"]["url"] for r in requests
                     if r["method"] == "Network.requestWillBeSent"}  # fmt: skip
        assert addresses == {made[2].resolve().as_uri()}
        lines = "#chart-losses svg .mark-line path"
        before = [line.get_attribute("d") for line in find(lines)]
        assert len(before) == 16
        assert len(find("#chart-scores svg .mark-symbol.role-mark path")) == 8  # one a row
        (clock,) = find('#chart-losses select[name="clock"]')
        clock.find_elements("css selector", "option")[3].click()
        assert [line.get_attribute("d") for line in find(lines)] != before
        heads = [head.text.split()[0] for head in find("#table-large th")]
        cells = f"#table-large tbody td:nth-child({heads.index('N') + 1})"
        header = f"#table-large th:nth-child({heads.index('N') + 1}) button"
        find(header)[0].click()  # as words, "24,576" would come first
        assert [c.text for c in find(cells)] == ["6,144"] * 4 + ["24,576"] * 4
        find(header)[0].click()
        assert [c.text for c in find(cells)] == ["24,576"] * 4 + ["6,144"] * 4
