"""Downstream tasks by name, their splits, and remarks on incomplete data."""

import dataclasses
import functools
import os
import string
from collections.abc import Callable
from pathlib import Path

from scalelab.helpers import hf_datasets
from scalelab.helpers.files import listing
from scalelab.helpers.names import check_names, load_module
from scalelab.tasks import data_files, files
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import JSON_LINES
from scalelab.tasks.generation import GENERATION
from scalelab.tasks.glue import GLUE, SELF_SUPERVISED
from scalelab.tasks.questions import QUESTIONS
from scalelab.tasks.records import Labels, Records
from scalelab.tasks.superglue import SUPERGLUE
from scalelab.tasks.tagging import TAGGING

TASKS = {
    t.name: t for t in (*GLUE, *SELF_SUPERVISED, *SUPERGLUE, *TAGGING, *QUESTIONS, *GENERATION)
}
ENOUGH = 100  # minimum training rows for a remark that none of them has a punctuation mark


@dataclasses.dataclass(frozen=True, eq=False)
class Splits:
    """The data of a task.

    Attributes:
      train: the training records.
      dev: the records of each of the task's dev splits, None for an absent split.
      test: the same for the test splits; empty if they were not requested.
    """

    train: Records
    dev: dict[str, Records | None]
    test: dict[str, Records | None]

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of the content of each split that exists."""
        everything = {"train": self.train} | self.dev | self.test
        return {name: r.digest for name, r in everything.items() if r is not None}


def load(task: Task, data_dir: str | os.PathLike[str] | None, *, tests: bool = True) -> Splits:
    """Reads a task's data.

    Args:
      task: the task.
      data_dir: holds the folders of all tasks, or <task>.train.jsonl and <task>.valid.jsonl of the
        BabyLM Challenge, or is hf:NAME, a data set of Hugging Face `datasets`; None: TensorFlow
        Datasets.
      tests: whether the test splits are read too.

    Raises:
      ValueError: the task's folder, its training file or all its dev files are missing, or a file
        is malformed; the message names file, place and the expected content.
    """
    root = _open(data_dir)
    if callable(root) and task.train.tfds is None:
        raise ValueError(f"{task.title}: --data must name the folder of its files")
    if not callable(root) and not (root / task.folder).is_dir() and not any(root.glob(JSON_LINES)):
        raise ValueError(
            f"{task.title}: expected the folder {root / task.folder} (--data is the folder that"
            f" holds {task.folder}/); {listing(root)}"
        )
    train = _read(task, task.train, root, labeled=True)
    dev = {split.name: _read(task, split, root, labeled=True) for split in task.dev_splits}
    if train is None or not any(dev.values()):
        missing = task.train if train is None else task.dev_splits[0]
        if callable(root):
            raise ValueError(f"{task.title}: {data_dir} has no split {missing.tfds}")
        path = _paths(task, missing, root)[0]
        raise ValueError(f"{task.title}: expected the file {path}; {listing(path.parent)}")
    test_splits = task.test_splits if tests else ()
    test = {split.name: _read(task, split, root, labeled=False) for split in test_splits}
    return Splits(train, dev, test)


def _open(data_dir: str | os.PathLike[str] | None) -> Path | Callable[..., Records | None]:
    """Returns the folder of all tasks, or the function that reads a split elsewhere."""
    if data_dir is None:
        return load_module("tasks", "tfds").read
    reader, colon, data_set = str(data_dir).partition(":")
    if colon and reader == "hf":
        return functools.partial(_read_hub, data_set)
    return files.folder(data_dir)


def _read_hub(
    data_set: str, address: str, texts: tuple[str, ...], labels: Labels | None
) -> Records | None:
    """Reads one split of a Hugging Face data set in the order of its `idx`; as `tfds.read`."""
    config, _, split = address.partition("/")
    rows = hf_datasets.load(data_set, config).get(split)
    where = f"hf:{data_set}/{address}"
    return Records.from_rows(rows.to_list(), texts, labels, where) if rows else None


def _read(
    task: Task, split: TaskSplit, root: Path | Callable[..., Records | None], *, labeled: bool
) -> Records | None:
    """Reads a split from the files below `root`, or with the function `root`; None if absent."""
    labels = Labels(task.labels, task.score_range)
    texts = column_names(task)
    if callable(root):
        return root(split.tfds, texts, labels if labeled else None) if split.tfds else None
    path = next(filter(Path.exists, _paths(task, split, root)), None)
    if path is not None and task.read is not None:
        return task.read(path, split.name, task.labels or ())
    if path and path.suffix == ".jsonl":
        rows = [row for _, row in data_files.read_objects(path, texts, ("idx",))]
        with data_files.place(path):
            return Records.from_rows(rows, texts, labels if labeled else None, str(path))
    columns = task.columns if labeled else task.unlabeled_columns
    count = split.count if split.broken_lines else None
    return path and files.read(path, columns, labels, count_of_whole_lines=count)


def _paths(task: Task, split: TaskSplit, root: Path) -> list[Path]:
    """Returns the files that may hold a split, in GLUE's layout or in the BabyLM Challenge's."""
    if (root / task.folder).is_dir():
        return [root / file for file in split.files]
    name = split.tfds or f"{task.folder.lower()}/{split.name.replace('dev', 'validation')}"
    name, _, part = name.partition("/")
    part, _, genres = part.replace("validation", "valid").partition("_")
    return [root / f"{name}{'-mm' * (genres == 'mismatched')}.{part}.jsonl"]


def remarks(task: Task, splits: Splits) -> list[str]:
    """Lists differences of the training and dev sets from the published ones; tables repeat them.

    Returns:
      Sentences such as "MNLI train 9,888 of 392,702; mismatched absent", and sentences about empty
      texts, lines left out, and punctuation of dev sets that no training row has.
    """
    pairs = [(task.train, splits.train), *((s, splits.dev[s.name]) for s in task.dev_splits)]
    parts = []
    for split, records in pairs:
        if records is None:
            parts.append(f"{split.name} absent")
        elif split.count is not None and len(records) != split.count:
            link = ", not the official "
            if len(records) < split.count:
                link = " carved or cut, NOT the official dev set of "
                link = " of " if split is task.train else link
            parts.append(f"{split.name} {len(records):,}{link}{split.count:,}")
    found = [f"{task.title} {'; '.join(parts)}"] if parts else []
    present = [(split.name, records) for split, records in pairs if records is not None]
    for title, field in (("empty texts", "num_empty"), ("broken lines left out", "num_left_out")):
        counts = [f"{n:,} in {name}" for name, records in present if (n := getattr(records, field))]
        found += [f"{task.title} {title}: {', '.join(counts)}"] if counts else []
    found += [f"{task.title}: {remark}" for _, records in present for remark in records.remarks]
    seen = set("".join(map("".join, splits.train.texts)))
    for name, records in present[1:] if len(splits.train) >= ENOUGH else ():
        for mark in sorted(set(string.punctuation) - seen):
            count = sum(any(mark in x for x in row) for row in zip(*records.texts, strict=True))
            if (share := count / len(records)) > 0.5:
                in_dev = f"in {share:.0%} of the rows of {name}"
                found.append(f"{task.title}: {mark!r} is in no training row and {in_dev}")
    return found


def task_names() -> list[str]:
    """Lists the names of the tasks of the tables."""
    return sorted(TASKS)


def load_task(name: str) -> Task:
    """Finds a task by its name.

    Raises:
      ValueError: there is none; the message names the nearest ones.
    """
    check_names([name], TASKS, "unknown task")
    return TASKS[name]


def column_names(task: Task) -> tuple[str, ...]:
    """Returns the names of a task's text columns, if possible those of TensorFlow Datasets."""
    return task.tfds_texts or tuple(map(str, task.columns.texts))


def as_text(task: Task) -> Task:
    """Returns the task as text to text: class names, rounded scores or answers are generated.

    A choice's name is that of its column, such as "choice1". An answer of MultiRC is true or false.

    Raises:
      ValueError: its labels are not words.
    """
    if task.kind in ("texts", "spans"):
        return dataclasses.replace(task, kind="texts")
    if task.kind == "choices":
        return dataclasses.replace(task, kind="words", classes=column_names(task)[1:])
    if task.kind == "answers":
        return dataclasses.replace(task, kind="answer_words", classes=("false", "true"))
    if task.kind != Task.kind or (task.regression and task.score_range is None):
        raise ValueError(
            f"{task.title}: --as=text generates label words, and this task has none (it predicts"
            f" {'scores' if task.regression else task.kind}): leave --as out"
        )
    return dataclasses.replace(task, kind="words")


def is_known(task: Task) -> bool:
    """Returns True for a task of the tables, False for a user's own task."""
    return TASKS.get(task.name) == task
