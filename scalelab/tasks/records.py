"""The records of a labelled task, from any source, and its valid labels."""

import dataclasses
import math
import re
from collections.abc import Iterable

import numpy as np

from scalelab.helpers.names import brief

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """The rows of one set, in the file's order.

    Attributes:
      texts: for each text column its texts, one a row.
      labels: [rows], int32 class indices or float32 scores; None for a set without labels.
      source: the file or data set.
      digest: SHA-256 of the content.
      num_left_out: broken lines of the published file that were left out.
    """

    texts: tuple[list[str], ...]
    labels: np.ndarray | None
    source: str
    digest: str
    num_left_out: int = 0

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def num_empty(self) -> int:
        """Texts that hold nothing but white space."""
        return sum(not text.strip() for column in self.texts for text in column)


@dataclasses.dataclass(frozen=True)
class Labels:
    """The valid labels: classes, or scores.

    Attributes:
      classes: the labels as files spell them, in the order of their indices; None for scores.
      score_range: least and greatest score; None for any finite number of float32.
    """

    classes: tuple[str, ...] | None = None
    score_range: tuple[float, float] | None = None

    def array(self, spelt: Iterable[tuple[str, str]]) -> np.ndarray:
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
                valid = ", ".join(map(repr, self.classes))
                raise ValueError(
                    f"{where}: the label {brief(label)} is not one of this task's: {valid}"
                )
            found.append(index[label])
        return np.array(found, np.int32)

    def _score(self, where: str, label: str) -> float:
        least, most = self.score_range or (-LARGEST, LARGEST)
        score = float(label) if NUMBER.fullmatch(label) else math.nan
        if not least <= score <= most:
            raise ValueError(
                f"{where}: expected a score, a number from {least:g} to {most:g}, found"
                f" {brief(label)}"
            )
        return score
