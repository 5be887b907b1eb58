"""The published numbers of the benchmark's thesis.

Table 7.1, `epochs`, describes the corpus. Tables 7.2 to 7.8 and B.1 to B.5, one file each in
published/, have one run a row: system, shape and variant, then scores as printed, in percent.
Variants are "default", "half_steps", "half_batch", "short_only" (no long sequences),
"fewer_epochs" (5 instead of 6) and "fewer_long_epochs" (5, of long sequences 3). Each number comes
from one pre-training and one fine-tuning, so none has an interval. published/doubts.csv lists wrong
or inexact cells: they are shown as doubtful and never used. A doubtful GLUE-Large is replaced by
the mean of its three parts.

The thesis does not name some metrics. "mrpc" must be F1 (81.2 is the F1 of "all are paraphrases").
"qqp" may be accuracy or F1, "stsb" Pearson's or Spearman's correlation. The thesis misprints N of
three shapes; here N is computed from the shape.
"""

import csv
import functools
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from scalelab.config.pretraining import Shape
from scalelab.eval.score_names import LARGE
from scalelab.helpers.names import check_names
from scalelab.lab.compare.estimates import Estimate, without_interval
from scalelab.lab.compare.scores import Scores
from scalelab.lab.load.study_runs import Row as Row

TABLES = ("7.2", "7.3", "7.4", "7.5", "7.6", "7.7", "7.8", "B.1", "B.2", "B.3", "B.4", "B.5")


class Cell(NamedTuple):
    """A value (a fraction, nats or seconds), its printed text, and why it is inexact, or None."""

    value: float
    printed: str
    doubt: str | None


class Epoch(NamedTuple):
    """The size of one epoch of a phase (Table 7.1); sequences are total by average, not printed."""

    sequences: int
    tokens: int
    average: float


@functools.cache
def read_table(name: str) -> Mapping[Row, Mapping[str, Cell]]:
    """Returns a table of the thesis as row -> score -> cell, without empty cells.

    Raises:
      ValueError: there is no such table.
    """
    check_names([name], TABLES, "no published table")
    keys = ("system", "shape", "variant", "score")
    doubts = {tuple(line[k] for k in keys): line["why"]
              for line in _read("doubts") if line["table"] == name}  # fmt: skip
    rows = {}
    for line in _read(name.lower().replace(".", "_")):
        shape = Shape(*(int(line.pop(key)) for key in ("num_heads", "width", "num_layers")))
        row = Row(line.pop("system"), shape, line.pop("variant"))
        rows[row] = cells = {}
        for score, text in line.items():
            if text:
                value = float(text) / (1.0 if score in ("loss", "seconds") else 100.0)
                doubt = doubts.pop((row.system, str(shape), row.variant, score), None)
                cells[score] = Cell(value, text, doubt)
    assert not doubts, f"doubts.csv names cells that table {name} lacks: {list(doubts)}"
    return rows


class Published(Scores):
    """All tables as Scores; if two tables print the same score of a row, the first counts."""

    def __init__(self) -> None:
        self.cells: dict[Row, dict[str, Cell]] = {}
        for row, cells in (item for name in TABLES for item in read_table(name).items()):
            self.cells[row] = {**cells, **self.cells.get(row, {})}

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in the order of the tables."""
        return tuple(self.cells)

    def value(self, row: Row, score: str) -> Estimate | None:
        """Returns a score without interval; None: not printed, or doubtful."""
        cell = self.cells[row].get(score)
        if cell is None:
            return None
        if cell.doubt is None:
            return without_interval(cell.value)
        parts = [self.value(row, part) for part in LARGE] if score == "large" else []
        values = [part.value for part in parts if part]
        return without_interval(float(np.mean(values))) if len(values) == len(LARGE) else None

    def contrast(self, weights: Mapping[Row, float], score: str) -> Estimate | None:
        """Returns a weighted sum of scores without interval."""
        values = [
            weight * x.value for row, weight in weights.items() if (x := self.value(row, score))
        ]
        return without_interval(sum(values)) if len(values) == len(weights) else None

    def remarks(self, scores: Iterable[str]) -> list[str]:
        """Returns a sentence for each doubtful cell of the scores, and its treatment."""
        use = {"large": "the mean of its parts is used"}
        return [
            f"Table {name}, {row.label}, {score} {cells[score].printed}: {doubt};"
            f" {use.get(score, 'left out')}."
            for score in scores for name in TABLES for row, cells in read_table(name).items()
            if score in cells and (doubt := cells[score].doubt)
        ]  # fmt: skip


@functools.cache
def epochs() -> dict[tuple[str, str], Epoch]:
    """Returns Table 7.1: (system, "short" or "long") -> the size of an epoch."""
    return {
        (line["system"], line["phase"]): Epoch(
            int(line["sequences"]), int(line["tokens"]), float(line["average"])
        )
        for line in _read("7_1")
    }


@functools.cache
def read_scores() -> Published:
    """Returns all tables as Scores."""
    return Published()


def _read(name: str) -> list[dict[str, str]]:
    path = pathlib.Path(__file__).parent / "published" / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
