"""Tables of an invented study: against the estimates themselves, and numbers worked out by hand."""

import csv
import dataclasses
import io
import json
import math

import numpy as np
import pytest
import reported_study
import study_folders

from scalelab.config.durations import CLOCKS
from scalelab.eval import score_names
from scalelab.lab import tables
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.show import figures, notes, report, score_tables
from scalelab.lab.tables import Column, Table, Value


def with_facts(study: study_runs.Study, **facts) -> study_runs.Study:
    return dataclasses.replace(study, facts=dataclasses.replace(study.facts, **facts))


class Fixed:
    """Scores: the score of a row is its width in percent; of every difference the error is 1."""

    part = "tasks"

    def __init__(self, rows, doubts=()):
        self.rows, self.doubts = rows, doubts

    def value(self, row, score):
        value = row.shape.width / 100
        return Estimate(value, value - 0.02, value + 0.03, 0.01, math.inf, np.zeros(1))

    def remarks(self, scores):
        return list(self.doubts)

    def difference(self, a, b, score):
        error = 0.01 * b.shape.num_layers
        return Estimate(0.0, 0.0, 0.0, error, math.inf, np.zeros(1))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    reported_study.write(
        folder, unfinished=("gpt2-2x32x2-seed1",), tables=["data", "large", "small", "grid", "cost"]
    )
    return study_runs.read(folder)


@pytest.fixture(scope="module")
def built(study) -> dict[str, Table]:
    return {table.name: table for table in reported_study.build_tables(study, StudyScores(study))}


def shown(table: Table) -> str:
    return tables.markdown(table.texts(), table.num_names)


def column(table: Table, key: str) -> list:
    place = [c.key for c in table.columns].index(key)
    return [row[place] for row in table.rows]


def test_every_cell_is_the_estimate_of_its_row(study, built) -> None:
    scores = StudyScores(study)
    for key in ("large", "large_f1", "mnli_m", "mnli_mm", "qqp", "qnli", "sst2"):
        for point, cell in zip(study.points, column(built["large"], key), strict=True):
            expected = scores.value(point, key)
            assert cell == Value(expected.value, expected.low, expected.high, None)
    line = next(csv.DictReader(io.StringIO(tables.csv(built["large"]))))
    assert float(line["qqp_low"]) == column(built["large"], "qqp")[0].low
    assert line["qqp_published"] == ""
    assert column(built["large"], "system") == ["bert", "bert", "gpt2", "gpt2"]
    assert column(built["large"], "n_model") == [6144, 24576] * 2
    assert column(built["large"], "seeds") == [2, 2, 2, 1]
    for point, cell in zip(study.points, column(built["grid"], "loss"), strict=True):
        expected = scores.value(point, "loss")
        np.testing.assert_equal(cell[:3], (expected.value, expected.low, expected.high))
    assert "[-]" in shown(built["cost"])  # one of two runs is finished


def test_the_data_of_an_epoch_and_how_often_it_was_read(tmp_path) -> None:
    reported_study.write(
        tmp_path, systems=("bert",), shapes=((2, 16, 2),), tables=["data"], tasks=()
    )
    corpus = {"documents": 300, "tokens": 150_000}
    phases = [{"max_len": 32, "examples": 9600, "tokens": 264_000},
              {"max_len": 64, "examples": 3200, "tokens": 192_032}]  # fmt: skip
    for path in (tmp_path / "runs").glob("*seed1/result.json"):  # seed 0 is of an older version
        more = {"corpus": corpus, "phases": phases}
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    study = study_runs.read(tmp_path)
    (table,) = reported_study.build_tables(study, Fixed(study.points))
    short, long, both = (
        [c.value if isinstance(c, Value) else c for c in row] for row in table.rows
    )
    assert short[2:] == ["short (32)", 8000, 264_000, 27.5, 9600, 900, 6.0, 57_600, 1_612_800, None,
                         None]  # fmt: skip
    assert long[4:9] == [192_032, 60.01, 3200, 100, 0.5]
    assert both[2:8] == ["both", 8000, 456_032, 456_032 / 12_800, 12_800, 1000]
    assert both[8:] == [None, 59_200, 1_708_800, 150_000, 1_708_800 / 150_000]
    assert any("Different text" in note for note in table.notes)
    text = shown(table)
    assert "| 264,000 | 27.50 | 9,600 | 900 | 6 | 57,600 | 1,612,800 | - | - |" in " ".join(
        text.split()
    )
    # A phase that is left out leaves its documents unread: how many is not recorded.
    reported_study.edit_runs(tmp_path, lambda run: run["config"]["long"].update(epoch_rate=0.0))
    left_out = study_runs.read(tmp_path)
    (table,) = reported_study.build_tables(left_out, Fixed(left_out.points))
    assert column(table, "text_read")[-1] is None


