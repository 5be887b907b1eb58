"""Tables of an invented study: against the estimates themselves, and numbers worked out by hand."""

import csv
import dataclasses
import io
import json
import math
import shutil

import numpy as np
import pytest
import reported_study
import study_folders
import task_folders

from scalelab.config.durations import CLOCKS
from scalelab.config.pretraining import Shape
from scalelab.lab import tables
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import Point
from scalelab.lab.show import figures, notes, report, score_tables
from scalelab.lab.tables import Column, Table, Value


def with_facts(study: study_runs.Study, **facts) -> study_runs.Study:
    return dataclasses.replace(study, facts=dataclasses.replace(study.facts, **facts))


class Fixed:
    """Scores: the score of a row is its width in percent; of every difference the error is 1."""

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
    assert "[-]" in tables.with_notes(built["cost"])  # one of two runs is finished


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
    text = tables.with_notes(table)
    assert "| 264,000 | 27.50 | 9,600 | 900 | 6 | 57,600 | 1,612,800 | - | - |" in " ".join(
        text.split()
    )
    # A phase that is left out leaves its documents unread: how many is not recorded.
    reported_study.edit_runs(tmp_path, lambda run: run["config"]["long"].update(epoch_rate=0.0))
    left_out = study_runs.read(tmp_path)
    (table,) = reported_study.build_tables(left_out, Fixed(left_out.points))
    assert column(table, "text_read")[-1] is None


def test_the_footer_is_the_smallest_detectable_difference(study) -> None:
    shapes = [Shape(2, 16, 1), Shape(2, 32, 2), Shape(2, 64, 5)]
    points = tuple(Point("bert", shape, "baseline", study.points[0].runs) for shape in shapes)
    folder_study = dataclasses.replace(with_facts(study, tables=("large",)), points=points)
    (table,) = reported_study.build_tables(folder_study, Fixed(points))
    # (1.960 + 0.842) standard errors of 0.05, that of the deepest row.
    assert column(table, "large")[0] == Value(0.16, pytest.approx(0.14), pytest.approx(0.19), None)
    assert table.footer[-1] == pytest.approx(0.05 * (1.959964 + 0.841621), rel=1e-5)
    assert "14.0" in tables.with_notes(table).splitlines()[5]  # the row below three


def test_notes_say_what_is_missing_and_what_departs(study, built) -> None:
    text = "\n".join(built["large"].notes)
    for named in ("CoLA", "1 of 8", "gpt2-2x32x2-seed1", "steps", "epochs=3.0", "cale tiny"):
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
    assert (folder / "tables/departures.csv").read_text().splitlines()[1:] == [
        'bert,optim.total_epochs,"6.0, here not set",there',
        'bert,tokenizer.kind,"unigram, here wordpiece",there',
        "bert,tokenizer.vocab_size,8000,there",
    ]
    assert "| Set for bert | optim.beta2=0.9 |" in (folder / "report.md").read_text()


def test_footnotes_and_allowed_fields_stand_below_every_table(study) -> None:
    more = with_facts(study, allow=("eval.x",))
    for table in reported_study.build_tables(
        more, Fixed(study.points), footnotes=["tokens differ by 3%"]
    ):
        assert "tokens differ by 3%" in table.notes
        assert any("eval.x" in note for note in table.notes)


