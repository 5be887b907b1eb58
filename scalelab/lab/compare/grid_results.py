"""Results and costs of shapes, from a CSV or from run folders: the input of compound scaling."""

# The stubs of pandas and altair are narrower than what they accept.
# pyright: reportAttributeAccessIssue=false
# pyright: reportReturnType=false

import dataclasses
import pathlib

import numpy as np
import pandas as pd

from scalelab.config.pretraining import Shape
from scalelab.lab.compare import law_fits, law_points, pooling, run_points, shape_rules
from scalelab.lab.compare.law_fits import Law
from scalelab.lab.compare.run_points import LOSS, RunPoint

Means = dict[Shape, float]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where results are read from.

    Attributes:
      path: a CSV with columns "shape" (or A, H and L) and the measured values, or a folder of runs.
      where: conditions on runs.
      allow: comparability fields, joined by commas, in which runs may differ.
    """

    path: pathlib.Path
    where: str = ""
    allow: str = ""


def losses_and_scores(
    source: Source, loss: str = LOSS, score: str | None = "score", notes: list[str] | None = None
) -> tuple[Means, Means]:
    """Reads the loss and score of each shape of a grid, as means over its rows or seeds.

    Args:
      source: of the results; in a CSV a loss or score may be empty.
      loss: column of a CSV; runs always give their validation loss.
      score: column of a CSV, or what `run_points.read` measures of runs; None: no score.
      notes: receives remarks on runs: those left out, and fields that were allowed to differ.

    Raises:
      ValueError: a column is missing, runs differ in more than their shape, or the shapes are not
        of one size.
      OSError: the CSV cannot be read.
    """
    notes = [] if notes is None else notes
    if source.path.is_dir():
        losses = _read_runs(source, LOSS, notes)
        scores = {} if score is None else _read_runs(source, score, notes)
    else:
        rows = _read_csv(source.path)
        shapes = _shapes(source.path, rows)
        losses = _means(shapes, _numbers(source.path, rows, loss))
        scores = {} if score is None else _means(shapes, _numbers(source.path, rows, score))
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
        points = _comparable(source, LOSS, [] if notes is None else notes)
        points = [p for p in points if clock in p.clocks]
        sizes, costs = [p.clocks["n_model"] for p in points], [p.clocks[clock] for p in points]
    else:
        rows = _read_csv(path)
        measured = _numbers(path, rows, clock)
        if "n_model" in rows:
            sizes = _numbers(path, rows, "n_model").loc[measured.index].tolist()
        else:
            sizes = [s.n_model for s in _shapes(path, rows).loc[measured.index]]
        costs = measured.tolist()
    law = law_fits.fit(law_points.gather(sizes, costs), "plain")
    if law.parameters["a"].value >= 0:
        raise ValueError(f"{path}: {clock} do not rise with N; were the runs trained alike?")
    return law


def size_at(cost: float, law: Law, limit: float = law_fits.MAX_EXTRAPOLATION) -> float:
    """Returns the size N of a cost.

    Raises:
      ValueError: N is farther outside the measured sizes than `limit` allows, or the points do not
        determine the law.
    """
    law.check_determined()
    size = float((cost / law.parameters["A"].value) ** (-1 / law.parameters["a"].value))
    try:
        law.predict([size], limit=limit)
    except ValueError as error:
        raise ValueError(str(error).replace("x =", "N =", 1)) from error
    return size


def _read_runs(source: Source, measure: str, notes: list[str]) -> Means:
    points = _comparable(source, measure, notes)
    shapes = pd.Series([shape_rules.parse(p.shape) for p in points], dtype=object)
    return _means(shapes, pd.Series([p.value for p in points], dtype=float))


def _comparable(source: Source, measure: str, notes: list[str]) -> list[RunPoint]:
    """Reads runs that are comparable but for their shapes."""
    points, remarks = run_points.read([source.path], measure, source.where)
    allow = pooling.parse_allowed(source.allow, points)
    place = f"{source.path}" + (f" where {source.where}" if source.where else "")
    remarks = remarks + pooling.check_one_pool(points, pooling.SHAPE, allow, place)
    notes += [remark for remark in remarks if remark not in notes]
    return points


def _check_sizes(path: pathlib.Path, losses: Means) -> None:
    """Refuses shapes of several sizes N."""
    sizes = sorted(shape.n_model for shape in losses)
    most = shape_rules.EQUAL
    if sizes and sizes[-1] > most * sizes[0]:
        raise ValueError(
            f"{path}: {len(sizes)} shapes have N from {sizes[0]:,} to {sizes[-1]:,}; a grid has one"
            f" size, to a factor {most:g}: choose, for runs as"
            f" --where=n_model>={sizes[0]},n_model<={int(most * sizes[0])}"
        )


def _read_csv(path: pathlib.Path) -> pd.DataFrame:
    """Reads the rows of a CSV as text."""
    try:
        rows = pd.read_csv(path, dtype=str)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no CSV: {error}") from error
    if rows.empty:
        raise ValueError(f"{path} has no rows below its header")
    return rows


def _numbers(path: pathlib.Path, rows: pd.DataFrame, name: str) -> pd.Series:
    """Returns the numbers of a column, without its empty fields."""
    if name not in rows:
        raise ValueError(f"{path} has no column {name!r}; it has {', '.join(rows)}")
    texts = rows[name].dropna()
    values = pd.to_numeric(texts, errors="coerce").astype(float)
    for text in texts[~np.isfinite(values)]:
        raise ValueError(f"{path}: {text!r} in column {name} is no number")
    return values


def _shapes(path: pathlib.Path, rows: pd.DataFrame) -> pd.Series:
    if "shape" not in rows and not {"A", "H", "L"} <= {*rows}:
        raise ValueError(f"{path} needs a column 'shape', or A, H and L; it has {', '.join(rows)}")
    texts = rows["shape"] if "shape" in rows else rows["A"] + "x" + rows["H"] + "x" + rows["L"]
    return pd.Series([shape_rules.parse(str(text)) for text in texts], rows.index, dtype=object)


def _means(shapes: pd.Series, values: pd.Series) -> Means:
    return {shape: float(values[shapes.loc[values.index] == shape].mean())
            for shape in dict.fromkeys(shapes.loc[values.index])}  # fmt: skip