def test_the_report_says_what_is_missing_and_what_departs(study, built) -> None:
    notes = reported_study.build_notes(study, StudyScores(study))
    text = "\n".join(
        [*notes, *report.describe_limits(study), *report.describe_design(study).values()]
    )
    for named in ("7 of 8", "gpt2-2x32x2-seed1", "steps", "epochs=3.0", "cale tiny"):
        assert named in text
    assert "small" not in built


def test_a_departure_that_is_not_in_force_says_so(tmp_path) -> None:
    declared = [
        {"field": "optim.total_epochs", "value": 6.0, "source": "there"},
        {"field": "tokenizer.kind", "value": "unigram", "source": "there"},
        {"field": "tokenizer.vocab_size", "value": 8000, "source": "there"},
    ]
    reported_study.write(
        tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=(), tables=["loss"], figures=[],
        departures={"bert": declared}, system_fields={"bert": ["optim.beta2=0.9"]},
    )  # fmt: skip
    folder = report.make(tmp_path).parent
    assert (folder / "tables/declared_differences.csv").read_text().splitlines()[1:] == [
        'bert,optim.total_epochs,"6.0, here not set",there',
        'bert,tokenizer.kind,"unigram, here wordpiece",there',
        "bert,tokenizer.vocab_size,8000,there",
    ]
    assert "| Set for bert | optim.beta2=0.9 |" in (folder / "report.md").read_text()


def test_footnotes_stand_in_every_table_and_allowed_fields_in_the_design(study) -> None:
    more = with_facts(study, allow=("eval.x",))
    fixed, footnotes = Fixed(study.points), ["tokens differ by 3%"]
    for table in reported_study.build_tables(more, fixed, footnotes=footnotes):
        assert "tokens differ by 3%" in tables.csv(table)
    assert footnotes[0] in reported_study.build_notes(more, fixed, footnotes=footnotes)
    assert "eval.x" in report.describe_design(more)["May differ"]


