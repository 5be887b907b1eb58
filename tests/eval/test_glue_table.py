"""The table of a benchmark: numbers by hand, and everything that must be said beside them."""

import csv
import io
import json
import re

import numpy as np
import pytest
import task_folders

from scalelab.eval import glue_table
from scalelab.lab.load import task_runs


def cells(text: str) -> dict[str, list[str]]:
    """Lines of the plain table by label and metric; what stands between two spaces or more."""
    lines = [line.split("  ") for line in text.splitlines() if line and line[0] not in "*-"]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    return {" ".join(row[:2]): row[2:] for row in rows}


@pytest.fixture(autouse=True)
def invented_sizes(monkeypatch) -> None:
    """The invented dev sets are whole unless a test says otherwise."""
    for sizes in glue_table.DEV_SIZES.values():
        for split in sizes:
            monkeypatch.setitem(sizes, split, task_folders.SIZE)


def test_a_row_by_hand(tmp_path) -> None:
    """60 examples, 10, 11, 15 wrong: 83.3, 81.7, 75.0 with mean 80.0 and sd 4.4."""
    for seed, wrong in enumerate((10, 11, 15)):
        task_folders.write_run(tmp_path / "rte", "rte", seed, wrong)
    (row,), _ = glue_table.read(tmp_path)
    accuracies = np.array([50, 49, 45]) / 60
    assert row["mean"] == pytest.approx(0.8)
    assert row["sd"] == pytest.approx(accuracies.std(ddof=1))
    assert row["low"] < 0.75 < 0.85 < row["high"]
    found = cells(glue_table.write(tmp_path))["RTE accuracy"]
    assert found[:3] == ["81.7", "80.0", "4.4"]
    assert found[4:] == ["3", "0", "0", "0", "no baseline run"]


def test_averages_by_hand(tmp_path) -> None:
    """MRPC's accuracy and F1 count half each, MNLI's two sets likewise."""
    task_folders.write_all(tmp_path, 10, num_seeds=1)
    task_folders.write_run(tmp_path / "mrpc", "mrpc", 1, 40)
    task_folders.write_run(tmp_path / "qqp", "qqp", 1, 21)
    task_folders.write_run(tmp_path / "mnli", "mnli", 1, {"matched": 20, "mismatched": 30})
    rows = {(r["name"], r["metric"]): r for r in glue_table.read(tmp_path)[0]}
    mean = {key: row["mean"] for key, row in rows.items()}
    assert mean["MNLI-m", "accuracy"] == pytest.approx((50 + 40) / 120)
    metrics = dict.fromkeys(("SST-2", "QNLI", "RTE", "WNLI"), "accuracy")
    metrics |= {"CoLA": "matthews", "STS-B": "pearson spearman"}
    metrics |= dict.fromkeys(("MRPC", "QQP"), "accuracy f1")
    tasks = [np.mean([mean[name, m] for m in own.split()]) for name, own in metrics.items()]
    tasks.append((mean["MNLI-m", "accuracy"] + mean["MNLI-mm", "accuracy"]) / 2)
    average = rows["GLUE average", ""]
    assert average["mean"] == pytest.approx(np.mean(tasks))
    assert average["estimate"].value == pytest.approx(np.mean(tasks))
    assert average["low"] < np.mean(tasks) < average["high"]
    large = [mean["MNLI-m", "accuracy"], mean["QNLI", "accuracy"]]
    for name, metric in (("GLUE-Large", "accuracy"), ("GLUE-Large (QQP F1)", "f1")):
        by_hand = np.mean([*large, mean["QQP", metric]])
        assert rows[name, ""]["mean"] == pytest.approx(by_hand)
    assert mean["QQP", "accuracy"] != mean["QQP", "f1"]


