"""What shapes reached and cost, from a CSV or from run folders: the input of compound scaling."""

import csv
import math
import pathlib
from collections.abc import Mapping

import numpy as np

from scalelab.lab import fitting, law_points, run_points, shape_rules
from scalelab.lab.fitting import Law
from scalelab.lab.run_points import LOSS
from scalelab.lab.study_runs import Shape

Means = dict[Shape, float]


def losses_and_scores(
    path: pathlib.Path,
    loss: str = LOSS,
    score: str | None = "score",
    where: str = "",
    notes: list[str] | None = None,
) -> tuple[Means, Means]:
    """Reads what each shape of a grid reached, as the mean over its rows or runs.

    Args:
      path: a CSV with columns "shape", or A, H and L, and those of loss and score, where a field
        may be empty; or a folder of runs.
      loss: column of a CSV; for runs it is always the validation loss.
      score: column of a CSV, or what `run_points.read` measures of runs; None: no score.
      where: conditions on runs.
      notes: takes what has to be said of runs: which are left out, and why.

    Raises:
      ValueError: a column is missing, or runs are of several systems.
      OSError: the CSV cannot be read.
    """
    if path.is_dir():
        notes = [] if notes is None else notes
        found = [_of_runs(path, LOSS, where, notes)]
        found.append({} if score is None else _of_runs(path, score, where, notes))
        return found[0], found[1]
    rows = _rows(path)
    return _column(path, rows, loss), {} if score is None else _column(path, rows, score)


def cost_law(
    path: pathlib.Path, clock: str, where: str = "", notes: list[str] | None = None
) -> Law:
    """Fits cost = A N^-a, with a below 0, to measured costs.

    Args:
      path: a CSV with columns "n_model" (or "shape", or A, H and L) and the clock; or a folder of
        runs that trained alike but for their size.
      clock: "flops" or "seconds".
      where: conditions on runs.
      notes: as for `losses_and_scores`.

    Raises:
      ValueError: a column is missing, sizes are too few or too close, or the cost does not rise.
    """
    if path.is_dir():
        points, said = run_points.read([path], LOSS, where)
        _add(notes, said)
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
      ValueError: it is farther outside of the measured sizes than `limit` allows.
    """
    size = float((cost / law.parameters["A"].value) ** (-1 / law.parameters["a"].value))
    try:
        law.predict([size], limit=limit)
    except ValueError as error:
        raise ValueError(str(error).replace("x =", "N =", 1)) from error
    return size


def _add(notes: list[str] | None, said: list[str]) -> None:
    """Takes notes, each once."""
    if notes is not None:
        notes += [note for note in said if note not in notes]


def _of_runs(folder: pathlib.Path, measure: str, where: str, notes: list[str]) -> Means:
    points, said = run_points.read([folder], measure, where)
    _add(notes, said)
    systems = run_points.by_system(points)
    if len(systems) > 1:
        raise ValueError(
            f"{folder} holds {', '.join(systems)}: choose, as --where=system=bert does"
        )
    return _mean([(shape_rules.parse(p.shape), p.value) for p in points])


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
