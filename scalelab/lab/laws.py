"""Scaling laws of finished runs: parameters with intervals, the largest size held out, a figure.

  python -m scalelab.lab.laws DIR... [--x=n_model] [--y=loss] [--form=power] [--predict=10M,20M]

Reads every finished run below the folders and fits one law for each system. Along --x=n_model only
the shape may differ, along tokens only the budget, along flops and seconds the shape or, if there
is one shape, the budget. Runs that differ in other comparability fields get laws of their own,
unless --allow=FIELD,FIELD pools them. Runs that differ only in their seed are one point. --y is
"loss", the final validation loss, or a score: a GLUE task, "glue_large" or "glue". Forms:

  power   E + A x^-a             a loss that falls to a floor (default for a loss)
  plain   A x^-a                 without a floor; needs fewer points
  rising  C - A x^-a             a score that rises to a ceiling (default for a score)

Fits are robust, from many starts. Intervals are 95% by a parametric bootstrap: the law is fitted
again to its own values plus drawn noise of points and seeds.
The law is fitted again without the largest x and predicts it. Too few sizes, sizes too close, and
predictions far outside the measured range are refused. A parameter at the end of its allowed range
has no value and no interval, and its law predicts nothing.
"""

# The stubs of pandas are narrower than what it accepts.
# pyright: reportArgumentType=false

import argparse
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from scalelab.config import cli
from scalelab.helpers import quantities
from scalelab.lab import tables
from scalelab.lab.compare import law_fits, law_forms, run_points
from scalelab.lab.compare.law_fits import HeldOut, Interval, Law
from scalelab.lab.compare.law_forms import FORMS
from scalelab.lab.compare.run_points import AXES, LOSS, RunPoint
from scalelab.runs import plots

INTERVAL = "95% interval"
SHOWN = 5  # reasons of a failure


class Fit(NamedTuple):
    """A law of some runs, the check on the largest size, and predictions or why there are none."""

    law: Law
    held_out: list[HeldOut]
    no_check: str
    predictions: dict[float, Interval | str]


def group_runs(
    points: Sequence[RunPoint], clock: str, allow: str
) -> tuple[run_points.Pools, list[str]]:
    """Returns the points of each law by its name, and notes on what differs among them.

    Raises:
      ValueError: no run has a field of `allow`.
    """
    allowed = run_points.parse_allowed(allow, points)
    found: run_points.Pools = {}
    notes, free = [], set[str]()
    for own in run_points.by_system(points).values():
        several = len({p.shape for p in own}) > 1
        along_size = clock == "n_model" or (clock != "tokens" and several)
        may_differ = run_points.SHAPE if along_size else run_points.BUDGET
        groups, remarks = run_points.pool(own, may_differ, allowed)
        found |= groups
        free |= may_differ
        notes += remarks
    other = "tokens" if clock == "n_model" else "n_model"
    notes += [
        f"{name}: runs differ in {other} too, and the law mixes both" for name, own in found.items()
        if run_points.clock_differs(own, other)
    ]  # fmt: skip
    return found, notes + run_points.describe_undeclared(found, free, allowed)


def fit_runs(
    points: Sequence[RunPoint], clock: str, form: str, wanted: Sequence[float], limit: float
) -> Fit:
    """Fits the law of comparable runs, and predicts one run at each wanted x within `limit`.

    Raises:
      ValueError: the points are too few.
    """
    x = [p.clocks[clock] for p in points]
    settings = [p.setting for p in points]
    law = law_fits.fit(law_forms.gather(x, [p.value for p in points], settings), form)
    held_out, no_check, predictions = [], "", dict[float, Interval | str]()
    try:
        law.check_determined()
        held_out = law_fits.validate(law)
    except ValueError as error:
        no_check = f"no check on the largest size: {error}"
    for at in wanted:
        try:
            law.check_determined()
            predictions[at] = law.predict(at, limit=limit)
        except ValueError as error:
            predictions[at] = str(error)
    return Fit(law, held_out, no_check, predictions)


def describe(name: str, fit: Fit, clock: str, measure: str) -> str:
    """Formats one law, its check and its predictions for a terminal."""
    law, held_out, no_check, predictions = fit
    num_runs = sum(len(run) for run in law.points.runs)
    scale = "logs" if law.form.logarithmic else "scores"
    text = (
        f"{name}: {measure} = {law.form.text}, x = {clock};"
        f" {len(law.points.x)} points, {num_runs} runs; R^2 of {scale} {law.r_squared:.4f},"
        f" largest residual {np.abs(law.residuals).max():.2%}\n"
    )
    rows = [[parameter, *_cells(found)] for parameter, found in law.parameters.items()]
    text += tables.plain(("parameter", "value", INTERVAL), rows)
    if held_out:
        rows = [
            [f"{h.x:.4g}", f"{h.observed:.4g}", *_cells(h.predicted),
             f"{h.relative_error:+.1%}", "yes" if h.inside else "NO"]
            for h in held_out
        ]  # fmt: skip
        header = ("held out at", "observed", "predicted", INTERVAL, "error", "inside")
        text += "\n" + tables.plain(header, rows)
    if predictions:
        rows = [[f"{x:.4g}", *(["-", "not predicted"] if isinstance(p, str) else _cells(p))]
                for x, p in predictions.items()]  # fmt: skip
        text += "\n" + tables.plain(("one run at", "predicted", INTERVAL), rows)
    notes = [no_check, *(p for p in predictions.values() if isinstance(p, str))]
    if law.at_limits:
        notes.append(f"not determined by the points: {', '.join(law.undetermined)}")
    elif any(math.isnan(p.low) or math.isnan(p.high) for p in law.parameters.values()):
        notes.append("-: the interval reaches the end of the allowed range")
    if all(len(run) == 1 for run in law.points.runs):
        notes.append("one run a point: the noise is estimated from the scatter around the law")
    return text + "".join(f"* {note}\n" for note in dict.fromkeys(notes) if note)


