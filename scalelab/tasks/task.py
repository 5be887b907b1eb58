"""Downstream tasks: their description, their splits, and remarks on incomplete data."""

import dataclasses
import importlib
import os
import re
import string
from pathlib import Path

from scalelab.helpers.names import module_names, nearest
from scalelab.tasks import files, tfds
from scalelab.tasks.files import Columns, WrongHeader
from scalelab.tasks.records import Labels, Records

ENOUGH = 100  # training rows from which a punctuation mark that none has is worth a remark
RELATIONS = ("single", "entailment", "similarity")
METRICS = ("matthews", "accuracy", "f1", "pearson", "spearman")


@dataclasses.dataclass(frozen=True)
class Split:
    """One set of a task.

    Attributes:
      name: "train", "dev", "matched", "test", ...: unique among a task's dev, and test, splits.
      files: paths from the folder of all tasks; the first that exists is read.
      count: rows of the published set; None if there is none.
      tfds: config and split of TensorFlow Datasets' `glue`, such as "cola/train".
      submission: name of its file in a leaderboard submission; for test splits.
      broken_lines: whether the published file has lines that are broken in two.
    """

    name: str
    files: tuple[str, ...]
    count: int | None = None
    tfds: str | None = None
    submission: str | None = None
    broken_lines: bool = False


@dataclasses.dataclass(frozen=True)
class Task:
    """A downstream task.

    In the GLUE average (Wang et al. 2019, arXiv:1804.07461) it counts once: the mean of its
    metrics, and for MNLI the mean over matched and mismatched.

    Attributes:
      name: as in `python -m scalelab.eval.<name>`.
      title: as in tables.
      relation: how texts become an input: "single" text; "entailment", a pair in the order given;
        "similarity", a pair without an order, which GPT-style nets see in both (Radford et al.
        2018, section 3.3).
      metrics: names out of METRICS, the main one first.
      columns: of training and dev files.
      test_columns: of test files.
      train: the training split.
      dev_splits: the splits that are scored, the main one first.
      test_splits: the splits without labels.
      labels: the labels as files and submissions spell them, in class order; None for regression.
      classes: the names of the classes, if labels are numbers, as in TensorFlow Datasets' `glue`.
      score_range: least and greatest score of a regression, if it has bounds.
      tfds_texts: the text features in TensorFlow Datasets.
    """

    name: str
    title: str
    relation: str
    metrics: tuple[str, ...]
    columns: Columns
    test_columns: Columns
    train: Split
    dev_splits: tuple[Split, ...]
    test_splits: tuple[Split, ...] = ()
    labels: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    score_range: tuple[float, float] | None = None
    tfds_texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.relation in RELATIONS, self.relation
        assert self.metrics and set(self.metrics) <= set(METRICS), self.metrics
        assert (self.relation == "single") == (len(self.columns.texts) == 1), self.columns
        assert self.classes is None or len(self.classes) == len(self.labels or ()), self.classes
        assert len(self.test_columns.texts) == len(self.columns.texts), self.test_columns

    @property
    def regression(self) -> bool:
        """Whether the task predicts a score, not a class."""
        return self.labels is None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of its classes, in class order; none for regression."""
        return self.classes or self.labels or ()

    @property
    def num_outputs(self) -> int:
        """Outputs of the head: one a class, or the score."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def folder(self) -> str:
        """The task's own folder, from the folder of all tasks."""
        return os.path.dirname(self.train.files[0])

    @property
    def valid_labels(self) -> Labels:
        """The valid labels of its files."""
        return Labels(self.labels, self.score_range)


