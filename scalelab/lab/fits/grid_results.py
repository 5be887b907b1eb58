"""What shapes reached and cost, from a CSV or from run folders: the input of compound scaling."""

import csv
import dataclasses
import math
import pathlib
from collections.abc import Mapping

import numpy as np

from scalelab.lab import shape_rules
from scalelab.lab.all_runs import kinds, run_points
from scalelab.lab.all_runs.run_points import LOSS, RunPoint
from scalelab.lab.fits import fitting, law_points
from scalelab.lab.fits.fitting import Law
from scalelab.lab.reading.study_runs import Shape

Means = dict[Shape, float]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where results are read from.

    Attributes:
      path: a CSV with columns "shape", or A, H and L, and what was measured; or a folder of runs.
      where: conditions on runs.
      allow: fields in which runs may differ against the contract, with commas between.
    """

    path: pathlib.Path
    where: str = ""
    allow: str = ""


def losses_and_scores(
    source: Source,
    loss: str = LOSS,
    score: str | None = "score",
    notes: list[str] | None = None,
) -> tuple[Means, Means]:
    """Reads what each shape of a grid reached, as the mean over its rows or seeds.

    Args:
      source: of the results; in a CSV the field of a loss or a score may be empty.
      loss: column of a CSV; for runs it is always the validation loss.
      score: column of a CSV, or what `run_points.read` measures of runs; None: no score.
      notes: takes what has to be said of runs: which are left out, and what was allowed to differ.

    Raises:
      ValueError: a column is missing, runs differ in more than their shape, or the sizes N are
        those of no grid.
      OSError: the CSV cannot be read.
    """
    notes = [] if notes is None else notes
    if source.path.is_dir():
        losses = _of_runs(source, LOSS, notes)
        scores = {} if score is None else _of_runs(source, score, notes)
    else:
        rows = _rows(source.path)
        losses = _column(source.path, rows, loss)
        scores = {} if score is None else _column(source.path, rows, score)
    _check_sizes(source.path, losses)
    return losses, scores


def cost_law(source: Source, clock: str, notes: list[str] | None = None) -> Law:
    """Fits cost = A N^-a, with a below 0, to measured costs.

    Args:
      source: runs that trained alike but for their shape, or a CSV with columns "n_model" (or
        "shape", or A, H and L) and the clock.
      clock: "flops" or "seconds".
      notes: as for `losses_and_scores`.

    Raises:
      ValueError: a column is missing, runs differ in more than their shape, sizes are too few or
        too close, or the cost does not rise.
    """
    path = source.path
    if path.is_dir():
        points = _alike(source, LOSS, [] if notes is None else notes)
        pairs = [(p.clocks["n_model"], p.clocks[clock]) for p in points if clock in p.clocks]
    else:
        rows = _rows(path)
        _check_columns(path, rows, [clock])
        pairs = [(_size(path, row), _number(path, row[clock])) for row in rows if row[clock]]
    law = fitting.fit(law_points.gather([x for x, _ in pairs], [y for _, y in pairs]), "plain")
    if law.parameters["a"].value >= 0:
        raise ValueError(f"{clock} in {path} do not rise with N: were the runs trained alike?")
    return law


def size_at(cost: float, law: Law, limit: float = fitting.MAX_EXTRAPOLATION) -> float:
    """The N that costs so much.

    Raises:
      ValueError: it is farther outside of the measured sizes than `limit` allows, or the points
        do not determine the law.
    """
    size = float((cost / law.parameters["A"].value) ** (-1 / law.parameters["a"].value))
    law.check_determined()
    try:
        law.predict([size], limit=limit)
    except ValueError as error:
        raise ValueError(str(error).replace("x =", "N =", 1)) from error
    return size


def _of_runs(source: Source, measure: str, notes: list[str]) -> Means:
    points = _alike(source, measure, notes)
    return _mean([(shape_rules.parse(p.shape), p.value) for p in points])


def _alike(source: Source, measure: str, notes: list[str]) -> list[RunPoint]:
    """Runs of one kind, but for their shapes."""
    points, said = run_points.read([source.path], measure, source.where)
    allow = kinds.allowed(source.allow, points)
    said = said + kinds.one(points, kinds.SHAPE, allow, _place(source))
    notes += [note for note in said if note not in notes]
    return points


def _place(source: Source) -> str:
    return f"{source.path}" + (f" where {source.where}" if source.where else "")


def _check_sizes(path: pathlib.Path, losses: Means) -> None:
    """Refuses shapes whose N are not those of one size."""
    sizes = sorted(shape.n_model for shape in losses)
    if sizes and sizes[-1] > shape_rules.EQUAL * sizes[0]:
        at_most = f"n_model>={sizes[0]},n_model<={int(shape_rules.EQUAL * sizes[0])}"
        raise ValueError(
            f"{path}: {len(sizes)} shapes have N from {sizes[0]:,} to {sizes[-1]:,}, which is no"
            f" grid of one size: N may differ by a factor {shape_rules.EQUAL:g}; keep the shapes of"
            f" one size, as --where={at_most} does with runs"
        )


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path} has no rows below its header")
    return rows


def _column(path: pathlib.Path, rows: list[dict[str, str]], name: str) -> Means:
    _check_columns(path, rows, [name])
    return _mean([(_shape(path, row), _number(path, row[name])) for row in rows if row[name]])


def _mean(pairs: list[tuple[Shape, float]]) -> Means:
    by_shape: dict[Shape, list[float]] = {}
    for shape, number in pairs:
        by_shape.setdefault(shape, []).append(number)
    return {shape: float(np.mean(numbers)) for shape, numbers in by_shape.items()}


def _check_columns(path: pathlib.Path, rows: list[dict[str, str]], names: list[str]) -> None:
    missing = [name for name in names if name not in rows[0]]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}; it has {', '.join(rows[0])}")


def _shape(path: pathlib.Path, row: Mapping[str, str]) -> Shape:
    if "shape" in row:
        return shape_rules.parse(row["shape"])
    if not {"A", "H", "L"} <= row.keys():
        raise ValueError(f"{path} needs a column 'shape', or A, H and L; it has {', '.join(row)}")
    return shape_rules.parse(f"{row['A']}x{row['H']}x{row['L']}")


def _size(path: pathlib.Path, row: Mapping[str, str]) -> float:
    return _number(path, row["n_model"]) if "n_model" in row else _shape(path, row).n_model


def _number(path: pathlib.Path, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path}: {text!r} is no number")
    return value
