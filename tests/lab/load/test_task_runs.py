"""Folders of fine-tunings: what is read, what is named, what is refused."""

import json

import numpy as np
import pytest
import run_folders
import task_folders

from scalelab.lab.load import frame, task_runs


def spoil(run, **fields) -> None:
    path = run / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_runs_are_found_by_task_and_seed(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte", "mnli", "cola"), num_seeds=2)
    task_folders.write_run(tmp_path / "cola", "cola", 10, 5)
    task_folders.write_run(tmp_path / "scratch/rte", "rte", 0, 30)
    (tmp_path / "cola/grid/point0").mkdir(parents=True)
    found = task_runs.read(tmp_path)
    assert list(found) == ["cola", "mnli", "rte"]  # GLUE's order; the baseline is none of them
    assert [run.seed for run in found["cola"].runs] == [0, 1, 10]
    assert found["mnli"].keys == [("matched", "accuracy"), ("mismatched", "accuracy")]
    assert found["mnli"].title == "MNLI"
    assert found["rte"].values(("dev", "accuracy")) == [50 / 60, 49 / 60]


def test_the_task_of_unfinished_runs_is_in_their_config(tmp_path) -> None:
    (tmp_path / "seed0").mkdir()
    assert list(task_runs.read(tmp_path)) == [tmp_path.name]
    config = run_folders.config_of() | {"task": "rte"}
    (tmp_path / "seed0/config.json").write_text(json.dumps(config))
    assert list(task_runs.read(tmp_path)) == ["rte"]


def test_unfinished_and_failed_runs_stay(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte",))
    (tmp_path / "rte/seed0/result.json").unlink()
    spoil(tmp_path / "rte/seed1", status="failed", degenerate="loss not finite")
    task_folders.write_run(tmp_path / "rte", "rte", 3, 5)
    spoil(tmp_path / "rte/seed3", eval={"dev": {"accuracy": None}})
    runs = task_runs.read(tmp_path)["rte"].runs
    assert [run.unfinished for run in runs] == [True, False, False, False]
    assert [run.failed for run in runs[:3]] == [None, "loss not finite", None]
    assert "score" in str(runs[3].failed)
    assert [run.finished for run in runs] == [False, False, True, False]


@pytest.mark.parametrize("content", ["{", "[]", '{"status": 3}'])
def test_a_result_that_cannot_be_read_is_a_failed_run(tmp_path, content: str) -> None:
    task_folders.write_all(tmp_path, tasks=("rte",))
    (tmp_path / "rte/seed1/result.json").write_text(content)
    runs = task_runs.read(tmp_path)["rte"].runs
    assert [run.finished for run in runs] == [True, False, True]
    assert "result.json" in str(runs[1].failed)


def test_folders_without_fine_tunings_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        task_runs.read(tmp_path / "absent")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="<task>/seed0"):
        task_runs.read(tmp_path)


def test_a_run_of_another_task_is_a_failed_run(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte",))
    task_folders.write_run(tmp_path / "rte", "wnli", 5, 5)
    runs = task_runs.read(tmp_path)["rte"].runs
    assert [run.failed is None for run in runs] == [True, True, True, False]


def test_predictions_of_all_seeds(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("mnli",), num_wrong=4)
    lines = frame.make([("", "", 0, task_runs.read(tmp_path))])
    for split in ("matched", "mismatched"):
        examples, predicted = frame.stack(lines[lines["split"] == split])
        _, gold = task_folders.dev_set("mnli", split)
        np.testing.assert_array_equal(examples.gold, gold)
        assert predicted.shape == (1, 3, 60)
        assert (predicted != gold).sum(axis=-1).tolist() == [[4, 5, 6]]


@pytest.mark.parametrize(("change", "words"), [
    (lambda texts, gold: (texts[:50], gold[:50]), "60 dev .* 50"),
    (lambda texts, gold: (["x", *texts[1:]], gold), "other texts"),
    (lambda texts, gold: (texts, np.where(np.arange(60) == 7, 1 - gold, gold)), "example 7"),
])  # fmt: skip
def test_how_dev_sets_differ(tmp_path, monkeypatch, change, words: str) -> None:
    task_folders.write_all(tmp_path, tasks=("rte",), num_seeds=1)
    changed = change(*task_folders.dev_set("rte"))
    monkeypatch.setattr(task_folders, "dev_set", lambda *_: changed)
    task_folders.write_run(tmp_path / "rte", "rte", 1, 5)
    with pytest.raises(ValueError, match=words):
        frame.stack(frame.make([("", "", 0, task_runs.read(tmp_path))]))


def test_weights_are_told_apart(tmp_path) -> None:
    task_folders.write_run(tmp_path, "rte", 0, 5)
    task_folders.write_run(tmp_path, "rte", 1, 5, init_digest=None)
    task_folders.write_run(tmp_path, "rte", 2, 5, init="none", init_digest="none")
    task_folders.write_run(tmp_path, "rte", 3, 5, init=None)
    runs = task_runs.read(tmp_path)["rte"].runs
    assert [run.weights for run in runs] == ["0123abcd", "runs/bert", None, None]
