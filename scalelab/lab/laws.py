"""Scaling laws of finished runs: parameters with intervals, the largest size held out, a figure.

  python -m scalelab.lab.laws DIR... [--x=n_model] [--y=loss] [--predict=10M,20M]

Reads every finished run below the folders and fits y = E + A x^-a for each system. Along
--x=n_model only the shape may differ, along tokens only the budget, along flops and seconds the
shape or, if there is one shape, the budget. Runs that differ in other comparability fields get laws
of their own. Runs that differ only in their seed are one point. --y is "loss", the final validation
loss, or a score: a GLUE task, "glue_large" or "glue". The law of a score is fitted to its error,
1 - score.

Fits are robust, from many starts. Intervals are 95% by a parametric bootstrap: the law is fitted
again to its own values plus drawn noise of points and seeds. The law is fitted again without the
largest x and predicts it. Too few sizes, sizes too close, and predictions far outside the measured
range are refused. A law with A or a at the end of its allowed range is not determined: it has no
parameters and predicts nothing.
"""

# The stubs of pandas are narrower than what it accepts.
# pyright: reportArgumentType=false

import argparse
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from scalelab.config import cli
from scalelab.helpers import quantities
from scalelab.lab import tables
from scalelab.lab.compare import comparability, law_fits, run_points
from scalelab.lab.compare.law_fits import HeldOut, Interval, Law
from scalelab.lab.compare.run_points import AXES, LOSS
from scalelab.records import plots

HEADER = ("", "value", "95% interval", "observed", "inside")
SHOWN = 5  # reasons of a failure


class Fit(NamedTuple):
    """A law of some runs, the check on the largest size, and predictions or why there are none."""

    law: Law
    held_out: list[HeldOut]
    predictions: dict[float, Interval | str]
    no_check: str = ""


def group_runs(points: pd.DataFrame, clock: str) -> tuple[run_points.Pools, list[str]]:
    """Returns the points of each law by its name, and notes on what differs among them."""
    found: run_points.Pools = {}
    notes = []
    for _, own in points.groupby("system"):
        several = len(set(own["shape"])) > 1
        along_size = clock == "n_model" or (clock != "tokens" and several)
        groups, remarks = run_points.pool(
            own, run_points.SHAPE if along_size else run_points.BUDGET
        )
        found |= groups
        notes += remarks
    other = "tokens" if clock == "n_model" else "n_model"
    notes += [
        f"{name}: runs differ in {other} too, and the law mixes both" for name, own in found.items()
        if not comparability.are_equal([*own[other].dropna()] or [0])
    ]  # fmt: skip
    return found, notes


def fit_runs(points: pd.DataFrame, given: argparse.Namespace, wanted: Sequence[float]) -> Fit:
    """Fits the law of comparable runs, and predicts one run at each wanted x.

    The law of a score has 1 - score.

    Raises:
      ValueError: the points are too few.
    """
    y = points["value"] if given.y == LOSS else 1 - points["value"]
    law = law_fits.fit(law_fits.gather(points[given.x], y, points["key"]))
    predictions = dict[float, Interval | str]()
    for at in wanted:
        try:
            predictions[at] = law.predict(at, limit=given.limit)
        except ValueError as error:
            predictions[at] = str(error)
    try:
        return Fit(law, law_fits.validate(law), predictions)
    except ValueError as error:
        return Fit(law, [], predictions, f"no check on the largest size: {error}")


def describe(name: str, fit: Fit, given: argparse.Namespace) -> str:
    """Formats one law, its check and its predictions for a terminal."""
    law, points = fit.law, fit.law.points
    rows = [
        [key, *(_cells(found) if law.determined else ("-", "not determined")), "", ""]
        for key, found in law.parameters.items()
    ]
    rows += [
        [f"held out at {h.x:.4g}", *_cells(h.predicted), f"{h.observed:.4g}",
         "yes" if h.inside else "NO"] for h in fit.held_out
    ]  # fmt: skip
    refused = {x: found for x, found in fit.predictions.items() if isinstance(found, str)}
    rows += [
        [f"one run at {x:.4g}", *(("-", "not predicted") if isinstance(p, str) else _cells(p)),
         "", ""] for x, p in fit.predictions.items()
    ]  # fmt: skip
    notes = [fit.no_check, *refused.values()]
    if law.parameters["a"].high > law_fits.MAX_EXPONENT - law_fits.AT_BOUND:
        notes.append(f"a: its interval reaches {law_fits.MAX_EXPONENT:g}, the end of its range")
    if max(points.counts) == 1:
        notes.append("one run a point: the noise is estimated from the scatter around the law")
    return (
        f"{name}: {_name(given.y)} = {law_fits.FORM}, x = {given.x}; {len(points.x)} points,"
        f" {sum(points.counts)} runs; R^2 of logs {law.r_squared:.4f},"
        f" largest residual {np.abs(law.residuals).max():.2%}\n{tables.plain(HEADER, rows)}"
    ) + "".join(f"* {note}\n" for note in dict.fromkeys(notes) if note)


