"""The records of a labeled task, from any source, and its valid labels."""

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.helpers.names import brief

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """The rows of one split, in the file's order.

    Attributes:
      texts: for each text column its texts, one per row.
      labels: [rows], int32 class indices, float32 scores, or texts that a kind of head reads; None
        for a split without labels.
      source: the file or data set.
      digest: SHA-256 of the content.
      num_left_out: broken lines of the published file that were left out.
      remarks: notes that tables must repeat.
    """

    texts: tuple[list[str], ...]
    labels: np.ndarray | None
    source: str
    digest: str
    num_left_out: int = 0
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def num_empty(self) -> int:
        """Number of texts with nothing but white space."""
        return sum(not text.strip() for column in self.texts for text in column)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Mapping[str, Any]],
        texts: Sequence[str],
        labels: "Labels | None",
        source: str,
    ) -> "Records":
        """Makes records of a data set's rows, in the order of their `idx`.

        Args:
          rows: their texts are strings; a `label` is a class index or a score.
          texts: the one or two text features.
          labels: the valid labels; None for a test split: its labels are not read.
          source: the data set and its split.

        Raises:
          ValueError: a row lacks a feature, or a label is not valid.
        """
        needed = [*texts, "idx", *(() if labels is None else ("label",))]
        for row in rows:
            if absent := [name for name in needed if row.get(name) is None]:
                raise ValueError(f"{source}: a row has no {absent[0]!r}: {brief(dict(row))}")
        rows = sorted(rows, key=lambda row: int(row["idx"]))
        columns = tuple([str(row[name]) for row in rows] for name in texts)
        found = labels and labels.from_rows(rows, source)
        state = hashlib.sha256()
        for data in (text.encode() for column in columns for text in column):
            state.update(len(data).to_bytes(8, "little") + data)
        state.update(b"" if found is None else found.tobytes())
        return cls(columns, found, source, state.hexdigest())


@dataclasses.dataclass(frozen=True)
class Labels:
    """The valid labels: classes, or scores.

    Attributes:
      classes: the labels as in files, in the order of their indices; None for scores.
      score_range: smallest and largest score; None for any finite float32.
    """

    classes: tuple[str, ...] | None = None
    score_range: tuple[float, float] | None = None

    def array(self, spelt: Iterable[tuple[str, str]]) -> np.ndarray:
        """Returns class indices, int32, or scores, float32.

        Args:
          spelt: pairs of the label's place, for messages, and the label.

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

    def from_rows(self, rows: Sequence[Mapping[str, Any]], source: str) -> np.ndarray:
        """Returns class indices, int32, or scores, float32, of rows that have `label` and `idx`."""
        given = [(f"{source}, idx {row['idx']}", row["label"]) for row in rows]
        if self.classes is None:
            return self.array((where, str(label)) for where, label in given)
        for where, label in given:
            if label not in range(len(self.classes)):
                raise ValueError(
                    f"{where}: the label {brief(label)} is not a class index from 0 to"
                    f" {len(self.classes) - 1}"
                )
        return np.array([label for _, label in given], np.int32)

    def _score(self, where: str, label: str) -> float:
        least, most = self.score_range or (-LARGEST, LARGEST)
        score = float(label) if NUMBER.fullmatch(label) else math.nan
        if not least <= score <= most:
            raise ValueError(
                f"{where}: expected a score, a number from {least:g} to {most:g}, found"
                f" {brief(label)}"
            )
        return score
