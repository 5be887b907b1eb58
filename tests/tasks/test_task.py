"""Tasks: the nine are what GLUE says, and data that is not whole is named."""

import dataclasses
import os
import runpy
import shutil
import types
from pathlib import Path

import glue_folder
import pytest

import scalelab.eval
from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Splits, Task, load, load_task, remarks, task_names

DATA = Path(os.environ.get("SCALELAB_DATA", Path(__file__).parents[2] / "../shared/data"))
NAMES = ["cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"]
PROBES = ["same_document", "swapped_words"]  # of our own making

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
    assert task_names() == sorted([*NAMES, *PROBES])
    with pytest.raises(ValueError, match="^unknown task 'colla': did you mean 'cola'"):
        load_task("colla")
    with pytest.raises(ValueError, match="unknown task 'tsv'"):
        load_task("tsv")
    with pytest.raises(ValueError, match="unknown task 'submission'"):
        load_task("submission")


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_as_published(name):
    task = load_task(name)
    metrics, relation, num_outputs = OFFICIAL[task.title]
    assert task.name == name
    assert list(task.metrics) == metrics
    assert (task.relation, task.num_outputs) == (relation, num_outputs)
    assert task.regression == (name == "stsb")
    assert task.folder == task.title


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_is_none_of_glue(name):
    """No published size, nothing for the leaderboard, nothing to be downloaded."""
    task = load_task(name)
    assert task.name == name and task.metrics == ("accuracy",) and task.num_outputs == 2
    assert not task.test_splits and task.title not in OFFICIAL
    for split in (task.train, *task.dev_splits):
        assert (split.count, split.tfds, split.submission) == (None, None, None)
    with pytest.raises(ValueError, match="--data is missing"):
        load(task, None)


@pytest.mark.parametrize("name", ["cola", "same_document"])
def test_a_task_file_run_as_a_program_hands_its_task_on(monkeypatch, name):
    given = []
    program = types.SimpleNamespace(run=given.append)
    monkeypatch.setattr(scalelab.eval, "program", program, raising=False)
    runpy.run_path(str(Path(scalelab.__file__).parent / f"eval/{name}.py"), run_name="__main__")
    assert given == [load_task(name)]


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
    assert splits.absent == ()
    assert len(splits.digests) == 1 + len(splits.dev) + len(splits.test)
    assert splits.digests["train"] == splits.train.digest


def test_no_consensus_is_no_label_of_mnli(glue):
    path = glue / "MNLI/dev_matched.tsv"
    path.write_text(path.read_text().replace("\tneutral\n", "\t-\n"))
    with pytest.raises(ValueError, match="dev_matched.tsv, line 2: the label '-' is not one of"):
        load(load_task("mnli"), glue)


def test_test_splits_can_be_left_unread(glue):
    (glue / "RTE/test.tsv").write_text("broken")
    assert load(load_task("rte"), glue, tests=False).test == {}
    with pytest.raises(ValueError, match="test.tsv: expected the columns"):
        load(load_task("rte"), glue)


def test_the_diagnostic_set_under_its_other_name(glue):
    (glue / "diagnostic").mkdir()
    (glue / "AX/AX.tsv").rename(glue / "diagnostic/diagnostic.tsv")
    ax = load(load_task("mnli"), glue).test["AX"]
    assert ax is not None and ax.texts[0] == list(glue_folder.ONE)


def test_absent_splits_are_named(glue):
    for file in ("MNLI/dev_mismatched.tsv", "MNLI/test_matched.tsv", "AX/AX.tsv"):
        (glue / file).unlink()
    splits = load(load_task("mnli"), glue)
    assert splits.absent == ("mismatched", "test_matched", "AX")
    assert splits.dev["mismatched"] is None
    assert splits.test["AX"] is None
    assert "AX" not in splits.digests


TOY = Task(
    name="toy",
    title="Toy",
    relation="single",
    metrics=("accuracy",),
    columns=Columns(("a",), "b"),
    test_columns=Columns(("a",)),
    train=Split("train", ("train.tsv",), 3),
    dev_splits=(Split("dev", ("dev.tsv",), 2), Split("other", ("other.tsv",), 9)),
    test_splits=(Split("test", ("test.tsv",), 1),),
    labels=("0", "1"),
)


def toy(folder, train, dev, other=None, test=None) -> Splits:
    for name, n in (("train", train), ("dev", dev), ("other", other), ("test", test)):
        if n is not None:
            (folder / f"{name}.tsv").write_text("a\tb\n" + "x\t1\n" * n)
    return load(TOY, folder)


@pytest.mark.parametrize(
    "counts, said, said_of_tests",
    [
        ((3, 2, 9, 1), [], []),
        ((2, 2, 9, 1), ["Toy train 2 of 3"], ["Toy train 2 of 3"]),
        ((4, 2, 9), ["Toy train 4, not the official 3"],
         ["Toy train 4, not the official 3; test absent"]),
        ((3, 1, None, 1), ["Toy dev 1 carved or cut, NOT the official dev set of 2; other absent"],
         ["Toy dev 1 carved or cut, NOT the official dev set of 2; other absent"]),
        ((3, 3, 9, 5), ["Toy dev 3, not the official 2"],
         ["Toy dev 3, not the official 2; test 5, not the official 1"]),
    ],
)  # fmt: skip
def test_what_is_not_whole_is_named(tmp_path, counts, said, said_of_tests):
    splits = toy(tmp_path, *counts)
    assert remarks(TOY, splits) == said
    assert remarks(TOY, splits, tests=True) == said_of_tests