def _name(measure: str) -> str:
    return measure if measure == LOSS else f"1 - {measure}"


def _cells(found: Interval) -> list[str]:
    return [f"{found.value:.4g}", f"[{found.low:.4g}, {found.high:.4g}]"]


def draw(fits: Mapping[str, Fit], given: argparse.Namespace) -> None:
    """Draws runs and laws against x; black: the largest size, predicted from the others."""
    figure = plots.canvas(6.4, 4.4)
    axis = figure.subplots()
    for i, (name, fit) in enumerate(fits.items()):
        law, points = fit.law, fit.law.points
        marks = plots.style(i, linestyle="none", ms=4.5, label=name)
        axis.plot(np.repeat(points.x, points.counts), np.concatenate(points.runs), **marks)
        x = np.geomspace(points.x.min(), max([float(points.x.max()), *fit.predictions]), 60)
        axis.plot(x, law.at(x), **plots.style(i, marker=None, lw=1.2))
        if not law.determined:
            continue
        band = [law.predict(float(value), None, math.inf) for value in x]
        axis.fill_between(x, [b.low for b in band], [b.high for b in band], color=marks["color"],
                          alpha=0.15, lw=0)  # fmt: skip
        for at, _, (value, low, high) in fit.held_out:
            axis.errorbar([at * 1.04], [value], [[value - low], [high - value]], fmt="_",
                          capsize=3, color="black", ms=8, lw=1)  # fmt: skip
    axis.set_xscale("log")
    axis.set_title("black: the largest size, predicted from the others", fontsize=9)
    axis.set_xlabel(AXES[given.x])
    axis.set_ylabel("loss (nats)" if given.y == LOSS else f"{_name(given.y)} (dev)")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    plots.save(figure, given.figure)


def main(given: argparse.Namespace) -> None:
    """Reads runs, fits, prints and draws.

    Raises:
      ValueError: wrong arguments, runs without any law, or no prediction possible.
    """
    wanted = [quantities.parse(part) for part in given.predict.split(",") if part]
    points, notes = run_points.make(run_points.load(given.folders, given.where), given.y)
    groups, more = group_runs(points, given.x)
    notes += more
    fits, pieces, failed = dict[str, Fit](), [], []
    for name, own in groups.items():
        try:
            fits[name] = fit_runs(own, given, wanted)
            pieces.append(describe(name, fits[name], given))
        except ValueError as error:
            failed.append(f"{name}: {error}")
            pieces.append(f"{name}: no law fits its {len(own)} runs: {error}\n")
    if not fits:
        raise ValueError("no law can be fitted:\n  " + "\n  ".join([*failed, *notes][:SHOWN]))
    print("\n".join(pieces) + "".join(f"* {note}\n" for note in notes), end="")
    outcomes = [(name, p) for name, fit in fits.items() for p in fit.predictions.values()]
    if outcomes and all(isinstance(p, str) for _, p in outcomes):
        raise ValueError("; ".join(dict.fromkeys(f"{name}: {p}" for name, p in outcomes)))
    draw(fits, given)
    if given.csv:
        rows = [
            (name, _name(given.y), given.x, parameter, *found)
            for name, fit in fits.items() if fit.law.determined
            for parameter, found in fit.law.parameters.items()
        ]  # fmt: skip
        columns = ["system", "y", "x", "parameter", "value", "low", "high"]
        pd.DataFrame(rows, columns=columns).to_csv(given.csv, index=False)
    print(f"wrote {given.figure}")


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.lab.laws", __doc__)
    add = made.add_argument
    add("folders", metavar="DIR", nargs="+", type=pathlib.Path)
    add("--x", choices=tuple(AXES), default="n_model", help="default: n_model")
    add("--y", default=LOSS, help="default: loss")
    add("--predict", default="", metavar="X,X", help="such as 10M,20M")
    add("--limit", type=float, default=law_fits.MAX_EXTRAPOLATION, metavar="FACTOR",
        help="how far outside the measured x; default: 10")  # fmt: skip
    add("--where", default="", help="conditions on runs, as scalelab.lab.runs takes them")
    add("--figure", type=pathlib.Path, default=pathlib.Path("laws.png"), metavar="FILE",
        help="default: laws.png; .svg and .pdf too")  # fmt: skip
    add("--csv", type=pathlib.Path, metavar="FILE", help="write the parameters there, all digits")
    return made


if __name__ == "__main__":
    cli.run(main, parser())
