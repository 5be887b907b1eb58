"""What tables, figures and hypotheses are made from: rows, and their scores by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from scalelab.lab.compare.bootstrap import Estimate
from scalelab.lab.compare.contrasts import Contrast
from scalelab.lab.reading.study_runs import Shape

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
LARGE = ("mnli_m", "qqp", "qnli")  # GLUE-Large is their mean (protocol, "Fine-tuning")
OF_PRETRAINING = ("loss", "seconds")
SCORES = ("large", *OF_TASKS, *OF_PRETRAINING)


class Row(Protocol):
    """What is scored: study_runs.Point, published.Row."""

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
        """What else differs; study_runs.BASELINE: nothing."""
        ...

    @property
    def label(self) -> str:
        """For tables."""
        ...


class Evidence(Protocol):
    """The scores of a study, or the published ones.

    Attributes:
      counts_only: whether no value has an interval, so that cases can be counted and no more.
    """

    counts_only: bool

    @property
    def rows(self) -> Sequence[Row]:
        """In the order of tables."""
        ...

    def value(self, row: Any, score: str) -> Estimate | None:
        """A score of one of the rows; None: there is none."""
        ...

    def difference(self, a: Any, b: Any, score: str) -> Estimate | None:
        """Score of B minus that of A; None: one is missing, or they do not compare."""
        ...

    def contrast(self, blocks: Sequence[Mapping[Any, float]], score: str) -> Contrast | None:
        """Mean over blocks of a weighted sum of scores, {row: weight}; None: one is missing."""
        ...

    def curves(self, row: Any) -> list[dict[int, np.ndarray]]:
        """Of each pre-training of a row: maximum length -> validation loss by seconds, [K, 2]."""
        ...

    def passes(self, row: Any) -> list[float | None]:
        """Passes over its corpus of each pre-training of a row; None: that cannot be told."""
        ...

    def remarks(self, score: str) -> list[str]:
        """What must be said of a score's values."""
        ...

    def caveats(self, scores: Iterable[str]) -> list[str]:
        """What of some scores could not be used, or does not compare."""
        ...


def check(score: str) -> None:
    """Raises a ValueError if there is no such score."""
    if score not in SCORES:
        raise ValueError(f"unknown score {score!r}: expected one of {', '.join(SCORES)}")


def parts_of(score: str) -> tuple[str, ...]:
    """The scores that a score is the mean of."""
    return LARGE if score == "large" else (score,)


def tasks_of(score: str) -> tuple[str, ...]:
    """The tasks that it takes."""
    return tuple(OF_TASKS[part][0] for part in parts_of(score))