@dataclasses.dataclass(frozen=True, eq=False)
class Splits:
    """The data of a task.

    Attributes:
      train: the training records.
      dev: for each of the task's dev splits its records, None where it is absent.
      test: likewise the test splits; empty if they were not asked for.
    """

    train: Records
    dev: dict[str, Records | None]
    test: dict[str, Records | None]

    @property
    def absent(self) -> tuple[str, ...]:
        """Names of the dev and test splits that are absent."""
        return tuple(name for name, r in (self.dev | self.test).items() if r is None)

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of the content of each split that exists."""
        everything = {"train": self.train} | self.dev | self.test
        return {name: r.digest for name, r in everything.items() if r is not None}


def load(task: Task, data_dir: str | os.PathLike[str] | None, *, tests: bool = True) -> Splits:
    """Reads a task's data.

    Args:
      task: the task.
      data_dir: the folder that holds the folders of all tasks; None for TensorFlow Datasets.
      tests: whether to read the test splits too.

    Raises:
      ValueError: the task's folder, its training file or all its dev files are missing, or a file
        is malformed; the message names file, place and what was expected.
    """
    if data_dir is None:
        if task.train.tfds is None:
            raise ValueError(f"{task.title}: --data is missing, the folder of its files")
        read = _read_tfds
        root = Path()
    else:
        read = _read_files
        root = Path(data_dir).expanduser()
        _check_folder(task, root)
    train = read(task, task.train, root, labelled=True)
    dev = {split.name: read(task, split, root, labelled=True) for split in task.dev_splits}
    if train is None or not any(dev.values()):
        file = task.train.files[0] if train is None else task.dev_splits[0].files[0]
        found = files.listing((root / file).parent)
        raise ValueError(f"{task.title}: expected the file {root / file}; {found}")
    test_splits = task.test_splits if tests else ()
    test = {split.name: read(task, split, root, labelled=False) for split in test_splits}
    return Splits(train, dev, test)


def remarks(task: Task, splits: Splits, *, tests: bool = False) -> list[str]:
    """Lists where the data differs from the published task; tables must repeat it.

    Args:
      task: the task.
      splits: its data.
      tests: whether the test splits count, as they do for a submission.

    Returns:
      Sentences such as "MNLI train 9,888 of 392,702; mismatched absent"; none if the data is whole
      and no punctuation of dev is lost in training.
    """
    pairs = [(task.train, splits.train)]
    pairs += [(split, splits.dev[split.name]) for split in task.dev_splits]
    if tests:
        pairs += [(split, splits.test.get(split.name)) for split in task.test_splits]
    parts = []
    for split, records in pairs:
        if records is None:
            parts.append(f"{split.name} absent")
        elif split.count is not None and len(records) != split.count:
            subset = split is task.train and len(records) < split.count
            link = " of " if subset else ", not the official "
            if split in task.dev_splits and len(records) < split.count:
                link = " carved or cut, NOT the official dev set of "
            parts.append(f"{split.name} {len(records):,}{link}{split.count:,}")
    found = [f"{task.title} {'; '.join(parts)}"] if parts else []
    for what, field in (("empty texts", "num_empty"), ("broken lines left out", "num_left_out")):
        counts = [(s.name, getattr(r, field)) for s, r in pairs if r is not None]
        counted = [f"{n:,} in {name}" for name, n in counts if n]
        found += [f"{task.title} {what}: {', '.join(counted)}"] if counted else []
    return found + [f"{task.title}: {what}" for what in _lost_marks(task, splits)]


def _lost_marks(task: Task, splits: Splits) -> list[str]:
    """Lists punctuation marks that most rows of a dev set have and no training row."""
    if len(splits.train) < ENOUGH:
        return []
    seen = set("".join(map("".join, splits.train.texts)))
    found = []
    for split in task.dev_splits:
        records = splits.dev[split.name]
        for mark in sorted(set(string.punctuation) - seen) if records is not None else ():
            rows = zip(*records.texts, strict=True)
            count = sum(any(mark in text for text in row) for row in rows)
            if count > len(records) / 2:
                share = f"{100 * count / len(records):.0f}% of the rows of {split.name}"
                found.append(f"{mark!r} is in no training row and in {share}")
    return found


def task_names() -> list[str]:
    """Lists the names of the task files in `scalelab/eval/`.

    Reads their source, because importing a program may define its flags.
    """
    folder = Path(__file__).parent.parent / "eval"
    return [
        name
        for name in module_names("eval")
        if re.search(r"^TASK\b", (folder / f"{name}.py").read_text(encoding="utf-8"), re.MULTILINE)
    ]


def load_task(name: str) -> Task:
    """Finds a task by its name.

    Raises:
      ValueError: there is none; the message names the nearest ones.
    """
    valid = task_names()
    if name not in valid:
        raise ValueError(f"unknown task {name!r}: {nearest(name, valid)}")
    return importlib.import_module(f"scalelab.eval.{name}").TASK


def is_known(task: Task) -> bool:
    """Returns True for the task of a task file, False for a user's own."""
    return task.name in task_names() and load_task(task.name) == task


def _read_tfds(task: Task, split: Split, root: Path, *, labelled: bool) -> Records | None:
    del root
    if split.tfds is None:
        return None
    config, _, name = split.tfds.partition("/")
    labels = task.valid_labels if labelled else None
    return tfds.read(f"glue/{config}", name, task.tfds_texts, labels)


def _read_files(task: Task, split: Split, root: Path, *, labelled: bool) -> Records | None:
    path = next((root / file for file in split.files if (root / file).exists()), None)
    if path is None:
        return None
    columns = task.columns if labelled else task.test_columns
    count = split.count if split.broken_lines else None
    try:
        return files.read(path, columns, task.valid_labels, count_of_whole_lines=count)
    except WrongHeader as error:
        others = [title for title in _looks_like(error) if title != task.title]
        guess = f"; it looks like a file of {' or '.join(others)}" if others else ""
        raise ValueError(f"{task.title}: {error}{guess}") from error


def _looks_like(error: WrongHeader) -> list[str]:
    """Returns the titles of the tasks whose files have this header.

    SST-2's columns are all among QNLI's, so a task counts only if no other matches more columns.
    """
    tasks = [load_task(name) for name in task_names()]
    names = {t: frozenset(t.columns.names) for t in tasks if t.columns.names}
    fits = {t: columns for t, columns in names.items() if columns <= set(error.found)}
    best = [t for t, mine in fits.items() if not any(mine < c for c in fits.values())]
    return [t.title for t in best if error.label is None or error.label in (t.labels or ())]


def _check_folder(task: Task, root: Path) -> None:
    """Refuses a data folder without the task's folder."""
    if (root / task.folder).is_dir():
        return
    if root.is_dir() and any((root / Path(f).name).exists() for f in task.train.files):
        hint = f"--data is the folder that holds {task.folder}/, not that folder itself"
    else:
        hint = files.listing(root)
    raise ValueError(f"{task.title}: expected the folder {root / task.folder}; {hint}")