def _cells(found: Interval) -> list[str]:
    """Returns a value and its interval; "-" if the points do not determine it."""
    value, low, high = ("-" if math.isnan(x) else f"{x:.4g}"
                        for x in (found.value, found.low, found.high))  # fmt: skip
    return [value, "not determined" if low == high == "-" else f"[{low}, {high}]"]


def draw(fits: Mapping[str, Fit], clock: str, measure: str, path: pathlib.Path) -> None:
    """Draws runs and laws against x."""
    figure = plots.canvas(6.4, 4.4)
    axis = figure.subplots()
    for i, (name, (law, held_out, _, predictions)) in enumerate(fits.items()):
        points, counts = law.points, [len(run) for run in law.points.runs]
        y = np.concatenate(points.runs)
        marks = plots.style(i, linestyle="none", ms=4.5, label=name)
        axis.plot(np.repeat(points.x, counts), y, **marks)
        x = np.geomspace(points.x.min(), max([float(points.x.max()), *predictions]), 60)
        axis.plot(x, law.at(x), **plots.style(i, marker=None, lw=1.2))
        if law.at_limits:
            continue
        band = [law.predict(float(value), None, math.inf) for value in x]
        axis.fill_between(x, [b.low for b in band], [b.high for b in band], color=marks["color"],
                          alpha=0.15, lw=0)  # fmt: skip
        for point in held_out:
            predicted = point.predicted
            reach = [[predicted.value - predicted.low], [predicted.high - predicted.value]]
            axis.errorbar([point.x * 1.04], [predicted.value], reach, fmt="_", capsize=3,
                          color="black", ms=8, lw=1)  # fmt: skip
    axis.set_xscale("log")
    axis.set_title("black: the largest size, predicted from the others", fontsize=9)
    axis.set_xlabel(AXES[clock])
    axis.set_ylabel("loss (nats)" if measure == LOSS else f"{measure} (dev)")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    plots.save(figure, path)


def run(given: argparse.Namespace) -> None:
    """Reads runs, fits, prints and draws.

    Raises:
      ValueError: wrong arguments, runs without any law, or no prediction possible.
    """
    form, clock = given.form or ("power" if given.y == LOSS else "rising"), given.x
    wanted = [quantities.parse(part) for part in given.predict.split(",") if part]
    points, notes = run_points.read(given.folders, given.y, given.where)
    groups, more = group_runs(points, clock, given.allow)
    notes += more
    fits, pieces, failed = {}, [], []
    for name, own in groups.items():
        try:
            fits[name] = fit_runs(own, clock, form, wanted, given.limit)
            pieces.append(describe(name, fits[name], clock, given.y))
        except ValueError as error:
            failed.append(f"{name}: {error}")
            pieces.append(f"{name}: no law fits its {len(own)} runs: {error}\n")
    if not fits:
        lines = [*failed, *notes]
        more = f"\n  and {len(lines) - SHOWN} more" * (len(lines) > SHOWN)
        raise ValueError("no law can be fitted:\n  " + "\n  ".join(lines[:SHOWN]) + more)
    print("\n".join(pieces) + "".join(f"* {note}\n" for note in notes), end="")
    outcomes = [f"{name}: {p}" if isinstance(p, str) else None
                for name, fit in fits.items() for p in fit.predictions.values()]  # fmt: skip
    if outcomes and all(outcomes):
        raise ValueError("; ".join(dict.fromkeys(filter(None, outcomes))))
    draw(fits, clock, given.y, given.figure)
    if given.csv:
        rows = [
            (name, given.y, clock, form, parameter, *dataclasses.astuple(found))
            for name, fit in fits.items() for parameter, found in fit.law.parameters.items()
        ]  # fmt: skip
        columns = ["system", "y", "x", "form", "parameter", "value", "low", "high"]
        pd.DataFrame(rows, columns=columns).to_csv(given.csv, index=False)
    print(f"wrote {given.figure}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; a mistake in arguments or folders is one message and exit code 2."""
    parser = cli.Parser("python -m scalelab.lab.laws", __doc__)
    add = parser.add_argument
    add("folders", metavar="DIR", nargs="+", type=pathlib.Path)
    add("--x", choices=tuple(AXES), default="n_model", help="default: n_model")
    add("--y", default=LOSS, help="default: loss")
    add("--form", choices=tuple(FORMS))
    add("--predict", default="", metavar="X,X", help="such as 10M,20M")
    add("--limit", type=float, default=law_fits.MAX_EXTRAPOLATION, metavar="FACTOR",
        help="how far outside the measured x; default: 10")  # fmt: skip
    add("--where", default="", help="conditions on runs, as scalelab.lab.runs takes them")
    add("--allow", default="", metavar="FIELD,FIELD", help="fields that pooled runs may differ in")
    add("--figure", type=pathlib.Path, default=pathlib.Path("laws.png"), metavar="FILE",
        help="default: laws.png; .svg and .pdf too")  # fmt: skip
    add("--csv", type=pathlib.Path, metavar="FILE", help="write the parameters there, all digits")
    given = parser.parse_args(arguments)
    with cli.one_message("start the same command again"):
        run(given)


if __name__ == "__main__":
    main()