def test_missing_tasks_and_capped_training_sets_are_named(study, tmp_path) -> None:
    reported_study.write(tmp_path, tasks=("qnli",), tables=["large"])
    capped = "QNLI: 32 of 104,743"
    for path in (tmp_path / "runs").glob("*/tasks/qnli/seed*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"remarks": [capped]}))
    for path in (tmp_path / "runs").glob("gpt2-2x16x2-seed0/tasks/qnli/seed*/result.json"):
        path.unlink()
    again = study_runs.read(tmp_path)
    notes = reported_study.build_notes(again, StudyScores(again))
    text = "\n".join(notes)
    assert "QNLI" in text and "gpt2-2x16x2-seed0" in text and "2 of 16" in text
    assert notes.count(f"{capped}.") == 1


def test_notes_that_differ_in_numbers_or_systems_are_one() -> None:
    texts = ["cut: 7 of 10,000, all", "cut: 12 of 10,000, all", "other", "cut: 9 of 10,000, all"]
    assert notes.merge_numbers(texts) == ["cut: 7 to 12 of 10,000, all", "other"]
    cut = "RTE: texts cut to 8 tokens: {} (train)."
    texts = [cut.format(x) for x in ("bert 3 of 9", "gpt2 4 of 9", "bert 3 of 9")] + ["other."]
    assert notes.merge_cuts(texts) == [cut.format("bert 3 of 9 (train); gpt2 4 of 9"), "other."]


def test_measured_tasks_of_no_table_are_named(study, tmp_path) -> None:
    def absent(study) -> list[str]:
        notes = reported_study.build_notes(study, StudyScores(study))
        return [note for note in notes if note.startswith("Measured, but in no table")]

    reported_study.write(tmp_path, tasks=("qnli", "rte"), tables=["large"], evaluations=["blimp"])
    again = study_runs.read(tmp_path)
    (note,) = absent(again)
    assert "RTE" in note and "BLiMP" in note and "QNLI" not in note
    assert absent(with_facts(again, tables=("large", "scores"))) == []


def test_every_task_of_a_study_has_a_column() -> None:
    assert set(score_names.MAIN) == {task for c in score_tables.TASKS for task in c.tasks}


def test_published_numbers_stand_beside_ours_at_full_scale_alone(study) -> None:
    """Whether full is the protocol is told from rows that it has: see test_departing."""
    for scale, expected in (("full", 0.16), ("tiny", None)):
        scaled = with_facts(study, tables=("large",), scale=scale)
        doubts = ("Table 0, bert 2x16x2, qnli: doubtful.", "Table 0, bert 9x9x9, x: no.")
        published = Fixed([p for p in study.points if p.shape.width == 16], doubts)
        (table,) = reported_study.build_tables(scaled, Fixed(study.points), published=published)
        cells = column(table, "qnli")
        assert cells[0].published == expected
        assert cells[1].published is None
        text = "".join(reported_study.build_notes(scaled, Fixed(study.points), published=published))
        assert ("published number." in text) == (scale == "full")
        assert ("bert 2x16x2, qnli: doubtful" in text) == (scale == "full")
        assert "9x9x9" not in text


def test_a_table_may_have_some_rows(tmp_path) -> None:
    """By stage, shape and variant; a row may stand in several tables, a caption says what it is."""
    rows = {
        "width": {"title": "Width alone", "stages": ["main"], "shapes": ["2x*x2"], "variants": []},
        "half": {"title": "Half", "stages": [], "shapes": [], "variants": ["half_steps"]},
        "none": {"title": "None", "stages": ["later"], "shapes": [], "variants": []},
    }
    reported_study.write(
        tmp_path, shapes=((2, 16, 2), (2, 32, 2), (2, 16, 4)), seeds=1, tasks=("qnli",),
        variants=("default", "half_steps"), rows=rows,
        tables=["large:width", "large:half", "large", "large:none", "data:none"],
    )  # fmt: skip
    study = study_runs.read(tmp_path)
    built = {table.name: table for table in reported_study.build_tables(study, Fixed(study.points))}
    assert list(built) == ["large-width", "large-half", "large"]
    assert [row[1:4] for row in built["large-width"].rows[:4]] == [(2, 16, 2)] * 2 + [
        (2, 32, 2)
    ] * 2
    assert set(column(built["large-half"], "variant")) == {"half_steps"}
    assert [len(table.rows) for table in built.values()] == [8, 6, 12]
    assert built["large-width"].title.startswith("Width alone. ")
    assert r"\caption{Half. " in tables.latex(built["large-half"], "x")
    report.make(tmp_path, None, tmp_path / "out")
    assert (tmp_path / "out/tables/large-width.csv").exists()
    assert "### Width alone. " in (tmp_path / "out/report.md").read_text()
    assert 'id="table-large-half"' in (tmp_path / "out/report.html").read_text()


def test_nets_with_random_weights_have_a_table_of_their_own(tmp_path) -> None:
    tuned = {"qnli": {0: 6}}
    runs = [
        {"system": name, "shape": "2x32x2", "seed": 0, "tasks": tuned, "scratch": own}
        for name, own in (("bert", {"qnli": {0: 15}}), ("gpt2", {}))
    ]
    study_folders.write_study(tmp_path, runs, tasks=["qnli", "sst2"], tables=["tasks", "scratch"])
    study = study_runs.read(tmp_path)
    tasks, scratch = reported_study.build_tables(study, StudyScores(study))
    assert [x.value for x in column(tasks, "qnli")] == pytest.approx([0.9, 0.9])
    first, second = column(scratch, "qnli")
    assert first.value == pytest.approx(0.75) and second is None
    assert not {"sst2", "seeds"} & {c.key for c in scratch.columns}
    for part in ("tasks", "scratch"):  # remarks of fine-tunings of both tables
        for path in tmp_path.glob(f"runs/*/{part}/*/seed*/result.json"):
            result = json.loads(path.read_text()) | {"remarks": [f"{part} remark"]}
            path.write_text(json.dumps(result))
    again = study_runs.read(tmp_path)
    found = reported_study.build_notes(again, StudyScores(again))
    remarks = [note for note in found if "remark" in note]
    assert remarks == ["QNLI: tasks remark.", "QNLI: scratch remark."]


def test_losses_of_other_lengths_are_of_another_kind(tmp_path) -> None:
    reported_study.write(
        tmp_path, systems=("bert",), variants=("default", "short_only"), tasks=(), tables=["grid"]
    )
    before = study_runs.read(tmp_path)
    (table,) = reported_study.build_tables(before, StudyScores(before))
    assert "loss_kind" not in [c.key for c in table.columns]
    for path in (tmp_path / "runs").glob("*-short_only-*/result.json"):
        result = json.loads(path.read_text())
        del result["eval"]["64"]
        path.write_text(json.dumps(result))
    study = study_runs.read(tmp_path)
    scores = StudyScores(study)
    (table,) = reported_study.build_tables(study, scores)
    assert column(table, "loss_kind") == ["a", "b", "a", "b"]
    assert "a: length 64; b: length 32" in "".join(reported_study.build_notes(study, scores))


def test_losses_of_two_objectives_of_one_system_do_not_compare(tmp_path) -> None:
    reported_study.write(
        tmp_path, systems=("bert",), variants=("default", "mlm"), tasks=(), tables=["grid"]
    )
    noted = []
    for objective in ("mlm+nsp", "mlm"):
        names = {"default": "mlm+nsp", "mlm": objective}
        reported_study.edit_runs(
            tmp_path, lambda run, x=names: run["config"].update(objective=x[run["variant"]])
        )
        study = study_runs.read(tmp_path)
        notes = "".join(reported_study.build_notes(study, StudyScores(study)))
        noted.append("a: objective mlm+nsp; b: objective mlm)" in notes)
        titles = [
            axis.get_title() for axis in figures.draw_losses(study, clock=CLOCKS["tokens"]).axes
        ]
    assert noted == [False, True]
    assert titles[0] == "bert, objective mlm+nsp, length 32"
    assert titles[2] == "bert, objective mlm, length 32"


def test_text_of_users_is_escaped() -> None:
    columns = (Column("a", "a_b"), Column("b", "50%", "count"))
    rows = (("x & y<b>|", 1), ("[#1 {z}](u)", "\\cmd"))
    table = Table("t", "A $ ~ ^", columns, rows, ("<i>",))
    text = tables.latex(table, "t")
    for expected in (r"a\_b & 50\% \\", r"x \& y\textless{}b", r"\#1 \{z\}", r"\textbackslash{}cmd",
                     r"\caption{A \$ \textasciitilde{} \textasciicircum{}}"):  # fmt: skip
        assert expected in text
    assert text.count("{") == text.count("}")
    text = shown(table) + tables.bullets(table.notes)
    assert "x &amp; y&lt;b>\\|" in text and "&lt;i>" in text and "](u)" not in text


def test_fields_of_variants_have_columns(tmp_path) -> None:
    lines = {"default": (), "wide": ("mask_rate=0.4",), "quick": ("optim.learning_rate=0.004",)}
    reported_study.write(
        tmp_path, systems=("bert",), variants=tuple(lines), tasks=(), tables=["grid"],
    )  # fmt: skip

    def set_fields(run: dict) -> None:
        run["config"]["mask_rate"] = 0.4 if run["variant"] == "wide" else 0.15
        rate = 0.004 if run["variant"] == "quick" else 0.001
        run["config"]["optim"] = run["config"]["optim"] | {"learning_rate": rate}

    reported_study.edit_runs(tmp_path, set_fields)
    (path,) = (tmp_path / "studies").glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"variants": lines}))
    study = study_runs.read(tmp_path)
    scores = StudyScores(study)
    (table,) = reported_study.build_tables(study, scores)
    assert column(table, "mask_rate")[:3] == [0.15, 0.4, 0.15]
    assert column(table, "optim.learning_rate")[:3] == [0.001, 0.001, 0.004]
