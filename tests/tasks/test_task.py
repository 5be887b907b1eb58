"""Tasks: the nine are what GLUE says, and data that is not whole is named."""

import dataclasses
import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import glue_folder
import in_process
import pytest

from scalelab.eval import program
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.task import load, load_task, remarks, task_names

DATA = Path(os.environ.get("SCALELAB_DATA", Path(__file__).parents[2] / "../shared/data"))
NAMES = ["cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"]
PAIRS = [*zip(glue_folder.ONE, glue_folder.TWO, strict=True)]
# GLUE's table 1 (Wang et al. 2019) and its leaderboard: metrics, order of a pair, outputs.
OFFICIAL = {
    "CoLA": (["matthews"], "single", 2),
    "SST-2": (["accuracy"], "single", 2),
    "MRPC": (["accuracy", "f1"], "similarity", 2),
    "STS-B": (["pearson", "spearman"], "similarity", 1),
    "QQP": (["accuracy", "f1"], "similarity", 2),
    "MNLI": (["accuracy"], "entailment", 3),
    "QNLI": (["accuracy"], "entailment", 2),
    "RTE": (["accuracy"], "entailment", 2),
    "WNLI": (["accuracy"], "entailment", 2),
}
# What shared/data/README.md says of its folder: train, then dev, then test, absent ones None.
COUNTS = {
    "CoLA": (8551, [1043], [1063]),
    "SST-2": (67349, [872], [1821]),
    "MRPC": (3668, [408], [1725]),
    "STS-B": (5749, [1500], [1379]),
    "RTE": (2490, [277], [3000]),
    "WNLI": (635, [71], [146]),
    "QNLI": (10475, [5463], [5463]),
    "MNLI": (9888, [9815, None], [None, None, None]),
    "QQP": (21497, [2000], [None]),
}
REMARKS = {
    "QNLI": ["QNLI train 10,475 of 104,743"],
    "MNLI": [
        "MNLI train 9,888 of 392,702; mismatched absent",
        "MNLI: '.' is in no training row and in 96% of the rows of matched",
    ],
    "QQP": [
        "QQP train 21,497 of 363,846; dev 2,000 carved or cut, NOT the official dev set of 40,430"
    ],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return glue_folder.write(tmp_path_factory.mktemp("glue"))


@pytest.fixture
def glue(whole, tmp_path):
    """A copy to spoil."""
    return Path(shutil.copytree(whole, tmp_path / "glue"))


def test_tasks_are_found_by_name():
    assert {*NAMES} < {*task_names()}
    with pytest.raises(ValueError, match="^unknown task 'colla': .*'cola'"):
        load_task("colla")
    with pytest.raises(ValueError, match="unknown task 'tsv'"):
        load_task("tsv")


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_as_published(name):
    task = load_task(name)
    metrics, relation, num_outputs = OFFICIAL[task.title]
    assert task.name == name
    assert list(task.metrics) == metrics
    assert (task.relation, len(task.labels or "1")) == (relation, num_outputs)
    assert task.regression == (name == "stsb")
    assert task.folder == task.title


def test_a_task_outside_glue_is_not_downloaded():
    with pytest.raises(ValueError, match="SameDocument: --data must name"):
        load(load_task("same_document"), None)


@pytest.mark.parametrize("command", [*(f"eval.{name}" for name in NAMES), "eval same-document"])
def test_every_command_of_a_task_runs_it(monkeypatch, command):
    given, (module, *rest) = [], command.split()
    monkeypatch.setattr(program, "fine_tune", lambda flags, task: given.append(task.name))
    monkeypatch.setattr(sys, "argv", ["", *rest])
    with in_process.signals_kept():
        runpy.run_module(f"scalelab.{module}", run_name="__main__")
    assert given == [command.removeprefix("eval").strip(" .").replace("-", "_")]


@pytest.mark.parametrize("name", NAMES)
def test_the_official_layout_is_read(whole, name):
    task = load_task(name)
    splits = load(task, whole)
    texts = (list(glue_folder.ONE), list(glue_folder.TWO))[: len(task.columns.texts)]
    spelt = glue_folder.LABELS[task.title]
    expected = (
        [float(s) for s in spelt] if task.labels is None else list(map(task.labels.index, spelt))
    )
    assert list(splits.dev) == (["matched", "mismatched"] if name == "mnli" else ["dev"])
    for records in (splits.train, *splits.dev.values()):
        assert records is not None and records.labels is not None
        assert (records.texts, records.labels.tolist()) == (texts, expected)
    for records in splits.test.values():
        assert records is not None
        assert (records.texts, records.labels) == (texts, None)
    assert len(splits.digests) == 1 + len(splits.dev) + len(splits.test)
    assert splits.digests["train"] == splits.train.digest


def test_test_splits_can_be_left_unread(glue):
    (glue / "RTE/test.tsv").write_text("broken")
    assert load(load_task("rte"), glue, tests=False).test == {}
    with pytest.raises(ValueError, match="test.tsv, line 1: .*columns"):
        load(load_task("rte"), glue)


TOY = Task(
    name="toy",
    title="Toy",
    relation="single",
    metrics=("accuracy",),
    columns=Columns(("a",), "b"),
    train=TaskSplit("train", ("train.tsv",), 3),
    dev_splits=(TaskSplit("dev", ("dev.tsv",), 2), TaskSplit("other", ("other.tsv",), 9)),
    labels=("0", "1"),
)


@pytest.mark.parametrize(("counts", "pattern"), [
    ((3, 2, 9), ""),
    ((2, 2, 9), "Toy train 2 .*3"),
    ((4, 2, 9), "Toy train 4, .*3"),
    ((3, 1), "Toy dev 1 .*NOT .* 2; other absent"),
    ((3, 3, 9), "Toy dev 3, .*2"),
])  # fmt: skip
def test_what_is_not_whole_is_named(tmp_path, counts, pattern):
    for name, n in zip(("train", "dev", "other"), counts, strict=False):
        (tmp_path / f"{name}.tsv").write_text("a\tb\n" + "x\t1\n" * n)
    assert re.fullmatch(pattern, "".join(remarks(TOY, load(TOY, tmp_path))))


@pytest.mark.parametrize(("train", "dev", "pattern"), [
    ("x\t1\n" * 100, "a.\t1\nb.\t0\n", "Toy: '.' .*no training row .*100%.* of dev"),
    ("x\t1\n" * 99 + "x.\t1\n", "a.\t1\nb.\t0\n", ""),
    ("x\t1\n" * 99, "a.\t1\nb.\t0\n", ""),  # too few rows
    ("\t1\n \t1\nx\t0\n", "x\t1\n\t1\n", "Toy empty texts: 2 in train, 1 in dev"),
    ("x\t0\n", "x\t1\nbroken\nx\t0\n", "Toy broken lines left out: 1 in dev"),
])  # fmt: skip
def test_unusual_rows_are_named(tmp_path, train, dev, pattern):
    for name, rows in (("train", train), ("dev", dev)):
        (tmp_path / f"{name}.tsv").write_text("a\tb\n" + rows)
    own = dataclasses.replace(TOY.dev_splits[0], broken_lines=True)
    task = dataclasses.replace(TOY, train=TaskSplit("train", ("train.tsv",)), dev_splits=(own,))
    assert re.fullmatch(pattern, "".join(remarks(task, load(task, tmp_path))))


def test_one_dev_set_of_two_may_be_missing(glue):
    """The diagnostic set is found under either of its names."""
    (glue / "diagnostic").mkdir()
    (glue / "AX/AX.tsv").rename(glue / "diagnostic/diagnostic.tsv")
    (glue / "MNLI/dev_matched.tsv").unlink()
    splits = load(load_task("mnli"), glue)
    assert splits.dev["matched"] is None and "matched" not in splits.digests
    assert splits.test["AX"].texts[0] == list(glue_folder.ONE)
    (glue / "MNLI/dev_mismatched.tsv").unlink()
    (glue / "CoLA/train.tsv").unlink()
    shutil.rmtree(glue / "RTE")
    for title, path in (("MNLI", "dev_matched.tsv"), ("CoLA", "train.tsv"), ("RTE", "glue/RTE")):
        with pytest.raises(ValueError, match=rf"^{title}: expected the .*{path}.*holds"):
            load(load_task(title.lower()), glue)


@pytest.mark.parametrize("name", ["qqp", "mrpc"])
def test_short_lines_of_a_whole_file_are_an_error_but_in_qqp(glue, name):
    """Though the other rows are as many as the published set has: only QQP's has broken lines."""
    task = load_task(name)
    task = dataclasses.replace(task, train=dataclasses.replace(task.train, count=3))
    path = glue / task.train.files[0]
    path.write_bytes(path.read_bytes() + b"7\n")
    if name == "qqp":
        assert len(load(task, glue).train) == 3
    else:
        with pytest.raises(ValueError, match=r"train.tsv, line \d: .*fields"):
            load(task, glue)


def write_json_lines(path: Path, rows) -> None:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")


def test_the_files_of_the_babylm_challenge(tmp_path):
    texts = [{"premise": a, "hypothesis": b} for a, b in PAIRS]
    rows = [own | {"label": k, "idx": 7 * k} for k, own in enumerate(texts)]
    write_json_lines(tmp_path / "mnli.train.jsonl", rows[::-1])
    write_json_lines(tmp_path / "mnli-mm.valid.jsonl", rows[1:])
    splits = load(load_task("mnli"), tmp_path)
    assert [*zip(*splits.train.texts, strict=True)] == PAIRS
    assert splits.train.labels.tolist() == [0, 1, 2]
    assert splits.dev["matched"] is None and splits.dev["mismatched"].labels.tolist() == [1, 2]
    assert set(splits.test.values()) == {None}
    with pytest.raises(ValueError, match=r"expected the file .*/rte.train.jsonl; .*holds: mnli"):
        load(load_task("rte"), tmp_path)
    for lines, fault in (
        ([rows[0] | {"label": 3}], "mnli.train.jsonl, idx 0: the label 3 "),
        ([rows[0], {"idx": 1}], "mnli.train.jsonl, line 2: has no 'premise'"),
    ):
        write_json_lines(tmp_path / "mnli.train.jsonl", lines)
        with pytest.raises(ValueError, match=fault):
            load(load_task("mnli"), tmp_path)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["rte", "mrpc", "mnli", "mnli-mm"])
