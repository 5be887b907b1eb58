"""The numbers that the benchmark's thesis printed, to compare ours with.

Table 7.1, `epochs`, describes the corpus. Tables 7.2 to 7.8 and B.1 to B.5, one file each in
published/, have one run a row: system, shape and variant, then scores as printed, in percent. Each
is of one pre-training and one fine-tuning, so none has an interval. published/doubts.csv names the
cells that are wrong, or not exact: they are shown as doubtful and never used; a doubtful GLUE-Large
is replaced by the mean of its three parts.

Metrics that the thesis does not name: "mrpc" must be F1 (81.2 is the F1 of "all are paraphrases");
whether "qqp" is accuracy or F1, and "stsb" Pearson's or Spearman's, is open. The printed N of three
shapes is misprinted; N here is that of the shape.
"""

import csv
import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from scalelab.config.pretraining import Shape
from scalelab.helpers.names import nearest
from scalelab.lab.compare.estimates import Contrast, Estimate, without_interval
from scalelab.lab.compare.evidence import LARGE, Evidence
from scalelab.lab.load.study_runs import BASELINE

TABLES = ("7.2", "7.3", "7.4", "7.5", "7.6", "7.7", "7.8", "B.1", "B.2", "B.3", "B.4", "B.5")
FOLDER = pathlib.Path(__file__).parent / "published"
IN_PERCENT = 100.0
NO_INTERVAL = "one run of each, printed without interval"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
      system: its name in scalelab.systems.
      shape: of the net.
      variant: "baseline", "half_steps", "half_batch", "short_only" (no long sequences),
        "fewer_epochs" (5 instead of 6) or "fewer_long_epochs" (5, of long sequences 3).
    """

    system: str
    shape: Shape
    variant: str

    @property
    def label(self) -> str:
        """As study_runs.Point has it."""
        variant = "" if self.variant == BASELINE else f" {self.variant}"
        return f"{self.system} {self.shape}{variant}"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number in a table.

    Attributes:
      value: a fraction; "loss" in nats, "seconds" in seconds.
      printed: as it stands there.
      doubt: why it must not be used as exact; None: no reason.
    """

    value: float
    printed: str
    doubt: str | None = None


@functools.cache
def read_table(name: str) -> Mapping[Row, Mapping[str, Cell]]:
    """Returns a table of the thesis: its rows' cells by score, without the empty ones.

    Raises:
      ValueError: there is none of this name.
    """
    if name not in TABLES:
        raise ValueError(f"no published table {name!r}: {nearest(name, TABLES)}")
    doubts = {
        (line["system"], line["shape"], line["variant"], line["score"]): line["why"]
        for line in _read("doubts")
        if line["table"] == name
    }
    rows = {}
    for line in _read(name.lower().replace(".", "_")):
        shape = Shape(*(int(line.pop(key)) for key in ("num_heads", "width", "num_layers")))
        row = Row(line.pop("system"), shape, line.pop("variant"))
        rows[row] = {
            score: Cell(
                float(text) / (1.0 if score in ("loss", "seconds") else IN_PERCENT),
                text,
                doubts.pop((row.system, str(shape), row.variant, score), None),
            )
            for score, text in line.items()
            if text
        }
    assert not doubts, f"doubts.csv names cells that table {name} has not: {list(doubts)}"
    return rows


class Published(Evidence):
    """All tables as Evidence: values without intervals.

    Attributes:
      cells: by row and score; where tables print one number twice, that of the first table.
      doubts: remarks on doubtful cells by score: what is done about them.
    """

    counts_only = True

    def __init__(self) -> None:
        self.cells: dict[Row, dict[str, Cell]] = {}
        self.doubts: dict[str, list[str]] = {}
        for name in TABLES:
            for row, cells in read_table(name).items():
                known = self.cells.setdefault(row, {})
                for score, cell in cells.items():
                    known.setdefault(score, cell)
                    if cell.doubt is not None:
                        remark = _remark(name, row, score, cell)
                        self.doubts.setdefault(score, []).append(remark)

    @property
    def rows(self) -> tuple[Row, ...]:
        """In the order of the tables."""
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

    def contrast(self, weights: Mapping[Row, float], score: str) -> Contrast | None:
        """Returns a weighted sum of scores without interval."""
        values = [(weight, self.value(row, score)) for row, weight in weights.items()]
        if any(value is None for _, value in values):
            return None
        total = sum(weight * value.value for weight, value in values if value)
        return Contrast(total, None, NO_INTERVAL)

    def untestable(self, rows: Iterable[Row], score: str) -> str:
        """Returns "": the thesis prints no losses of single objectives."""
        return ""

    def passes(self, row: Row) -> list[float | None]:
        """Returns []: the tables have steps."""
        return []

    def curves(self, row: Row) -> dict[int, dict[int, np.ndarray]]:
        """Returns {}: the thesis has curves as pictures alone."""
        return {}

    def remarks(self, score: str) -> list[str]:
        """Returns the doubtful cells of a score, and what is done about them."""
        return self.doubts.get(score, [])


class Epoch(NamedTuple):
    """What one epoch of a phase has (Table 7.1).

    Attributes:
      sequences: total by average, rounded; not printed itself.
      tokens: in total.
      average: tokens of a sequence, as printed.
    """

    sequences: int
    tokens: int
    average: float


@functools.cache
def epochs() -> dict[tuple[str, str], Epoch]:
    """Table 7.1: (system, "short" or "long") -> what an epoch of it has."""
    return {
        (line["system"], line["phase"]): Epoch(
            int(line["sequences"]), int(line["tokens"]), float(line["average"])
        )
        for line in _read("7_1")
    }


@functools.cache
def evidence() -> Published:
    """All tables as Evidence."""
    return Published()


def _read(name: str) -> Iterator[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _remark(name: str, row: Row, score: str, cell: Cell) -> str:
    use = "the mean of its parts is used" if score == "large" else "left out"
    return f"Table {name}, {row.label}, {score} {cell.printed}: {cell.doubt}; {use}."