def test_an_average_over_other_sets_is_not_glues(tmp_path, monkeypatch) -> None:
    """All nine tasks are there, but one dev split is absent, and one dev set is a carved one."""
    monkeypatch.setitem(glue_table.DEV_SIZES["qqp"], "dev", 40430)
    rest = tuple(name for name in task_folders.METRICS if name != "mnli")
    task_folders.write_all(tmp_path, tasks=rest, num_seeds=1)
    task_folders.write_run(tmp_path / "mnli", "mnli", 0, {"matched": 9})
    text = glue_table.write(tmp_path)
    labels = [r["name"] for r in glue_table.read(tmp_path)[0] if r["task"] is None]
    assert labels[0] == "mean of 9 tasks" and "GLUE average " not in text.split("*")[0]
    assert "without MNLI-mm" in text and re.search("QQP 60 carved .*40,430", text)
    task_folders.write_run(tmp_path / "mnli", "mnli", 1, {"matched": 9})
    monkeypatch.setitem(glue_table.DEV_SIZES["qqp"], "dev", task_folders.SIZE)
    assert "carved" not in glue_table.write(tmp_path)


def test_degenerate_failed_and_unfinished_runs_are_counted_and_named(tmp_path) -> None:
    task_folders.write_all(tmp_path, 10, tasks=("cola",), num_seeds=2)
    task_folders.write_run(
        tmp_path / "cola", "cola", 2, 30, degenerate="constant prediction: class 1"
    )
    task_folders.write_run(
        tmp_path / "cola", "cola", 3, 9, status="failed", degenerate="not finite"
    )
    (tmp_path / "cola/seed4").mkdir()
    rows, notes = glue_table.read(tmp_path)
    (row,) = rows
    by_seed = [json.loads((tmp_path / f"cola/seed{k}/result.json").read_text()) for k in range(3)]
    values = [r["eval"]["dev"]["matthews"] for r in by_seed]
    assert row["mean"] == pytest.approx(np.mean(values))  # the degenerate one is in it
    assert (row["failed"], row["unfinished"], row["degenerate"]) == (1, 1, 1)
    others = f"{100 * np.mean(values[:2]):.1f}"
    for note in (
        "2 degenerate: constant prediction",
        f"other 2: {others}",
        "3 failed: not finite",
        "seed 4 unfinished",
    ):
        assert any("CoLA: " in line and note in line for line in notes), note
    assert cells(glue_table.write(tmp_path))["CoLA matthews"][-5:-1] == ["3", "1", "1", "1"]


