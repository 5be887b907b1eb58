"""Scaling laws of finished runs: parameters with intervals, the largest size held out, a figure.

  python -m scalelab.lab.laws DIR... [--x=n_model] [--y=loss] [--form=power] [--predict=10M,20M]

Reads every finished run below the folders and fits one law for each system. Along --x=n_model only
the shape may differ, along tokens only the budget, along flops and seconds the shape or, if there
is one shape, the budget; runs that differ in more of what the comparability contract holds equal
have laws of their own, unless --allow=FIELD,FIELD pools them. Runs that differ in their seed alone
are one point. --y is "loss", the validation loss at the end, or a score: a GLUE task, "glue_large"
or "glue". --form says what is fitted:

  power   E + A x^-a             a loss that falls to a floor (default for a loss)
  plain   A x^-a                 without a floor; fewer points will do
  rising  C - A x^-a             a score that rises to a ceiling (default for a score)
  joint   E + A N^-a + B D^-b    a loss against size and tokens at once; without --x

Fits are robust (Huber on logs, from many starts), intervals are 95% by a bootstrap over points
and seeds. Held out: the law is fitted again without the largest x, and predicts it. Too few sizes,
sizes too close, and predictions far outside of what was measured are refused, as are predictions
of a law with a parameter at the end of what is allowed, which has no value and no interval.
"""

import argparse
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from scalelab.config import cli
from scalelab.helpers import quantities
from scalelab.lab import palette
from scalelab.lab.all_runs import kinds, run_points
from scalelab.lab.all_runs.run_points import CLOCKS, LOSS, RunPoint
from scalelab.lab.fits import fitting, law_points, law_text
from scalelab.lab.fits.fitting import Interval, Law
from scalelab.lab.fits.forms import FORMS
from scalelab.lab.fits.law_text import Check

PROGRAM = "python -m scalelab.lab.laws"
JOINT = ("n_model", "tokens")


def free(points: Sequence[RunPoint], clocks: Sequence[str]) -> frozenset[str]:
    """The fields in which the runs of one law may differ; `clocks` are its inputs."""
    if len(clocks) > 1:
        return kinds.SHAPE | kinds.BUDGET
    if clocks[0] == "tokens":
        return kinds.BUDGET
    several = len({p.shape for p in points}) > 1
    return kinds.SHAPE if clocks[0] == "n_model" or several else kinds.BUDGET


def fit_kind(points: Sequence[RunPoint], clocks: Sequence[str], form: str) -> Law:
    """Fits the law of the runs of one kind.

    Raises:
      ValueError: a run does not tell a clock, or the points are too few.
    """
    for clock in clocks:
        if not all(clock in p.clocks for p in points):
            raise ValueError(
                f"{clock} is not known of every run: only --x=n_model is, where fine-tunings do not"
                " lie in tasks/ below their pre-training"
            )
    x = [[p.clocks[clock] for clock in clocks] for p in points]
    settings = [p.setting for p in points]
    return fitting.fit(law_points.gather(x, [p.value for p in points], settings), form)


def held_out(law: Law) -> Check:
    """The check on the largest size, or why there is none."""
    if law.at_limits:
        return [], "no check on the largest size: the fit to all of them is not determined"
    try:
        return fitting.validate(law), None
    except ValueError as error:
        return [], f"no check on the largest size: {error}"


# --- Figure ---------------------------------------------------------------------------------------


def draw(
    laws: Mapping[str, Law],
    checks: Mapping[str, Check],
    clocks: Sequence[str],
    measure: str,
    farthest: float,
    path: pathlib.Path,
) -> None:
    """Draws runs and laws: against x, or of a joint law measured against predicted.

    Args:
      laws: of each kind of runs, by its name.
      checks: likewise.
      clocks: the inputs.
      measure: what was measured.
      farthest: the largest x that is asked for; 0: none.
      path: of the picture.
    """
    figure = palette.canvas(6.4, 4.4)
    axis = figure.subplots()
    for i, (system, law) in enumerate(laws.items()):
        look = palette.style(i)
        points, counts = law.points, [len(run) for run in law.points.runs]
        y = np.concatenate(points.runs)
        marks = look.plot(linestyle="none", ms=4.5, label=system)
        if len(clocks) > 1:
            axis.plot(np.repeat(law.at(points.x), counts), y, **marks)
            axis.axline((float(y.min()),) * 2, slope=1, color="black", lw=0.8, zorder=0)
            continue
        axis.plot(np.repeat(points.x[:, 0], counts), y, **marks)
        last = max(float(points.x.max()), farthest)
        x = np.geomspace(points.x.min(), last, 60)
        axis.plot(x, law.at(x[:, None]), **look.plot(marker=None, lw=1.2))
        if law.at_limits:
            continue
        band = [law.predict([value], None, math.inf) for value in x]
        axis.fill_between(x, [b.low for b in band], [b.high for b in band], color=look.color,
                          alpha=0.15, lw=0)  # fmt: skip
        for held in checks[system][0]:
            reach = [[held.predicted.value - held.predicted.low],
                     [held.predicted.high - held.predicted.value]]  # fmt: skip
            axis.errorbar([held.x[0] * 1.04], [held.predicted.value], reach, fmt="_", capsize=3,
                          color="black", ms=8, lw=1)  # fmt: skip
    if len(clocks) == 1:
        axis.set_xscale("log")
    axis.set_xlabel("the law" if len(clocks) > 1 else CLOCKS[clocks[0]])
    axis.set_ylabel("loss (nats)" if measure == LOSS else f"{measure} (dev)")
    axis.set_title("black: the largest size, predicted from the others" * (len(clocks) == 1),
                   fontsize=9)  # fmt: skip
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    palette.save(figure, path, dpi=palette.RESOLUTION)