def test_rows_of_the_babylm_challenge_are_official(tmp_path, name):
    """Texts and labels are plain JSON's; those of dev stand in this order in GLUE's own file.

    Of MNLI-mm only the same half of GLUE's file is at hand, with the index of each row.
    """
    folder = DATA / "babylm/eval/glue_filtered"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    part = "train" if name == "mnli" else "valid"
    source = folder / f"{name}.{part}.jsonl"
    task = load_task(name.removesuffix("-mm"))
    (tmp_path / f"{task.name}.train.jsonl").symlink_to(source)
    (tmp_path / f"{name}.valid.jsonl").symlink_to(source)
    if name == "mnli":
        (tmp_path / "mnli-mm.valid.jsonl").symlink_to(source)
    ours = load(task, tmp_path).train
    found = [*zip(*ours.texts, ours.labels.tolist(), strict=True)]
    with source.open() as file:
        plain = sorted(map(json.loads, file), key=lambda row: row["idx"])
    keys = ("premise", "hypothesis") if task.name == "mnli" else ("sentence1", "sentence2")
    assert found == [tuple(row[key] for key in (*keys, "label")) for row in plain]
    if name == "mnli-mm":
        dev = load(task, DATA / "glue-10k").dev["mismatched"]
        lines = (DATA / "glue-10k/MNLI/dev_mismatched.tsv").read_text().splitlines()[1:]
        index = [int(line.partition("\t")[0]) for line in lines]
        official = dict(zip(index, zip(*dev.texts, dev.labels.tolist(), strict=True), strict=True))
        assert [official.pop(row["idx"]) for row in plain] == found and not official
    elif name != "mnli":
        dev = load(task, DATA / "glue").dev["dev"]
        official = [*zip(*dev.texts, dev.labels.tolist(), strict=True)]
        places = [official.index(row) for row in found]
        assert places == sorted(set(places)) and len(found) == (len(official) + 1) // 2
        assert name == "mrpc" or places == [row["idx"] for row in plain]