def test_a_task_without_a_finished_run_is_a_row(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte",))
    (tmp_path / "cola/seed0").mkdir(parents=True)
    task_folders.write_run(tmp_path / "scratch/cola", "cola", 0, 20)
    text = glue_table.write(tmp_path)
    line = next(line for line in text.splitlines() if line.startswith("CoLA")).split()
    assert line[1:9] == ["-", "-", "-", "-", "0", "0", "1", "0"]
    assert line[9] == f"{100 * glue_table.read(tmp_path)[0][0]['scratch_mean']:.1f}"
    assert "seed 0 unfinished" in text


def test_the_baseline_stands_beside(tmp_path) -> None:
    task_folders.write_all(tmp_path, 10, tasks=("rte", "wnli"))
    task_folders.write_all(tmp_path / "scratch", 30, tasks=("rte",), init=None)
    (tmp_path / "scratch/rte/seed3").mkdir()
    text = glue_table.write(tmp_path)
    rte, wnli = cells(text)["RTE accuracy"], cells(text)["WNLI accuracy"]
    assert rte[-1].startswith("48.3 [")
    assert wnli[-1] == "no baseline run"
    assert re.search("scratch: RTE: .*3 unfinished", text)
    assert cells(text)["mean of 2 tasks -"][-1] == "-"  # no baseline of both
    task_folders.write_all(tmp_path / "scratch", 30, tasks=("wnli",), init=None, recipe="small")
    text = glue_table.write(tmp_path)
    assert cells(text)["mean of 2 tasks -"][-1].startswith("48.3 [")
    assert re.search("WNLI.*recipe thesis.* small", text)


def test_without_predictions_there_is_no_interval_and_the_table_says_why(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte", "mrpc"))
    (tmp_path / "mrpc/seed1/predictions.tsv").unlink()
    rows, notes = glue_table.read(tmp_path)
    mrpc, f1, rte, average = rows
    assert mrpc["estimate"] is f1["estimate"] is average["estimate"] is None
    assert rte["estimate"] is not None
    by_hand = (rte["mean"] + (mrpc["mean"] + f1["mean"]) / 2) / 2
    assert average["mean"] == pytest.approx(by_hand)
    assert sum("MRPC: no interval: " in note and "seed1" in note for note in notes) == 1


def test_markdown_and_csv_hold_the_same(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte", "mrpc"))
    task_folders.write_run(tmp_path / "scratch/rte", "rte", 0, 30, init=None)
    text = glue_table.write(tmp_path)
    markdown = (tmp_path / "glue.md").read_text()
    for label, row in cells(text).items():
        line = "".join(label.split()) + "".join("".join(row).split())
        assert any("".join(m.replace("|", "").split()) == line for m in markdown.splitlines())
    found = list(csv.DictReader(io.StringIO((tmp_path / "glue.csv").read_text())))
    rows, notes = glue_table.read(tmp_path)
    assert [r["name"] for r in found] == [row["name"] for row in rows]
    for line, row in zip(found, rows, strict=True):
        assert float(line["mean"]) == row["mean"] and float(line["low"]) == row["low"]
        assert line["footnotes"] == " ".join(notes) != ""
    assert found[2]["scratch_mean"] == "0.5" and found[2]["scratch_sd"] == ""
    assert found[0]["scratch_mean"] == "" and found[3]["sd"] == ""
    assert not list(tmp_path.glob("*.tmp"))


def test_one_task_alone(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte", "wnli"))
    text = glue_table.write(tmp_path, only="rte")
    assert "RTE" in text and "WNLI" not in text and "mean of" not in text
    assert cells(glue_table.write(tmp_path / "rte", only="rte")) == cells(text)
    with pytest.raises(ValueError, match="cola; .*rte, wnli"):
        glue_table.write(tmp_path, only="cola")


def test_a_users_task_counts_in_no_average(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte", "wnli"))
    task_folders.METRICS["mine"] = ("accuracy",)
    task_folders.write_run(tmp_path / "mine", "mine", 0, 50)
    del task_folders.METRICS["mine"]
    rows = glue_table.read(tmp_path)[0]
    assert [row["name"] for row in rows] == ["RTE", "WNLI", "mine", "mean of 2 tasks"]
    assert rows[-1]["mean"] == pytest.approx(49 / 60)


@pytest.mark.parametrize("only", [True, False])
def test_an_undefined_score_is_missing_and_named(tmp_path, only: bool) -> None:
    """CoLA's dev set has one class: the average is over the other tasks, and says so."""
    missing = {"eval": {"dev": {"matthews": None}}, "undefined": {"dev": {"matthews": "one class"}}}
    task_folders.write_run(tmp_path / "cola", "cola", 0, 0, **missing)
    if not only:
        task_folders.write_all(tmp_path, tasks=("rte", "sst2"), num_seeds=1)
    rows, notes = glue_table.read(tmp_path)
    assert cells(glue_table.write(tmp_path))["CoLA matthews"] == [
        "-", "undefined", "-", "-", "0", "0", "0", "0", "no baseline run"
    ]  # fmt: skip
    assert "one class" in (tmp_path / "glue.csv").read_text()
    averages = [row for row in rows if row["task"] is None]
    assert [row["name"] for row in averages] == ["mean of 2 tasks"] * (not only)
    assert only or any("without" in note and "CoLA" in note for note in notes)
    assert task_runs.read(tmp_path)["cola"].runs[0].failed is None


@pytest.mark.parametrize(("task", "wrong", "expected"), [
    ("rte", 0, [0.9398, 1.0]),  # Wilson, 60 of 60
    ("rte", 60, [0.0, 0.0602]),
    ("cola", 0, None),  # no resample differs
])  # fmt: skip
def test_no_interval_has_width_zero(tmp_path, task: str, wrong: int, expected) -> None:
    for seed in range(2):
        task_folders.write_run(tmp_path / task, task, seed, wrong)
    (row,), _ = glue_table.read(tmp_path)
    if expected:
        assert [row["low"], row["high"]] == pytest.approx(expected, abs=1e-4)
    else:
        assert np.isnan([row["low"], row["high"]]).all()
        assert cells(glue_table.write(tmp_path))["CoLA matthews"][3] == "-"