def test_missing_tasks_and_capped_training_sets_are_named(study, tmp_path) -> None:
    reported_study.write(tmp_path, tasks=("qnli",), tables=["large"])
    capped = "QNLI: 32 of 104,743"
    for path in (tmp_path / "runs").glob("*/tasks/qnli/seed*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"remarks": [capped]}))
    for path in (tmp_path / "runs").glob("gpt2-2x16x2-seed0/tasks/qnli/seed*/result.json"):
        path.unlink()
    again = study_runs.read(tmp_path)
    (table,) = reported_study.build_tables(again, StudyScores(again))
    text = "\n".join(table.notes)
    assert "QNLI" in text and "gpt2-2x16x2-seed0" in text and "2 of 16" in text
    assert all(name in text for name in ("GLUE-Large", "MNLI-mm", "SST-2", "CoLA"))
    assert table.notes.count(f"{capped}.") == 1


def test_notes_that_differ_in_numbers_or_systems_are_one() -> None:
    texts = ["cut: 7 of 10,000, all", "cut: 12 of 10,000, all", "other", "cut: 9 of 10,000, all"]
    assert notes.merge_numbers(texts) == ["cut: 7 to 12 of 10,000, all", "other"]
    cut = "RTE: texts cut to 8 tokens: {} (train)."
    texts = [cut.format(x) for x in ("bert 3 of 9", "gpt2 4 of 9", "bert 3 of 9")] + ["other."]
    assert notes.merge_cuts(texts) == [cut.format("bert 3 of 9 (train); gpt2 4 of 9"), "other."]


def test_measured_tasks_of_no_table_are_named(study, tmp_path) -> None:
    reported_study.write(tmp_path, tasks=("qnli", "rte"), tables=["large"], yardsticks=["blimp"])
    again = study_runs.read(tmp_path)
    made = reported_study.build_tables(again, StudyScores(again))
    (note,) = score_tables.describe_absent(again, made)
    assert "RTE" in note and "`yardsticks`" in note and "QNLI" not in note
    more = with_facts(again, tables=("large", "scores"))
    made = reported_study.build_tables(more, StudyScores(more))
    assert score_tables.describe_absent(more, made) == []


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
        text = "".join(table.notes)
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
        variants=("baseline", "half_steps"), rows=rows,
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
    for run in study.runs:
        run.config["optim"] = {"total_epochs": None}
    tasks, scratch = reported_study.build_tables(study, StudyScores(study))
    assert [x.value for x in column(tasks, "qnli")] == pytest.approx([0.9, 0.9])
    first, second = column(scratch, "qnli")
    assert first.value == pytest.approx(0.75) and second is None
    assert not {"sst2", "seeds"} & {c.key for c in scratch.columns}
    for part in ("tasks", "scratch"):  # each table has the remarks of its own fine-tunings
        for path in tmp_path.glob(f"runs/*/{part}/*/seed*/result.json"):
            result = json.loads(path.read_text()) | {"remarks": [f"{part} remark"]}
            path.write_text(json.dumps(result))
    again = study_runs.read(tmp_path)
    for run in again.runs:
        run.config["optim"] = {"total_epochs": None}
    for table, part in zip(reported_study.build_tables(again, StudyScores(again)),
                           ("tasks", "scratch"), strict=True):  # fmt: skip
        assert [note for note in table.notes if "remark" in note] == [f"QNLI: {part} remark."]
    figure = figures.draw_tasks(study, StudyScores(study))
    (circle,) = (
        x for x in figure.axes[0].get_lines() if x.get_mfc() == "none" and x.get_xdata().size
    )
    assert circle.get_xydata().tolist() == [[pytest.approx(75), 0]]


def test_losses_of_other_lengths_are_of_another_kind(tmp_path) -> None:
    reported_study.write(
        tmp_path, systems=("bert",), variants=("baseline", "short_only"), tasks=(), tables=["grid"]
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
    assert "a: length 64; b: length 32" in "".join(table.notes)
    # The first row's length alone: 2x32x2 against 2x16x2, both without short_only.
    difference = scores.difference(study.points[0], study.points[2], "loss")
    assert table.footer[-2] == pytest.approx(difference.detectable)


def test_losses_of_two_objectives_of_one_system_do_not_compare(tmp_path) -> None:
    reported_study.write(
        tmp_path, systems=("bert",), variants=("baseline", "mlm"), tasks=(), tables=["grid"]
    )
    noted = []
    for objective in ("mlm+nsp", "mlm"):
        names = {"baseline": "mlm+nsp", "mlm": objective}
        reported_study.edit_runs(
            tmp_path, lambda run, x=names: run["config"].update(objective=x[run["variant"]])
        )
        study = study_runs.read(tmp_path)
        (table,) = reported_study.build_tables(study, StudyScores(study))
        noted.append("a: objective mlm+nsp; b: objective mlm)" in "".join(table.notes))
        titles = [
            axis.get_title() for axis in figures.draw_losses(study, clock=CLOCKS["tokens"]).axes
        ]
    assert noted == [False, True]
    assert titles[0] == "bert, objective mlm+nsp, length 32"
    assert titles[2] == "bert, objective mlm, length 32"


def test_text_of_users_is_escaped() -> None:
    columns = (Column("a", "a_b"), Column("b", "50%", "count"))
    rows = (("x & y<b>|", 1), ("[#1 {z}](u)", "\\cmd"))
    table = Table("t", "A $ ~ ^", columns, rows, None, ("<i>",))
    text = tables.latex(table, "t")
    for expected in (r"a\_b & 50\% \\", r"x \& y\textless{}b", r"\#1 \{z\}", r"\textbackslash{}cmd",
                     r"\caption{A \$ \textasciitilde{} \textasciicircum{}}"):  # fmt: skip
        assert expected in text
    assert text.count("{") == text.count("}")
    text = tables.with_notes(table)
    assert "x &amp; y&lt;b>\\|" in text and "&lt;i>" in text and "](u)" not in text


def test_a_grid_of_one_size_gives_alpha_and_beta(tmp_path) -> None:
    """The protocol's (7.5.5), from (2,104,3): of three least losses the one of the best score."""
    shapes = ((2, 128, 2), (2, 104, 3), (2, 90, 4), (2, 74, 6))  # the larger N, the less loss

    def scaling_notes(name: str, **changes) -> list[str]:
        asked = {"systems": ("bert",), "shapes": shapes, "tasks": ("qnli",), "tables": ["grid"]}
        reported_study.write(tmp_path / name, **(asked | changes))
        for k in range(2):
            folder = tmp_path / name / f"runs/bert-2x104x3-seed{k}/tasks/qnli"
            for seed in range(2 * folder.is_dir()):
                shutil.rmtree(folder / f"seed{seed}")
                task_folders.write_run(folder, "qnli", seed, 1, system="bert")
        study = study_runs.read(tmp_path / name)
        (table,) = reported_study.build_tables(study, StudyScores(study))
        return [note for note in table.notes if note.startswith("Compound scaling of bert")]

    (note,) = scaling_notes("tuned")
    assert "starts from 2x104x3" in note and "2x74x6, 2x128x2, 2x104x3" in note
    assert "= 1.076" in note and "= 1.363" in note
    assert "2x148x3" in note  # one step of phi up: 2 x 3 x 104^2 = 3 x 147.1^2
    (note,) = scaling_notes("losses", tasks=())
    assert "starts from 2x74x6" in note
    assert scaling_notes("two", shapes=shapes[:2]) == []
    assert scaling_notes("sizes", shapes=(*shapes[:2], (2, 128, 3))) == []
    assert scaling_notes("stopped", unfinished=("bert-2x90x4-seed1",)) == []


def test_fields_of_variants_have_columns_and_numbers_an_axis(tmp_path) -> None:
    lines = {"baseline": (), "wide": ("mask_rate=0.4",), "quick": ("optim.learning_rate=0.004",)}
    reported_study.write(
        tmp_path, systems=("bert",), variants=tuple(lines), tasks=(), tables=["grid"],
        figures=["score_by_value"],
    )  # fmt: skip

    def set_fields(run: dict) -> None:
        run["config"]["mask_rate"] = 0.4 if run["variant"] == "wide" else 0.15
        rate = 0.004 if run["variant"] == "quick" else 0.001
        run["config"]["optim"] = run["config"]["optim"] | {"learning_rate": rate}

    reported_study.edit_runs(tmp_path, set_fields)
    study = with_facts(study_runs.read(tmp_path), variants=lines)
    scores = StudyScores(study)
    (table,) = reported_study.build_tables(study, scores)
    assert column(table, "mask_rate")[:3] == [0.15, 0.4, 0.15]
    assert column(table, "optim.learning_rate")[:3] == [0.001, 0.001, 0.004]
    figure = figures.draw_values(study, scores)
    (axis,) = [axis for axis in figure.axes if axis.axison]  # a loss at another rate is another
    assert axis.get_xlabel() == "learning_rate"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0.001", "0.004"]