def test_empty_texts_and_broken_lines_are_named(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tb\n\t1\n \t1\nx\t0\n")
    (tmp_path / "dev.tsv").write_text("a\tb\nx\t1\nbroken\n\t1\n")
    (tmp_path / "other.tsv").write_text("a\tb\n" + "x\t1\n" * 9)
    broken = dataclasses.replace(TOY.dev_splits[0], broken_lines=True)
    task = dataclasses.replace(TOY, dev_splits=(broken, TOY.dev_splits[1]))
    assert remarks(task, load(task, tmp_path)) == [
        "Toy empty texts: 2 in train, 1 in dev",
        "Toy broken lines left out: 1 in dev",
    ]


@pytest.mark.parametrize(("train", "dev", "said"), [
    (["x", "y!", "z"], ["a.", "b.", "c", "d"], []),  # half of dev is not most of it
    (["x", "y!", "z"], ["a.", "b.", "c.", "d"],
     ["Toy: '.' is in no training row and in 75% of the rows of dev"]),
    (["x", "y.", "z"], ["a.", "b.", "c.", "d"], []),
    (["x.", "y."], ["a", "b"], []),
    (["x"], ["a.", "b."], []),  # of fifty rows, none says little
])  # fmt: skip
def test_punctuation_that_somebody_took_out(tmp_path, train, dev, said):
    for name, texts in (("train", train * 50), ("dev", dev)):
        lines = "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(texts))
        (tmp_path / f"{name}.tsv").write_text(f"a\tb\n{lines}")
    counts = {s.name: dataclasses.replace(s, count=None) for s in (TOY.train, *TOY.dev_splits)}
    task = dataclasses.replace(TOY, train=counts["train"], dev_splits=(counts["dev"],))
    assert remarks(task, load(task, tmp_path)) == said


# Bad input


@pytest.mark.parametrize("name", ["qqp", "mrpc", "cola"])
def test_short_lines_of_a_whole_file_are_an_error_but_in_qqp(glue, name):
    """Though the other rows are as many as the published set has: only QQP's has broken lines."""
    task = load_task(name)
    task = dataclasses.replace(task, train=dataclasses.replace(task.train, count=3))
    path = glue / task.train.files[0]
    path.write_bytes(path.read_bytes() + b"7\n")
    if name == "qqp":
        assert load(task, glue).train.num_left_out == 1
    else:
        with pytest.raises(ValueError, match=r"train.tsv, line \d: expected \d+ fields"):
            load(task, glue)


def test_a_missing_folder(glue):
    shutil.rmtree(glue / "RTE")
    with pytest.raises(
        ValueError, match=r"^RTE: expected the folder .*glue/RTE; .*holds: AX/, CoLA/"
    ):
        load(load_task("rte"), glue)
    with pytest.raises(ValueError, match="there is no folder .*nowhere"):
        load(load_task("rte"), glue / "nowhere")
    with pytest.raises(ValueError, match="--data is the folder that holds SST-2/, not that folder"):
        load(load_task("sst2"), glue / "SST-2")


def test_a_missing_file(glue):
    """One dev set of two may be missing."""
    (glue / "MNLI/dev_matched.tsv").unlink()
    assert load(load_task("mnli"), glue).absent == ("matched",)
    (glue / "MNLI/dev_mismatched.tsv").unlink()
    (glue / "CoLA/train.tsv").unlink()
    for title, file in (("MNLI", "dev_matched.tsv"), ("CoLA", "train.tsv")):
        with pytest.raises(ValueError, match=rf"^{title}: expected the file .*{file}; .*test"):
            load(load_task(title.lower()), glue)


@pytest.mark.parametrize(("name", "other", "message"), [
    ("rte", "STS-B", "RTE/train.tsv: expected the columns .*looks like a file of STS-B$"),
    ("mnli", "WNLI", "looks like a file of RTE or WNLI$"),
    ("stsb", "CoLA", "the first line is 'source', '0', .*: no 'sentence1'$"),
    ("cola", "QNLI", "the label 'question' is not one .*looks like a file of QNLI$"),
    ("wnli", "RTE", "line 2: the label 'entailment' is not .*like a file of RTE$"),
    ("sst2", "QNLI", "line 2: the label 'not_ent.* is not .*like a file of QNLI$"),
])  # fmt: skip
def test_the_files_of_another_task(glue, name, other, message):
    task = load_task(name)
    if other == "CoLA":
        path = glue / "CoLA/train.tsv"
        path.write_text(path.read_text().replace("( source )", "source"))
    shutil.rmtree(glue / task.folder)
    shutil.copytree(glue / other, glue / task.folder)
    with pytest.raises(ValueError, match=message):
        load(task, glue)


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
            assert set(labels.tolist()) == set(range(task.num_outputs))
