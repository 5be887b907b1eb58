"""The records of a labelled task, from any source, and its valid labels."""

import dataclasses
import math
import re
from collections.abc import Iterator

import numpy as np

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LARGEST = float(np.finfo(np.float32).max)
SHOWN = 60  # characters of a faulty line that a message quotes


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """The rows of one set, in the file's order.

    Attributes:
      texts: for each text column its texts, one a row.
      labels: [rows], int32 class indices or float32 scores; None for a set without labels.
      source: the file or data set.
      digest: SHA-256 of the content.
      num_empty: texts of white space alone; they are records like any other.
      num_left_out: broken lines of an official release that were left out, see `files.read`.
    """

    texts: tuple[list[str], ...]
    labels: np.ndarray | None
    source: str
    digest: str
    num_empty: int = 0
    num_left_out: int = 0

    def __len__(self) -> int:
        return len(self.texts[0])


@dataclasses.dataclass(frozen=True)
class Labels:
    """The valid labels: classes, or scores.

    Attributes:
      classes: the labels as files spell them, in the order of their indices; None for scores.
      score_range: least and greatest score; None for any finite number of float32.
    """

    classes: tuple[str, ...] | None = None
    score_range: tuple[float, float] | None = None

    def array(self, spelt: Iterator[tuple[str, str]]) -> np.ndarray:
        """Returns class indices, int32, or scores, float32.

        Args:
          spelt: pairs of where a label stands, for messages, and the label.

        Raises:
          ValueError: a label is not valid.
        """
        if self.classes is None:
            return np.array([self._score(where, label) for where, label in spelt], np.float32)
        index = {label: i for i, label in enumerate(self.classes)}
        found = []
        for where, label in spelt:
            if label not in index:
                raise ValueError(f"{where}: {self.wrong(label)}")
            found.append(index[label])
        return np.array(found, np.int32)

    def wrong(self, label: str) -> str:
        """Returns the message about a label that is no class."""
        shown = label if len(label) <= SHOWN else label[:SHOWN] + "..."
        valid = ", ".join(map(repr, self.classes or ()))
        return f"the label {shown!r} is not one of this task's: {valid}"

    def _score(self, where: str, label: str) -> float:
        least, most = self.score_range or (-math.inf, math.inf)
        score = float(label) if NUMBER.fullmatch(label) else math.nan
        if not (abs(score) <= LARGEST and least <= score <= most):
            wanted = f" from {least:g} to {most:g}" if self.score_range else ""
            raise ValueError(f"{where}: expected a score, a number{wanted}, found {label!r}")
        return score


def num_empty(texts: tuple[list[str], ...]) -> int:
    """Counts the texts of white space alone."""
    return sum(not text.strip() for column in texts for text in column)
