"""Tasks from Hugging Face `datasets`: the records are those of the same rows in GLUE's files."""

import json
import pathlib
import sys

import glue_folder
import numpy as np
import pytest

from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.records import Records
from scalelab.tasks.task import load, load_task


def write(folder: pathlib.Path, task: Task, data: dict[TaskSplit, Records]) -> None:
    """Writes a task as `nyu-mll/glue` has it, each split's rows from the last to the first."""
    configs: dict[str, list[str]] = {}
    for split, records in data.items():
        config, _, name = str(split.tfds).partition("/")
        labels = [-1] * len(records) if records.labels is None else records.labels.tolist()
        names = ("idx", "label", *(task.tfds_texts or task.columns.texts))
        columns = (range(len(records)), labels, *records.texts)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        path = folder / config / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(json.dumps, rows[::-1])))
        files = f"  - split: {name}\n    path: {config}/{path.name}\n"
        configs.setdefault(config, [f"- config_name: {config}\n  data_files:\n"]).append(files)
    text = "".join("".join(lines) for lines in configs.values())
    (folder / "README.md").write_text(f"---\nconfigs:\n{text}---\n")


@pytest.fixture
def cached(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def pairs(task: Task, splits: dict[str, Records | None]) -> dict[TaskSplit, Records]:
    every = (*task.dev_splits, *task.test_splits)
    return {split: records for split in every if (records := splits.get(split.name))}


@pytest.mark.parametrize("name", ["rte", "cola", "stsb", "mnli"])
def test_the_records_of_the_files(cached, tmp_path: pathlib.Path, name: str) -> None:
    task = load_task(name)
    files = load(task, glue_folder.write(tmp_path / "glue"))
    expected = {task.train: files.train} | pairs(task, files.dev | files.test)
    write(tmp_path / "copy", task, expected)
    ours = load(task, f"hf:{tmp_path}/copy")
    found = {task.train: ours.train} | pairs(task, ours.dev | ours.test)
    assert found.keys() == expected.keys() and len(found) in (3, 6)
    for split, records in expected.items():
        assert found[split].texts == records.texts and len(records) == 3
        np.testing.assert_array_equal(found[split].labels, records.labels)
        assert found[split].source == f"hf:{tmp_path}/copy/{split.tfds}"
    assert len({records.digest for records in found.values()}) == 2  # with and without labels


@pytest.mark.parametrize(("row", "message"), [
    ({"label": 2}, "rte/train, idx 0: .* 2 .*0 to 1"),
    ({"label": "entailment"}, "'entailment'"),
    ({"label": None}, "'label'"),
    ({"sentence2": None}, "'sentence2'"),
    ({}, "no split rte/validation"),
])  # fmt: skip
def test_faults(cached, tmp_path: pathlib.Path, row: dict[str, object], message: str) -> None:
    task = load_task("rte")
    write(tmp_path, task, {task.train: Records((["a"], ["b"]), np.zeros(1, np.int32), "", "")})
    good = {"idx": 0, "label": 0, "sentence1": "a", "sentence2": "b"}
    (tmp_path / "rte/train.jsonl").write_text(json.dumps(good | row))
    with pytest.raises(ValueError, match=message):
        load(task, f"hf:{tmp_path}")


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"hf:x/rte .*scalelab\[datasets\]"):
        load(load_task("rte"), "hf:x")
