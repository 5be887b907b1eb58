"""Scaling laws of finished runs: parameters with intervals, the largest size held out, a figure.

  python -m scalelab.lab.laws DIR... [--x=n_model] [--y=loss] [--form=power] [--predict=10M,20M]

Reads every finished run below the folders and fits one law for each system. Runs of the same x
count as seeds of one point. --x is n_model, tokens, flops or seconds. --y is "loss", the validation
loss at the end, or a score: a GLUE task, "glue_large" or "glue". --form says what is fitted:

  power   E + A x^-a             a loss that falls to a floor (default for a loss)
  plain   A x^-a                 without a floor; fewer points will do
  rising  C - A x^-a             a score that rises to a ceiling (default for a score)
  joint   E + A N^-a + B D^-b    a loss against size and tokens at once; without --x

Fits are robust (Huber on logs, from many starts), intervals are 95% by a bootstrap over points and
seeds. Held out: the law is fitted again without the largest x, and predicts it. Too few sizes, sizes
too close, and predictions far outside of what was measured are refused.
"""

import argparse
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from scalelab import cli
from scalelab.lab import fitting, law_points, palette, quantities, run_points, tables
from scalelab.lab.fitting import HeldOut, Interval, Law
from scalelab.lab.forms import FORMS
from scalelab.lab.run_points import CLOCKS, LOSS, RunPoint

PROGRAM = "python -m scalelab.lab.laws"
JOINT = ("n_model", "tokens")
INTERVAL = "95% interval"


def fit_system(points: Sequence[RunPoint], clocks: Sequence[str], form: str) -> Law:
    """Fits the law of one system.

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
    return fitting.fit(law_points.gather(x, [p.value for p in points]), form)


def held_out(law: Law) -> tuple[list[HeldOut], str | None]:
    """The check on the largest size, or why there is none."""
    try:
        return fitting.validate(law), None
    except ValueError as error:
        return [], f"no check on the largest size: {error}"


# --- Words ----------------------------------------------------------------------------------------


def text(
    system: str,
    law: Law,
    clocks: Sequence[str],
    measure: str,
    predictions: Mapping[float, Interval],
) -> str:
    """All that is known of one law, for a terminal."""
    num_runs = sum(len(run) for run in law.points.runs)
    scale = "logs" if law.form.logarithmic else "scores"
    lines = [
        f"{system}: {measure} = {law.form.text}, x = {' and '.join(clocks)};"
        f" {len(law.points.x)} points, {num_runs} runs; R^2 of {scale} {law.r_squared:.4f},"
        f" largest residual {np.abs(law.residuals).max():.2%}\n"
    ]
    rows = [[name, f"{p.value:.4g}", ends(p)] for name, p in law.parameters.items()]
    lines.append(tables.plain(("parameter", "value", INTERVAL), rows))
    held, reason = held_out(law)
    if held:
        rows = [
            [at(h.x), f"{h.observed:.4g}", f"{h.predicted.value:.4g}", ends(h.predicted),
             f"{h.relative_error:+.1%}", "yes" if h.inside else "NO"]
            for h in held
        ]  # fmt: skip
        header = ("held out at", "observed", "predicted", INTERVAL, "error", "inside")
        lines.append("\n" + tables.plain(header, rows))
    if predictions:
        rows = [[at((x,)), f"{p.value:.4g}", ends(p)] for x, p in predictions.items()]
        lines.append("\n" + tables.plain(("one run at", "predicted", INTERVAL), rows))
    lines += [f"* {note}\n" for note in remarks(law) + ([reason] if reason else [])]
    return "".join(lines)


def remarks(law: Law) -> list[str]:
    """What has to be said of a law."""
    found = []
    if law.at_limits:
        found.append(
            f"{', '.join(law.at_limits)}: at the end of what is allowed, so the points do not tell"
            " it; try another form, or wider sizes"
        )
    if all(len(run) == 1 for run in law.points.runs):
        found.append("one run a point: noise is known from the scatter around the law alone")
    return found


def ends(interval: Interval) -> str:
    """The ends of an interval."""
    return f"[{interval.low:.4g}, {interval.high:.4g}]"


def at(x: Sequence[float]) -> str:
    """Inputs, in short."""
    return ", ".join(f"{value:.4g}" for value in x)


def csv(laws: Mapping[str, Law], clocks: Sequence[str], measure: str) -> str:
    """The parameters for programs, with all digits."""
    rows = [
        [system, measure, " ".join(clocks), law.form.name, name, p.value, p.low, p.high]
        for system, law in laws.items()
        for name, p in law.parameters.items()
    ]
    header = ("system", "y", "x", "form", "parameter", "value", "low", "high")
    return tables.comma_separated(header, rows)


# --- Figure ---------------------------------------------------------------------------------------


def draw(
    laws: Mapping[str, Law],
    clocks: Sequence[str],
    measure: str,
    farthest: float,
    path: pathlib.Path,
) -> None:
    """Draws runs and laws: against x, or of a joint law measured against predicted.

    Args:
      laws: of each system.
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
        band = [law.predict([value], None, math.inf) for value in x]
        axis.fill_between(x, [b.low for b in band], [b.high for b in band], color=look.color,
                          alpha=0.15, lw=0)  # fmt: skip
        for held in held_out(law)[0]:
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
      ValueError: arguments, runs or points do not do.
    """
    form = given.form or ("power" if given.y == LOSS else "rising")
    if form == "joint" and (given.x or given.predict):
        raise ValueError("--form=joint has its own inputs, N and tokens: leave out --x, --predict")
    clocks = JOINT if form == "joint" else (given.x or "n_model",)
    wanted = [quantities.parse(part) for part in given.predict.split(",") if part]
    points, notes = run_points.read(given.folders, given.y, given.where)
    laws, pieces = {}, []
    for system, own in run_points.by_system(points).items():
        try:
            law = laws[system] = fit_system(own, clocks, form)
            predictions = {x: law.predict([x], limit=given.limit) for x in wanted}
        except ValueError as error:
            raise ValueError(f"{system}: {error}") from None
        pieces.append(text(system, law, clocks, given.y, predictions))
        other = "tokens" if clocks == ("n_model",) else "n_model"
        if other not in clocks and run_points.differing(own, other):
            notes.append(f"{system}: runs differ in {other} too, and the law mixes both")
    draw(laws, clocks, given.y, max(wanted, default=0.0), given.figure)
    if given.csv:
        given.csv.write_text(csv(laws, clocks, given.y), encoding="utf-8")
    print("\n".join(pieces), end="")
    print("".join(f"* {note}\n" for note in notes), end="")
    print(f"wrote {given.figure}")


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
                      help="how far outside of the measured x --predict may go; default: 10")  # fmt: skip
    made.add_argument("--where", default="", help="conditions, as scalelab.lab.runs takes them")
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
