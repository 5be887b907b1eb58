"""The report's files, figures and page, over invented studies; the browser is in another file."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import reported_study

from scalelab.lab import palette
from scalelab.lab.compare import hypotheses
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.reading import study_runs
from scalelab.lab.reports import card, report, study_figures
from scalelab.thesis import comparison, size_figure

NASTY = '</script><script>alert("x")</script><img src=x onerror=alert(1)> & $_^'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A half-finished study whose words are hostile, its scores and the folder of its report."""
    folder = tmp_path_factory.mktemp("report")
    reported_study.write(
        folder, unfinished=("gpt2-2x32x2-seed1",), tasks=("qnli",), title=NASTY, question=NASTY,
        figures=["score_by_size", "loss_by_time", "loss_by_tokens"], command=NASTY,
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
    # No task of GLUE-Large but QNLI: nothing stands in score_by_size.
    figures = ("loss_by_time", "loss_by_tokens")
    expected |= {f"figures/{f}.{e}" for f in figures for e in ("png", "svg")}
    expected |= {f"cards/{run.name}.md" for run in made[0].runs if run.finished}
    assert names == expected | {"report.md", "report.html"}


def test_the_page_is_one_file_and_holds_no_address(made) -> None:
    text = made[2].read_text()
    assert not re.search(r"https?:|@import|url\(|<(link|iframe|base)\b", text)
    targets = re.findall(r"<[a-z][^>]*\s(?:href|src|action|data)=\"([^\"]*)\"", text)
    assert targets and all(target.startswith("#") for target in targets)


def test_what_comes_from_data_is_escaped(made) -> None:
    text = made[2].read_text()
    assert "alert(" in text
    assert text.count("<script") == 2 and text.count("</script>") == 2
    assert "<img" not in text
    assert "\\textbackslash" not in (made[2].parent / "tables/large.tex").read_text()
    assert r"\& \$\_\textasciicircum{}" in (made[2].parent / "tables/large.tex").read_text()


def test_a_half_finished_study_says_so(made) -> None:
    for name in ("report.md", "report.html"):
        text = (made[2].parent / name).read_text()
        assert "7 of 8 pre-trainings finished" in text
        assert "gpt2-2x32x2-seed1" in text
        assert "departs from the control" in text


def test_the_markdown_shows_what_it_should(made) -> None:
    text = (made[2].parent / "report.md").read_text()
    for expected in (
        "## Results", "figures/loss_by_time.svg", "## Hypotheses", "### 1a: ",
        "## Departures", "## Reproduce", reported_study.COMMIT[:12],
    ):  # fmt: skip
        assert expected in text, expected


def test_a_study_without_finished_runs_is_refused(tmp_path) -> None:
    names = tuple(f"bert-2x16x2-seed{k}" for k in (0, 1))
    reported_study.write(tmp_path, systems=("bert",), shapes=((2, 16, 2),), unfinished=names)
    study = study_runs.read(tmp_path)
    with pytest.raises(ValueError, match="a report over no finished runs, 2 planned"):
        report.write(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_card_that_cannot_be_made_is_named(tmp_path, monkeypatch) -> None:
    """And a mistake of ours in a card is no missing card."""
    reported_study.write(tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=("qnli",))
    make = card.of_run

    def failing(folder, error):
        if folder.name.endswith("seed1"):
            raise error
        return make(folder)

    monkeypatch.setattr(card, "of_run", lambda f: failing(f, ValueError(f"{f} is odd")))
    path = report.make(tmp_path)
    said = "No card of bert-2x16x2-seed1: runs/bert-2x16x2-seed1 is odd."
    assert said in path.with_name("report.md").read_text() and said in path.read_text()
    assert [p.name for p in (path.parent / "cards").iterdir()] == ["bert-2x16x2-seed0.md"]
    monkeypatch.setattr(card, "of_run", lambda f: failing(f, KeyError("max_len")))
    with pytest.raises(KeyError):
        report.make(tmp_path)


def test_the_commits_of_fine_tunings_are_told_apart_from_those_of_pretrainings(tmp_path) -> None:
    reported_study.write(tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=("qnli",))
    commit = reported_study.COMMIT[:12]
    markdown = report.make(tmp_path).with_name("report.md")
    assert f"| Commits | {commit} (2 runs) |" in markdown.read_text()
    assert "Commits of fine-tunings" not in markdown.read_text()  # none tells
    paths = sorted(tmp_path.glob("runs/*/tasks/**/environment.json"))
    for place, path in enumerate(paths):
        told = {"git_commit": "f" * 40, "git_dirty": place == 0}
        path.write_text(json.dumps(json.loads(path.read_text()) | told))
    said = f"{'f' * 12} ({len(paths) - 1} runs), {'f' * 12} with local changes (1 run)"
    report.make(tmp_path)
    assert f"| Commits of fine-tunings | {said} |" in markdown.read_text()
    assert f"| Commits | {commit} (2 runs) |" in markdown.read_text()


def test_what_no_run_tells_is_said_below_every_table(tmp_path) -> None:
    reported_study.write(tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=("qnli",))
    assert "Not known" not in report.make(tmp_path).read_text()
    for path in tmp_path.glob("runs/**/environment.json"):
        path.write_text("{}")
    for path in tmp_path.glob("runs/*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"data_hash": None}))
    page = report.make(tmp_path)
    for said in (
        "no run tells what texts it was trained on",
        "not every start of a run tells its version",
        "not every fine-tuning tells its version",
    ):
        for path in (page, page.with_name("report.md"), *page.parent.glob("tables/*.csv")):
            assert f"Not known to be equal: {said}" in path.read_text() or "depart" in path.name
    one = tmp_path / "runs/bert-2x16x2-seed1/result.json"
    one.write_text(json.dumps(json.loads(one.read_text()) | {"data_hash": "d"}))
    with pytest.raises(ValueError, match=r"data: \S*seed0 does not tell its texts .*seed1 does"):
        report.make(tmp_path)


def test_a_damaged_run_is_named_without_the_path_of_the_folder(tmp_path) -> None:
    reported_study.write(tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=("qnli",))
    (tmp_path / "runs/bert-2x16x2-seed1/result.json").write_text("{")
    path = report.write(study_runs.read(tmp_path), tmp_path / "out")
    assert "1 of 2 runs are damaged: bert-2x16x2-seed1" in path.read_text()
    assert str(tmp_path) not in path.read_text()


def test_score_by_size_draws_the_estimates(tmp_path) -> None:
    shapes = ((2, 16, 2), (2, 32, 2), (2, 16, 4), (4, 64, 8))
    reported_study.write(
        tmp_path, systems=("bert",), shapes=shapes, seeds=1, tasks=("mnli", "qqp", "qnli")
    )
    study = study_runs.read(tmp_path)
    evidence = StudyScores(study)
    figure = size_figure.draw(study, evidence)
    panels = {axis.get_title(): axis for axis in figure.axes}
    assert list(panels) == ["width", "depth", "other shapes"]
    width = panels["width"].containers[0].lines[0]
    scores = [100 * evidence.value(p, "large").value for p in study.points[:2]]
    assert list(width.get_xdata()) == [12 * 2 * 16**2, 12 * 2 * 32**2]
    assert list(width.get_ydata()) == scores
    bars = panels["width"].containers[0].lines[2][0].get_segments()
    ends = [evidence.value(p, "large") for p in study.points[:2]]
    for bar, end in zip(bars, ends, strict=True):
        assert bar[:, 1] == pytest.approx([100 * end.low, 100 * end.high])


def test_single_and_several_dimensions_are_lines_of_their_own() -> None:
    """Figure 7.2, of the shapes of thesis_7_5_2 at scale full."""
    shapes = ((2, 204, 7), (2, 256, 9), (8, 544, 2), (2, 384, 2), (2, 128, 18), (2, 544, 2),
              (2, 128, 36))  # fmt: skip
    points = [study_runs.Point("bert", study_runs.Shape(*s), "baseline", ()) for s in shapes]
    found = size_figure.panels_of(points)
    assert {title: [[str(p.shape) for p in line] for line in lines] for title, lines in found} == {
        "width": [["2x384x2", "2x544x2"]],
        "depth": [["2x128x18", "2x128x36"]],
        "other shapes": [["2x204x7", "2x256x9"], ["8x544x2"]],
    }
    assert size_figure.panels_of(points[2:3]) == [("all shapes", [points[2:3]])]


def test_a_grid_of_a_variant_has_a_panel_and_its_shapes_stand_apart(tmp_path) -> None:
    shapes = ((2, 32, 2), (2, 26, 3), (2, 16, 8))  # N within 1%
    reported_study.write(
        tmp_path, systems=("bert",), shapes=shapes, variants=("baseline", "short_only"), seeds=1,
        tasks=("mnli", "qqp", "qnli"),
    )  # fmt: skip
    facts = json.loads((tmp_path / "studies/invented.json").read_text())
    facts["runs"] = [r for r in facts["runs"] if r["variant"] != "baseline" or r["shape"]["H"] > 30]
    (tmp_path / "studies/invented.json").write_text(json.dumps(facts))
    study = study_runs.read(tmp_path)
    figure = size_figure.draw(study, StudyScores(study))
    panels = {axis.get_title(): axis for axis in figure.axes}
    assert list(panels) == ["all shapes", "short_only"]
    drawn = panels["short_only"]
    assert [text.get_text() for text in drawn.texts] == ["2x32x2", "2x26x3", "2x16x8"]
    sizes = [container.lines[0].get_xdata()[0] for container in drawn.containers]
    assert sizes[1] == 12 * 3 * 26**2 and sizes[0] < 0.95 * sizes[1] < 0.89 * sizes[2]
    left, right = drawn.get_xlim()
    assert right / left == pytest.approx(4)
    (alone,) = panels["all shapes"].containers
    assert list(alone.lines[0].get_xdata()) == [12 * 2 * 32**2]


def test_loss_by_clock_draws_every_run(made) -> None:
    figure = study_figures.loss_by_clock(made[0], "tokens")
    assert [a.get_title() for a in figure.axes] == [
        f"{system}, length {length}" for system in ("bert", "gpt2") for length in (32, 64)
    ]
    lines = figure.axes[2].get_lines()  # gpt2: two shapes, two seeds, one of them stopped half-way
    assert [len(line.get_xdata()) for line in lines] == [9, 9, 9, 5]
    assert lines[0].get_xdata()[0] == 28 * 64 * 100
    with pytest.raises(ValueError, match="unknown figure 'loss_by_tim'"):
        facts = made[0].facts | {"figures": ["loss_by_tim"]}
        wrong = study_runs.Study(made[0].workdir, facts, made[0].points)
        study_figures.write(wrong, made[1], made[2].parent)


def test_figures_are_whole_and_do_not_change(made, tmp_path) -> None:
    study_figures.write(made[0], made[1], tmp_path)
    for path in tmp_path.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        again = made[2].parent / "figures" / path.name
        assert path.read_bytes() == again.read_bytes()


def test_styles_differ_and_are_the_palettes() -> None:
    styles = [palette.style(i) for i in range(252)]
    assert len(set(styles)) == 252
    for one, two in zip(styles, styles[1:], strict=False):
        assert one.color != two.color and one.marker != two.marker and one.dash != two.dash


# RGB in linear light to the cones, and what a missing cone leaves (Viénot, Brettel and Mollon 1999,
# Color Res. Appl. 24:243, Table 1 and equations 4 and 5).
CONES = np.array(
    [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
)
WITHOUT_RED = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]])
WITHOUT_GREEN = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])
TABLEAU = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2")


def nearest_pair(colors, loss) -> float:
    """Least distance of two colours, each 0 to 1 in RGB, as one without a cone sees them."""
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colors]) ** 2.2
    seen = (np.linalg.inv(CONES) @ loss @ CONES @ rgb.T).T.clip(0, 1) ** (1 / 2.2)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    return apart[np.triu_indices(len(seen), 1)].min()


@pytest.mark.parametrize("loss", [WITHOUT_RED, WITHOUT_GREEN])
def test_the_colour_blind_tell_the_colours_apart(loss) -> None:
    assert nearest_pair(palette.COLORS, loss) > 0.12 > nearest_pair(TABLEAU, loss)
