"""The report of a study: its files, tables, figures, cards, and its page in a real browser."""

import dataclasses
import html
import json
import re
import shutil
import urllib.parse
from xml.etree import ElementTree

import browser
import numpy as np
import pytest
import reported_study
import study_folders

from scalelab import study
from scalelab.config.durations import CLOCKS
from scalelab.lab.compare import claims, estimates, hypotheses
from scalelab.lab.compare.scores import Comparison
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.show import answer, figures, report
from scalelab.lab.show.score_tables import TableRequest
from scalelab.records import archive
from scalelab.records.baselines import BaselineCheck

NASTY = '</script><script>alert("x")</script><img src=x onerror=alert(1)> & $_^ [a](b)'
ONE_SHAPE = {"systems": ("bert",), "shapes": ((2, 16, 2),), "tasks": ("qnli",)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A half-finished study with hostile text, and the path of its report."""
    folder = tmp_path_factory.mktemp("report")
    reported_study.write(
        folder, unfinished=("gpt2-2x32x2-seed1",), tasks=("qnli",), title=NASTY, question=NASTY,
        figures=["score_by_size", "score_by_task", "loss_by_time", "loss_by_tokens"],
        command=NASTY, variants=("default", "<i>half"), hypotheses=["1a"],
    )  # fmt: skip
    return study_runs.read(folder), report.make(folder, None, folder / "out")


def test_every_file_is_there(made) -> None:
    folder = made[1].parent
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    tables = ("data", "large", "grid", "cost", "hypotheses", "declared_differences")
    expected = {f"tables/{t}.{e}" for t in tables for e in ("tex", "csv")}
    # No task of GLUE-Large but QNLI: score_by_size has nothing to show.
    drawn = ("loss_by_time", "loss_by_tokens", "score_by_cost")
    expected |= {f"figures/{f}.{e}" for f in drawn for e in ("png", "svg", "pdf")}
    assert names == expected | {"report.md", "report.html", "cards.md"}
    cards = (folder / "cards.md").read_text()
    heads = [html.unescape(line[2:]) for line in cards.splitlines() if line.startswith("# ")]
    assert heads == [run.name for run in made[0].runs if run.finished]


def test_the_page_is_one_small_file_without_network(made) -> None:
    text = made[1].read_text()
    assert len(text) < 500_000
    targets = re.findall(r"<[a-z][^>]*\s(?:href|src|action|data)=\"([^\"]*)\"", text)
    pictures = [target for target in targets if target.startswith("data:image/svg+xml;base64,")]
    assert len(pictures) == 3 and len(targets) > 4
    folder = made[1].parent  # links lead to the page, or to files beside it
    others = [html.unescape(target) for target in targets if target not in pictures]
    assert all(x.startswith("#") or (folder / urllib.parse.unquote(x)).is_file() for x in others)
    assert not re.search(r"@import|url\(|<(link|iframe|base)\b", text)
    assert "default-src 'none'" in html.unescape(text)


def test_text_of_a_study_is_escaped(made) -> None:
    page = made[1].read_text()
    assert page.count("<script") == 1 == page.count("</script>")
    assert "<img src=x" not in page and "<i>" not in page
    for path in (made[1].with_name("report.md"), *made[1].parent.glob("*/*.md")):
        text = re.sub(r"^    .*$", "", path.read_text(), flags=re.M)  # code
        assert not re.search(r"<[a-zA-Z/]", text), path
        assert "[a](b)" not in text
    assert r"\textless{}i\textgreater{}half" in (made[1].parent / "tables/large.tex").read_text()


def test_a_half_finished_study_is_reported_as_such(made) -> None:
    for name in ("report.md", "report.html"):
        text = made[1].with_name(name).read_text()
        assert "15 of 16" in text and "gpt2-2x32x2-seed1" in text
    text = made[1].with_name("report.md").read_text()
    assert "| Numerics version | 1 |" in text
    for expected in ("figures/loss_by_time.svg", "| 1a ", reported_study.COMMIT[:12],
                     "[bert-2x16x2-seed0](cards.md#bert-2x16x2-seed0)"):  # fmt: skip
        assert expected in text, expected


def test_a_study_without_finished_runs_is_refused(tmp_path) -> None:
    names = tuple(f"bert-2x16x2-seed{k}" for k in (0, 1))
    reported_study.write(tmp_path, **ONE_SHAPE, unfinished=names)
    with pytest.raises(ValueError, match="invented"):
        report.make(tmp_path, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_packed_study_without_a_question(tmp_path) -> None:
    """Its page links SVG and CSV alone, and has no empty line for the question."""
    reported_study.write(tmp_path / "w", **ONE_SHAPE, question="")
    study = study_runs.read(tmp_path / "w")
    archive.pack({run.name: run.folder for run in study.runs}, tmp_path / "kept")
    (tmp_path / "w/studies").rename(tmp_path / "kept/studies")
    page = report.make(tmp_path / "kept", None, tmp_path / "out").read_text()
    links = re.findall(r'href="((?:tables|figures)/[^"]*)"', page)
    assert {link.rpartition(".")[2] for link in links} == {"svg", "csv"}
    assert '<p class="question">' not in page
    assert "\n**\n" not in (tmp_path / "out/report.md").read_text()


def test_the_primary_table_has_the_differences_to_the_first_arm(tmp_path) -> None:
    reported_study.write(tmp_path, **ONE_SHAPE | {"systems": ("bert", "gpt2")})
    study = study_runs.read(tmp_path)
    scores = StudyScores(study)
    a, b = study.points
    table = answer.tabulate_primary(scores, ("qnli", ""))
    (_, value, none, *_), (name, _, apart, num, tokens, *_) = table.rows
    assert none is None and name == b.label and num == 2 and tokens == b.finished[0].result.tokens
    expected = scores.difference(a, b, "qnli")
    assert apart[:3] == (expected.value, expected.low, expected.high)
    assert value.value == scores.value(a, "qnli").value
    assert answer.tabulate_primary(scores, ("cola", "")) is None


def test_no_verdict_contradicts_an_interval_of_its_report(tmp_path) -> None:
    """Twelve claims with effects of 0 to 5 errors: of some, the 95% interval would."""
    noise = np.random.default_rng(4).normal(0, 0.02, (7, 4))
    names = ["default", *(f"v{k}" for k in range(6))]
    runs = [
        {"system": "bert", "shape": "2x32x2", "seed": seed, "variant": name, "loss": 3 - k / 50 + x}
        for k, name in enumerate(names) for seed, x in enumerate(noise[k])
    ]  # fmt: skip
    lines = [[f"{name} {how}", "loss", *margin] for name in names[1:]
             for how, margin in (("< default", ()), ("~ default", (0.06,)))]  # fmt: skip
    study_folders.write_study(
        tmp_path, runs, hypotheses=lines, comparison=None, variants=dict.fromkeys(names, [])
    )
    scores, _, _, findings = report.judge(study_runs.read(tmp_path))
    made = [claim for finding in findings for claim in finding.claims]
    primary = answer.tabulate_primary(scores, ("loss", ""), findings)
    shown = [row[3] for row in report.tabulate_claims(findings, scores, ()).rows]
    plain, apart = 0, [row[2] for row in primary.rows[1:] for _ in range(2)]
    for claim, *cells in zip(made, shown, apart, strict=True):
        borders = [x for x in (claim.region.low, claim.region.high) if np.isfinite(x)]
        for cell in cells[: 1 + (len(borders) == 1)]:  # the first claim of two rows has their cell
            assert any(cell.low <= x <= cell.high for x in borders) == (
                claim.verdict == claims.UNDECIDED
            ), claim.what
        low, high = claim.estimate.low, claim.estimate.high
        plain += (claim.verdict == claims.UNDECIDED) and not any(low <= x <= high for x in borders)
    assert plain and {c.verdict for c in made} == {"confirmed", "refuted", "undecided"}


def test_verdicts_are_a_matrix_of_comparisons_and_scores() -> None:
    def claim(compared: str, score: str, effect: float) -> claims.Claim:
        return claims.Claim("", claims.ABOVE, effect, None, "", 0.01, 0.99, 0.02, scale=100.0,
                            compared=compared, score=score)  # fmt: skip

    made = [claim("a > b", "QNLI", 0.1), claim("a > c", "QNLI", 0.2), claim("a > c", "SST-2", 0.3)]
    findings = [claims.Finding(str(k), "", "", (x,)) for k, x in enumerate(made)]
    table = answer.tabulate_verdicts(findings)
    assert [c.title for c in table.columns] == ["comparison", "QNLI", "SST-2"]
    assert table.rows == (
        ("a > b", "confirmed, 10", ""),
        ("a > c", "confirmed, 20", "confirmed, 30"),
    )


def test_claims_that_differ_in_their_margin_are_told_apart(tmp_path) -> None:
    lines = [["bert > gpt2", "qnli"], ["bert > gpt2", "qnli", 20]]
    reported_study.write(tmp_path, **TWO_TASKS, hypotheses=lines)
    page = report.make(tmp_path, None, tmp_path / "out").with_suffix(".md").read_text()
    assert "| bert > gpt2, above 20 " in page and "bert > gpt2 on QNLI, above 20: refuted" in page
    assert "| bert > gpt2  " in page and "bert > gpt2 on QNLI: confirmed" in page


TWO_TASKS = {"shapes": ((2, 16, 2),), "tasks": ("mnli", "qnli"), "seeds": 3}


def find(folder, **facts):
    """The headline of an invented study, and why there is none."""
    reported_study.write(folder, **TWO_TASKS | facts)
    study = study_runs.read(folder)
    return answer.find_primary(StudyScores(study))


def test_the_headline_is_a_score_that_a_claim_names(tmp_path) -> None:
    """Tasks that no claim names are measured first; a claim may be about losses."""
    assert find(tmp_path / "qnli", hypotheses=[["bert > gpt2", "qnli"]]) == ("qnli", "")
    lines = [["2x32x2 > 2x16x2", "loss"]]
    shapes = {"shapes": reported_study.SHAPES, "systems": ("bert",)}
    assert find(tmp_path / "loss", hypotheses=lines, **shapes) == ("loss", "")
    headline, reason = find(tmp_path / "two", hypotheses=[["bert > gpt2", "loss"]])
    assert headline == "loss" and "does not compare between rows of different" in reason


def test_the_first_claim_names_the_primary_score(tmp_path) -> None:
    for first, second in (("mnli_m", "qnli"), ("qnli", "mnli_m")):
        lines = [["bert > gpt2", first], ["bert > gpt2", second]]
        assert find(tmp_path / first, hypotheses=lines) == (first, "")


def test_the_primary_score_of_the_study_heads_the_report(tmp_path, monkeypatch) -> None:
    """Its claims come first, also if they are open; a score that tells nothing is not replaced."""
    lines = [["bert > gpt2", "mnli"], ["bert > gpt2", "qnli"], ["bert ~ gpt2", "qnli", 0.1]]
    facts = {"primary": "qnli", "earlier_primary": [["mnli", 2], [None, 4]]}
    assert find(tmp_path, hypotheses=lines, **facts) == ("qnli", "")
    study = study_runs.read(tmp_path)
    scores = StudyScores(study)
    findings = hypotheses.judge(study, scores, Comparison())
    order = ["bert > gpt2 on QNLI: confirmed", "bert ~ gpt2 on QNLI, within -0.1 to 0.1: ",
             "Verdicts on 3 hypotheses", "bert > gpt2 on MNLI-m: confirmed"]  # fmt: skip
    sentences = answer.answer(findings, "", "qnli")
    assert len(sentences) == 4
    assert all(x.startswith(y) for x, y in zip(sentences, order, strict=True)), sentences
    limits = report.describe_limits(study)
    for change, num in (("MNLI-m to none", 2), ("none to QNLI", 4)):
        text = f"The primary outcome was changed from {change} after {num} runs had finished."
        assert text in limits
        shown = answer.for_terminal(scores, findings)
        assert text in " ".join(shown.split())
    assert report.describe_design(study)["Primary outcome"] == "QNLI"
    monkeypatch.setattr(StudyScores, "floor", lambda _, score: 0.9 if score == "qnli" else 0.1)
    headline, reason = answer.find_primary(StudyScores(study))
    assert headline == "qnli" and "must exceed the trivial score" in reason


def test_a_score_that_tells_nothing_is_no_headline(tmp_path, monkeypatch) -> None:
    """At its floor, or not ahead of the models from scratch; then the report says so."""
    lines = [["bert > gpt2", score] for score in ("mnli_m", "qnli")]
    monkeypatch.setattr(StudyScores, "floor", lambda _, score: 0.9 if score == "mnli_m" else 0.1)
    assert find(tmp_path / "one", hypotheses=lines) == ("qnli", "")
    assert find(tmp_path / "none", hypotheses=[]) == ("qnli", "")
    monkeypatch.setattr(StudyScores, "floor", lambda *_: 0.9)
    headline, reason = find(tmp_path / "all", hypotheses=lines)
    assert headline == "mnli_m" and reason.count("must exceed the trivial score 90.0") == 2
    said = list[str]()
    page = report.make(tmp_path / "all", None, tmp_path / "out", say=said.append)
    text = page.with_name("report.md").read_text()
    assert "No score ranks the arms: MNLI-m is at most" in text
    assert "Primary score: MNLI-m, which ranks no arms; 95% intervals" in text
    assert "minus bert" in text and "minus bert" in page.read_text() and "minus bert" in said[0]
    assert "score_by_cost" not in text
    monkeypatch.setattr(StudyScores, "floor", lambda *_: 0.1)
    study = study_runs.read(tmp_path / "all")
    scores = StudyScores(study)
    monkeypatch.setattr(StudyScores, "scratch", scores)  # as good as the models from scratch
    assert "the same models from random weights" in answer.find_primary(scores)[1]


def test_terminal_and_page_have_the_same_reasons(tmp_path, monkeypatch) -> None:
    """One score is at its floor, the other has one seed; the end of `study run` says the same."""
    lines, said = [["bert > gpt2", score] for score in ("mnli_m", "qnli")], []
    facts = TWO_TASKS | {"seeds": 1, "hypotheses": lines, "figures": []}
    reported_study.write(tmp_path, **facts)
    monkeypatch.setattr(StudyScores, "floor", lambda _, score: 0.9 if score == "mnli_m" else 0.1)
    page = report.make(tmp_path, None, tmp_path / "out", say=said.append)
    texts = [said[0], study.verdicts(tmp_path, "invented")]
    texts += [
        page.with_suffix(".md").read_text().replace("\\", ""),
        html.unescape(page.read_text()),
    ]
    for text in (" ".join(text.split()) for text in texts):
        assert "bert > gpt2: MNLI-m is at most" in text and "exceed the trivial score 90.0" in text
        assert f"bert > gpt2, QNLI: undecided: {estimates.SINGLE_SEED}." in text


def test_the_answer_counts_the_decided_parts_of_open_statements() -> None:
    part = claims.Claim("bert minus gpt2, QNLI", claims.ABOVE, 0.1, None, "", 0.01, 0.99, 0.01)
    other = claims.Claim(
        "bert minus gpt2, SST-2", claims.ABOVE, None, None, "", checks=claims.Treatment("floor")
    )
    finding = claims.Finding("1", "bert > gpt2", "", (part, other), claims.ALL,
                             claims.NOT_TESTABLE)  # fmt: skip
    counts, parts = answer.answer([finding])
    assert counts == "Verdicts on 1 hypothesis: 1 not testable at this scale."
    assert parts == "Parts of the open hypotheses, one score each: 1 confirmed."


def test_a_loss_that_no_objective_brought_down_is_no_headline(tmp_path, monkeypatch) -> None:
    failure = [BaselineCheck("None", "mlm_loss 7 against 7 of the unigram entropy")]
    name = "scalelab.lab.compare.learned.check_baselines"
    monkeypatch.setattr(name, lambda *_: failure)
    headline, reason = find(tmp_path, systems=("bert",), tasks=())
    assert headline == "loss" and "does not beat its baseline (mlm_loss 7" in reason


def test_unknown_tokens_make_bits_per_byte_a_lower_bound(tmp_path) -> None:
    reported_study.write(tmp_path, **ONE_SHAPE, figures=[])

    def bounds() -> list[str]:
        limits = report.describe_limits(study_runs.read(tmp_path))
        return [line for line in limits if "lower bound" in line]

    for unknown in (None, 0, 25):
        (path,) = tmp_path.glob("runs/bert-2x16x2-seed0/result.json")
        held = {"documents": 3, "tokens": 1000, "unknown": unknown}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"validation": held}))
        assert len(bounds()) == bool(unknown)
    assert bounds()[0].endswith(": bert 2x16x2 2.50%.")


def test_finished_runs_of_other_studies_are_named(tmp_path) -> None:
    reported_study.write(tmp_path, **ONE_SHAPE, figures=[])
    (source,) = tmp_path.glob("runs/bert-2x16x2-seed0")
    assert not any("not part" in line for line in report.describe_limits(study_runs.read(tmp_path)))
    for k in range(10):
        shutil.copytree(source, tmp_path / f"runs/other{k}")
    (tmp_path / "runs/other9/result.json").unlink()
    (line,) = (x for x in report.describe_limits(study_runs.read(tmp_path)) if "not part" in x)
    assert line.startswith("9 finished runs in this folder are not part of this study: other0, ")
    assert "other7, ..." in line and "other8" not in line


def test_a_damaged_run_is_named_without_the_path_of_the_folder(tmp_path) -> None:
    reported_study.write(tmp_path, **ONE_SHAPE, figures=[])
    (tmp_path / "runs/bert-2x16x2-seed1/result.json").write_text("{")
    path = report.make(tmp_path)
    assert "bert-2x16x2-seed1: result.json" in path.read_text()
    assert str(tmp_path) not in path.read_text()


def test_losses_are_drawn_for_every_run(made) -> None:
    figure = figures.draw_losses(made[0], clock=CLOCKS["tokens"])
    assert [a.get_title() for a in figure.axes] == [
        f"{system}, length {length}" for system in ("bert", "gpt2") for length in (32, 64)
    ]
    lines = figure.axes[2].get_lines()  # gpt2: four rows, two seeds, one of them stopped half-way
    thin, bold = ([x for x in lines if x.get_linewidth() == width] for width in (0.7, 1.8))
    assert sorted(len(line.get_xdata()) for line in thin) == [5] + 7 * [9]
    assert thin[0].get_xdata()[0] == 28 * 64 * 100
    for k, mean in enumerate(bold):  # mean over two seeds, to where the first of them ends
        both = [line.get_ydata()[: len(mean.get_xdata())] for line in thin[2 * k : 2 * k + 2]]
        np.testing.assert_allclose(mean.get_ydata(), np.mean(both, axis=0))
    for path in made[1].parent.glob("figures/*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    facts = dataclasses.replace(made[0].facts, figures=("loss_by_tim",))
    wrong = study_runs.Study(made[0].workdir, facts, made[0].points)
    with pytest.raises(ValueError, match="'loss_by_tim'"):
        figures.draw(TableRequest(wrong, StudyScores(wrong)), figures.FIGURES)


def test_final_losses_by_parameters(tmp_path) -> None:
    """By hand, from the runs' results: the better of two rows at each of two widths."""
    reported_study.write(tmp_path, variants=("default", "half"))
    study = study_runs.read(tmp_path)
    for primary in ("loss", "bits_per_byte"):
        facts = dataclasses.replace(study.facts, primary=primary)
        own = study_runs.Study(study.workdir, facts, study.points)
        figure = figures.draw_parameters(own, StudyScores(own))
        assert figure is not None
        drawn = {x.get_label(): x.lines[0] for axis in figure.axes for x in axis.containers}
        assert {*drawn} == {"bert", "gpt2"}
        assert len(figure.axes) == (1 if primary == "bits_per_byte" else 2)  # other tokenizers
        for system, line in drawn.items():
            best: dict[int, float] = {}
            for point in (point for point in study.points if point.system == system):
                last = [run.result.eval["64"][primary] for run in point.finished if run.result]
                best[point.n_model] = min(best.get(point.n_model, 1e9), float(np.mean(last)))
            assert len(best) == 2
            assert dict(zip(*line.get_data(), strict=True)) == pytest.approx(best)
            words = line.axes.get_ylabel()
            caption = figures.captions(own)["loss_by_parameters"]
            for text in (words, caption):
                assert ("bits per byte" in text) == (primary == "bits_per_byte")
        curves = figures.draw_losses(own, clock=CLOCKS["tokens"]).axes[1].get_lines()
        (first,) = study.points[0].runs[0].curves[64][:1]
        assert any(x.get_ydata()[0] == first[f"eval/{primary}"] for x in curves)
    one = study_runs.Study(study.workdir, study.facts, study.points[:2])
    assert len({point.n_model for point in one.points}) == 1
    assert figures.draw_parameters(one, StudyScores(one)) is None


def test_losses_of_other_kinds_have_other_panels(tmp_path) -> None:
    """Two mask rates of one system: neither is best, and no line joins them."""
    reported_study.write(tmp_path, systems=("bert",), variants=("default", "half"))
    study = study_runs.read(tmp_path)
    for point in study.points:
        for run in point.runs:
            run.config["mask_rate"] = 0.4 if point.variant == "half" else 0.15
    figure = figures.draw_parameters(study, StudyScores(study))
    assert figure is not None
    drawn = [x.lines[0].get_data() for axis in figure.axes for x in axis.containers]
    assert len(figure.axes) == 2 and [len(sizes) for sizes, _ in drawn] == [2, 2]


def test_counts_have_no_parameters(tmp_path) -> None:
    """A system whose N is 0 keeps it, and is a line in the figure, which has no place for 0."""
    reported_study.write(tmp_path)
    for path in tmp_path.glob("runs/gpt2-*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"n_model": 0}))
    study = study_runs.read(tmp_path)
    assert {p.n_model for p in study.points if p.system == "gpt2"} == {0}
    figure = figures.draw_parameters(study, StudyScores(study))
    assert figure is not None
    (line,) = (x for axis in figure.axes for x in axis.get_lines() if x.get_label() == "gpt2, N 0")
    (low, high) = line.get_ydata()
    assert low == high


def test_seeds_are_dots_beside_their_mean_and_the_constant_answer(tmp_path) -> None:
    """60 dev examples, every second of a class, in MNLI every third; F1 of always 1: 2/3."""
    reported_study.write(tmp_path, tasks=("mnli", "qqp", "qnli", "sst2"))
    study = study_runs.read(tmp_path)
    scores = StudyScores(study)
    for score, constant in (("qnli", 0.5), ("mnli_m", 1 / 3), ("qqp_f1", 2 / 3)):
        assert scores.floor(score) == pytest.approx(constant)
    assert scores.floor("cola") is None
    (axis,) = figures.draw_cost(scores, "qnli").axes
    dots = [line.get_ydata() for line in axis.get_lines() if line.get_marker() == "."]
    for seeds, point in zip(dots, study.points, strict=True):
        assert len(seeds) == 2
        assert np.mean(seeds) == pytest.approx(100 * scores.value(point, "qnli").value)
    assert any(list(line.get_ydata()) == [50, 50] for line in axis.get_lines())


@pytest.mark.slow
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_the_page_works_in_a_browser(made) -> None:
    """Without errors or requests; figures are drawn, a table sorts."""
    with browser.opened(made[1]) as driver:
        find = lambda selector: driver.find_elements("css selector", selector)  # noqa: E731
        assert driver.get_log("browser") == []
        requests = [json.loads(e["message"])["message"] for e in driver.get_log("performance")]
        addresses = {r["params"]["request"]["url"] for r in requests
                     if r["method"] == "Network.requestWillBeSent"}  # fmt: skip
        assert {a for a in addresses if not a.startswith("data:")} == {made[1].resolve().as_uri()}
        assert [p.get_property("naturalWidth") > 0 for p in find("figure img")] == [True] * 3
        heads = [head.text.split()[0] for head in find("#table-large th")]
        cells = f"#table-large tbody td:nth-child({heads.index('N') + 1})"
        header = f"#table-large th:nth-child({heads.index('N') + 1}) button"
        find(header)[0].click()  # as words, "24,576" would come first
        assert [c.text for c in find(cells)] == ["6,144"] * 4 + ["24,576"] * 4
        find(header)[0].click()
        assert [c.text for c in find(cells)] == ["24,576"] * 4 + ["6,144"] * 4