@pytest.mark.realdata
def test_wsc_of_the_babylm_challenge_is_official(tmp_path):
    """Row idx has the label, the text and both spans of that row in SuperGLUE's dev set."""
    source = DATA / "babylm/eval/glue_filtered/wsc.valid.jsonl"
    if not source.exists():
        pytest.skip(f"no {source}")
    for split in ("train", "valid"):
        (tmp_path / f"wsc.{split}.jsonl").symlink_to(source)
    ours = load(load_task("superglue_wsc"), tmp_path).train
    lines = (DATA / "superglue/WSC/val.jsonl").read_text().splitlines()
    official = {row["idx"]: row for row in map(json.loads, lines)}
    assert (len(ours), len(official)) == (52, 104)
    places = [json.loads(line)["idx"] for line in source.read_text().splitlines()]
    for k, asked, text, label in zip(places, *ours.texts, ours.labels, strict=True):
        spans = [official[k]["target"][f"span{i}_text"] for i in (2, 1)]
        assert re.findall('"([^"]*)"', asked) == spans
        assert (text, label) == (official[k]["text"], official.pop(k)["label"])


@pytest.mark.realdata
@pytest.mark.parametrize("name", NAMES)
def test_real_counts(name):
    folder = DATA / "glue"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    task = load_task(name)
    splits = load(task, folder)
    train, dev, test = COUNTS[task.title]
    assert len(splits.train) == train
    assert [r and len(r) for r in splits.dev.values()] == dev
    assert [r and len(r) for r in splits.test.values()] == test
    assert remarks(task, splits) == REMARKS.get(task.title, [])
    for records in (splits.train, *filter(None, splits.dev.values())):
        labels = records.labels
        assert labels is not None and len(labels) == len(records)
        if task.labels is not None:
            assert set(labels.tolist()) == set(range(len(task.labels)))