# --- Program --------------------------------------------------------------------------------------


def run(given: argparse.Namespace) -> None:
    """Reads runs, fits, prints and draws.

    Raises:
      ValueError: arguments, runs or points do not do, or nothing of what was asked can be told.
    """
    form = given.form or ("power" if given.y == LOSS else "rising")
    if form == "joint" and (given.x or given.predict):
        raise ValueError("--form=joint has its own inputs, N and tokens: leave out --x, --predict")
    clocks = JOINT if form == "joint" else (given.x or "n_model",)
    wanted = [quantities.parse(part) for part in given.predict.split(",") if part]
    points, notes = run_points.read(given.folders, given.y, given.where)
    groups, more = sort(points, clocks, given.allow)
    if given.y == LOSS and len({p.objective for p in points}) > 1:
        more.append("losses of different objectives do not compare")
    laws, checks, pieces, failed, refused = {}, {}, [], [], []
    for name, own in groups.items():
        try:
            law = laws[name] = fit_kind(own, clocks, form)
        except ValueError as error:
            failed.append(f"{name}: {error}")
            pieces.append(f"{name}: no law of its {len(own)} runs: {error}\n")
            continue
        checks[name] = held_out(law)
        predictions = {x: predict(law, x, given.limit) for x in wanted}
        refused += [f"{name}: {p}" for p in predictions.values() if isinstance(p, str)]
        pieces.append(law_text.text(name, law, checks[name], clocks, given.y, predictions))
    if not laws:
        raise ValueError("; ".join([*failed, *more]))
    print("\n".join(pieces), end="")
    print("".join(f"* {note}\n" for note in notes + more), end="")
    if wanted and len(refused) == len(wanted) * len(laws):
        raise ValueError("; ".join(dict.fromkeys(refused)))
    draw(laws, checks, clocks, given.y, max(wanted, default=0.0), given.figure)
    if given.csv:
        given.csv.write_text(law_text.csv(laws, clocks, given.y), encoding="utf-8")
    print(f"wrote {given.figure}")


def sort(
    points: Sequence[RunPoint], clocks: Sequence[str], allow: str
) -> tuple[kinds.Kinds, list[str]]:
    """The points of each law by its name, and what has to be said of them.

    Raises:
      ValueError: a field to allow is none.
    """
    allowed = kinds.allowed(allow, points)
    found: kinds.Kinds = {}
    notes, let = [], set[str]()
    for of in run_points.by_system(points).values():
        own, said = kinds.of_system(of, free(of, clocks), allowed)
        found |= own
        let |= free(of, clocks)
        notes += said
    other = "tokens" if clocks == ("n_model",) else "n_model"
    for name, own in found.items():
        if other not in clocks and run_points.differing(own, other):
            notes.append(f"{name}: runs differ in {other} too, and the law mixes both")
        notes += [
            f"{name}: seeds of one net differ in {clock}, and are a point at their mean"
            for clock in clocks
            if any(run_points.differing(seeds, clock) for seeds in run_points.settings(own))
        ]
    return found, notes + kinds.undeclared(found, let, allowed)


def predict(law: Law, x: float, limit: float) -> Interval | str:
    """What one run should give at x, or why that cannot be told."""
    try:
        law.check_determined()
        return law.predict([x], limit=limit)
    except ValueError as error:
        return str(error)


def parser() -> cli.Parser:
    """The command line."""
    made = cli.Parser(
        prog=PROGRAM,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("folders", metavar="DIR", nargs="+", type=pathlib.Path)
    made.add_argument("--x", choices=tuple(CLOCKS), help="default: n_model")
    made.add_argument("--y", default=LOSS, help="default: loss")
    made.add_argument("--form", choices=tuple(FORMS))
    made.add_argument("--predict", default="", metavar="X,X", help="such as 10M,20M")
    made.add_argument("--limit", type=float, default=fitting.MAX_EXTRAPOLATION, metavar="FACTOR",
                      help="how far outside of the measured x; default: 10")  # fmt: skip
    made.add_argument("--where", default="", help="conditions, as scalelab.lab.runs takes them")
    made.add_argument("--allow", default="", metavar="FIELD,FIELD",
                      help="pool runs that differ in these, against the contract")  # fmt: skip
    made.add_argument("--figure", type=pathlib.Path, default=pathlib.Path("laws.png"),
                      metavar="FILE", help="default: laws.png; .svg and .pdf too")  # fmt: skip
    made.add_argument("--csv", type=pathlib.Path, metavar="FILE", help="parameters, all digits")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """The program; a mistake in its arguments or folders is one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("start the same command again"):
        run(given)


if __name__ == "__main__":
    main()
