"""The scores that tables, figures and hypotheses are made from: rows, and their scores by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from scalelab.config.pretraining import Shape
from scalelab.lab.compare.estimates import Contrast, Estimate, without_interval

# Score -> task, dev split, metric.
OF_TASKS = {
    "mnli_m": ("mnli", "matched", "accuracy"),
    "mnli_mm": ("mnli", "mismatched", "accuracy"),
    "qqp": ("qqp", "dev", "accuracy"),
    "qqp_f1": ("qqp", "dev", "f1"),
    "qnli": ("qnli", "dev", "accuracy"),
    "sst2": ("sst2", "dev", "accuracy"),
    "cola": ("cola", "dev", "matthews"),
    "stsb": ("stsb", "dev", "pearson"),
    "mrpc": ("mrpc", "dev", "f1"),
    "mrpc_acc": ("mrpc", "dev", "accuracy"),
    "rte": ("rte", "dev", "accuracy"),
    "wnli": ("wnli", "dev", "accuracy"),
    "same_document": ("same_document", "dev", "accuracy"),
    "swapped_words": ("swapped_words", "dev", "accuracy"),
}
# GLUE-Large is the mean of three tasks; the protocol does not say which metric QQP has in it.
MEANS = {"large": ("mnli_m", "qqp", "qnli"), "large_f1": ("mnli_m", "qqp_f1", "qnli")}
LARGE = MEANS["large"]
OF_PRETRAINING = ("loss", "seconds")
SCORES = (*MEANS, *OF_TASKS, *OF_PRETRAINING)
TITLES = {
    "large": "GLUE-Large", "large_f1": "GLUE-Large with QQP's F1", "loss": "validation loss",
    "seconds": "seconds of pre-training",
}  # fmt: skip


class Row(Protocol):
    """A row of a table: study_runs.Point, or a printed one."""

    @property
    def system(self) -> str:
        """Its name."""
        ...

    @property
    def shape(self) -> Shape:
        """Of the net."""
        ...

    @property
    def variant(self) -> str:
        """The study's name for further differences; study_runs.BASELINE: none."""
        ...

    @property
    def label(self) -> str:
        """For tables."""
        ...


class Evidence(Protocol):
    """The scores of a study, or printed ones.

    Attributes:
      counts_only: whether no value has an interval, so that cases can be counted and no more.
    """

    counts_only: bool

    @property
    def rows(self) -> Sequence[Row]:
        """In the order of tables."""
        ...

    def value(self, row: Any, score: str) -> Estimate | None:
        """Returns a score of one of the rows; None: there is none."""
        ...

    def contrast(self, weights: Mapping[Any, float], score: str) -> Contrast | None:
        """Returns a weighted sum of rows' scores; None: one is missing, or they do not compare."""
        ...

    def difference(self, a: Any, b: Any, score: str) -> Estimate | None:
        """Returns the score of B minus that of A; None: one is missing, or they do not compare."""
        found = self.contrast({b: 1.0, a: -1.0}, score)
        return found and (found.estimate or without_interval(found.value))

    def untestable(self, rows: Iterable[Any], score: str) -> str:
        """Returns the reason why the rows' scores cannot test anything; "": they can."""
        ...

    def curves(self, row: Any) -> dict[int, dict[int, np.ndarray]]:
        """Returns seed -> maximum length -> [K, 2] validation losses by seconds, of a row."""
        ...

    def passes(self, row: Any) -> list[float | None]:
        """Returns each pre-training's passes over its corpus; None: that is not recorded."""
        ...

    def remarks(self, score: str) -> list[str]:
        """Returns remarks on a score's values."""
        ...

    def caveats(self, scores: Iterable[str]) -> list[str]:
        """Returns what of some scores could not be used, beyond the remarks."""
        return []


def check(score: str) -> None:
    """Raises a ValueError if there is no such score."""
    if score not in SCORES:
        raise ValueError(f"unknown score {score!r}: expected one of {', '.join(SCORES)}")


def parts_of(score: str) -> tuple[str, ...]:
    """Returns the scores that a score is the mean of."""
    return MEANS.get(score, (score,))


def tasks_of(score: str) -> tuple[str, ...]:
    """Returns the tasks that a score takes."""
    return tuple(OF_TASKS[part][0] for part in parts_of(score))
