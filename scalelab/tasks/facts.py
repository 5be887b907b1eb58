"""The facts of a downstream task: one row of a table (glue, superglue, tagging, questions)."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scalelab.tasks.files import Columns
from scalelab.tasks.metrics import METRICS
from scalelab.tasks.records import Records

SPACING = 0.2  # scores as texts are rounded to multiples of it (Raffel et al. 2020, 2.4)
RELATIONS = ("single", "entailment", "similarity")


@dataclasses.dataclass(frozen=True)
class TaskSplit:
    """One split of a task."""

    name: str  # "train", "dev", "matched", "test", ...: unique among the dev, and the test, splits
    files: tuple[str, ...]  # paths from the folder of all tasks; the first that exists is read
    count: int | None = None  # rows of the published split; None if none is published
    tfds: str | None = None  # config and split of TensorFlow's and the Hub's `glue`: "cola/train"
    submission: str | None = None  # name of its file in a leaderboard submission; for test splits
    broken_lines: bool = False  # whether the published file has lines that are broken in two


class Score(NamedTuple):
    """A score that tables and claims name."""

    title: str
    split: str  # a dev split
    metric: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A downstream task.

    In the GLUE average (Wang et al. 2019, arXiv:1804.07461) it counts once: the mean of its
    metrics, and for MNLI the mean over matched and mismatched.
    """

    name: str  # its name in `scalelab eval <name>`
    title: str  # its name in tables
    about: str = ""  # a line for lists, with the paper; optional further lines for --help
    # "single": one text. "entailment": a pair in the given order. "similarity": a pair without an
    # order; GPT-style models read it in both orders (Radford et al. 2018, section 3.3).
    relation: str
    metrics: tuple[str, ...]  # out of metrics.METRICS, the main one first
    columns: Columns  # columns of training and dev files
    train: TaskSplit
    dev_splits: tuple[TaskSplit, ...]  # scored splits, the main one first
    test_splits: tuple[TaskSplit, ...] = ()  # splits without labels
    # The labels as in files and submissions, in class order; None for regression.
    labels: tuple[str, ...] | None = None
    # The names of the classes, if labels are numbers, as in TensorFlow Datasets' `glue`.
    classes: tuple[str, ...] | None = None
    score_range: tuple[float, float] | None = None  # bounds of a regression's scores; None: none
    # Columns of test files; None: the text columns of training files.
    test_columns: Columns | None = None
    # The text features in TensorFlow Datasets and on the Hub; None: the names of the text columns.
    tfds_texts: tuple[str, ...] | None = None
    kind: str = "classify"  # kind of head: a module in scalelab/finetuning/kinds
    # Reads a split if its files are not tables of columns: (path, split, labels) -> records.
    read: Callable[[Path, str, Sequence[str]], Records] | None = None
    # The scores of tables and claims by name, the main one first; None: the main metric alone.
    named_scores: Mapping[str, Score] | None = None
    # What a prompt begins with if the answer is generated; None: its name and first column.
    prompt: str | None = None
    answer_len: int = 32  # most tokens of a generated answer, its end included

    def __post_init__(self) -> None:
        assert self.relation in RELATIONS, self.relation
        assert self.metrics and set(self.metrics) <= set(METRICS), self.metrics
        assert self.kind in ("classify", "words") or self.read is not None, self.kind
        assert (self.relation == "single") == (len(self.columns.texts) == 1), self.columns
        assert self.classes is None or len(self.classes) == len(self.labels or ()), self.classes

    @property
    def regression(self) -> bool:
        """True if the task predicts a score, not a class."""
        return self.labels is None and self.kind == "classify"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of its classes in their order; for scores as texts, numbers such as "2.6"."""
        if self.kind == "words" and self.labels is None and self.score_range is not None:
            least, most = self.score_range
            count = round((most - least) / SPACING) + 1
            return tuple(f"{least + SPACING * place:.1f}" for place in range(count))
        return self.classes or self.labels or ()

    @property
    def unlabeled_columns(self) -> Columns:
        """The columns of test files."""
        return self.test_columns or Columns(self.columns.texts)

    @property
    def folder(self) -> str:
        """The task's own folder, from the folder of all tasks."""
        return os.path.dirname(self.train.files[0])

    @property
    def scores(self) -> Mapping[str, Score]:
        """The scores of tables and claims by name, the main one first."""
        main = Score(self.title, self.dev_splits[0].name, self.metrics[0])
        return self.named_scores or {self.name: main}
