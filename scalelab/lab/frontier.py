"""The best result at each cost: scores or losses against each clock, over all shapes.

  python -m scalelab.lab.frontier DIR... [--y=loss] [--where=...] [--allow=...] [--figure=FILE.png]

Draws every net trained below the folders, as the mean over its seeds, against size, tokens, FLOPs
and seconds, with the envelope of each system: the best result at no higher cost. --y is "loss", a
GLUE task, "glue_large" or "glue". Losses of different objectives do not compare, so each objective
has a row of panels. Against N, only shapes may differ on one envelope; against tokens, FLOPs and
seconds, budgets too. Runs that differ in other comparability fields get envelopes of their own,
unless --allow=FIELD,FIELD pools them. The nets on an envelope are filled, named and printed. A
clock on which all nets agree has no panel. Writes FILE.png and FILE.svg.
"""

import argparse
import math
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from scalelab.config import cli
from scalelab.lab import tables
from scalelab.lab.compare import run_points
from scalelab.lab.compare.run_points import CLOCKS, LOSS, RunPoint
from scalelab.lab.show import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROGRAM = "python -m scalelab.lab.frontier"
SHORT_NAME = 12  # characters of a legend entry of which six fit side by side


def envelope(cost: Sequence[float], value: Sequence[float], *, rising: bool) -> list[int]:
    """Returns the points that no point of equal or lower cost beats.

    Args:
      cost: of each point.
      value: of each point; NaN is never on the envelope.
      rising: whether higher is better, as for scores.

    Returns:
      Their indices, the cheapest first; the first of equal points.
    """
    sign = 1.0 if rising else -1.0
    order = sorted(range(len(cost)), key=lambda i: (cost[i], -sign * value[i]))
    best, found = -math.inf, []
    for i in order:
        if sign * value[i] > best:
            best = sign * value[i]
            found.append(i)
    return found


def group_runs(
    points: Sequence[RunPoint], allow: Collection[str] = ()
) -> tuple[dict[str, run_points.Pools], list[str]]:
    """Returns the nets of each envelope by name for each clock, and notes on what differs.

    Args:
      points: finished runs, of which means over seeds are taken.
      allow: fields in which those of one envelope may differ beyond what an axis shows.
    """
    nets = run_points.means(points)
    found: dict[str, run_points.Pools] = {}
    notes: dict[str, list[str]] = {}
    for clock, title in CLOCKS.items():
        free = run_points.SHAPE if clock == "n_model" else run_points.SHAPE | run_points.BUDGET
        found[clock] = {}
        for own in run_points.by_system(nets).values():
            parts, remarks = run_points.pool(own, free, allow)
            found[clock] |= parts
            mixed = [
                name
                for name, group in parts.items()
                if run_points.BUDGET & {*run_points.differing(group)}
            ]
            remarks += [f"{name}: nets of different budgets on one envelope" for name in mixed]
            for note in remarks:
                notes.setdefault(note, []).append(title)
        for note in run_points.describe_undeclared(found[clock], free, allow):
            notes.setdefault(note, []).append(title)
    return found, [f"against {', '.join(titles)}: {note}" for note, titles in notes.items()]


def draw(
    points: Sequence[RunPoint], measure: str, path: pathlib.Path, allow: Collection[str] = ()
) -> list[pathlib.Path]:
    """Draws the measurements against each clock, with the envelopes.

    Args:
      points: finished runs, of which means over seeds are drawn.
      measure: name of y.
      path: of the picture; its ending is replaced by .png and .svg.
      allow: as in `group_runs`.

    Returns:
      Both paths.
    """
    found, _ = group_runs(points, allow)
    points = run_points.means(points)
    known = [name for name in CLOCKS if any(name in p.clocks for p in points)]
    clocks = [name for name in known if run_points.clock_differs(points, name)] or known[:1]
    names = list(dict.fromkeys(name for clock in clocks for name in found[clock]))
    rows = _rows(points, measure)
    figure = plots.canvas(3.6 * len(clocks) + 0.6, 3.1 * len(rows) + 0.8)
    panels = figure.subplots(len(rows), len(clocks), sharey="row", squeeze=False)
    for row, (title, own) in zip(panels, rows.items(), strict=True):
        for axis, clock in zip(row, clocks, strict=True):
            for name, nets in found[clock].items():
                style = plots.style(names.index(name))
                _draw_envelope(axis, [p for p in nets if p in own], clock, style, name, measure)
            plots.use_log_sizes(axis)
            axis.set_xlabel(CLOCKS[clock])
            axis.margins(0.24, 0.1)
            axis.grid(alpha=0.3)
        row[0].set_ylabel(title)
    plots.add_legend(figure, 6 if max(map(len, names)) < SHORT_NAME else 2)
    figure.suptitle("means over seeds; the line: the best of any shape at no higher cost")
    made = [path.with_suffix(ending) for ending in (".png", ".svg")]
    for place in made:
        plots.save(figure, place)
    return made


def _rows(points: Sequence[RunPoint], measure: str) -> dict[str, list[RunPoint]]:
    """The points of each row of panels, by the label of its axis."""
    if measure != LOSS:
        return {f"{measure} (dev)": list(points)}
    objectives = dict.fromkeys(p.objective for p in points)
    return {
        f"{name} loss (nats)".strip(): [p for p in points if p.objective == name]
        for name in objectives
    }


def _draw_envelope(
    axis: "Axes",
    points: Sequence[RunPoint],
    clock: str,
    style: plots.Style,
    name: str,
    measure: str,
) -> None:
    """Draws a marker for each net, and a line along the envelope."""
    known = [p for p in points if clock in p.clocks]
    cost, values = [p.clocks[clock] for p in known], [p.value for p in known]
    best = envelope(cost, values, rising=measure != LOSS)
    if not best:
        return
    axis.plot(cost, values, **style.plot(linestyle="none", ms=5, markerfacecolor="white"))
    x, y = [cost[i] for i in best], [values[i] for i in best]
    look = style.plot(lw=1.2, ms=6, drawstyle="steps-post", markevery=list(range(len(best))))
    axis.plot([*x, max(cost)], [*y, y[-1]], label=name, **look)
    beside = (4, 4) if measure == LOSS else (4, -10)  # the side where the line does not go
    for i in best:
        axis.annotate(
            known[i].shape, (cost[i], values[i]), xytext=beside, textcoords="offset points",
            fontsize=7, color=style.color,
        )  # fmt: skip


def describe(found: Mapping[str, run_points.Pools], measure: str) -> str:
    """Formats the nets on each envelope for each clock as a terminal table."""
    rows = []
    for clock, title in CLOCKS.items():
        for name, own in found[clock].items():
            known = [p for p in own if clock in p.clocks]
            cost, values = [p.clocks[clock] for p in known], [p.value for p in known]
            for i in envelope(cost, values, rising=measure != LOSS):
                numbers = [f"{cost[i]:.4g}", f"{values[i]:.4f}", str(known[i].num_seeds)]
                rows.append([title, name, known[i].shape, *numbers])
    return tables.plain(("clock", "runs", "shape", "cost", measure, "seeds"), rows, 3)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; a mistake in arguments or folders is one message and exit code 2."""
    parser = cli.Parser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("folders", metavar="DIR", nargs="+", type=pathlib.Path)
    add("--y", default=LOSS, help="loss or a score; default: loss")
    add("--where", default="", help="conditions on runs, as scalelab.lab.runs takes them")
    add("--allow", default="", metavar="FIELD,FIELD", help="fields that pooled runs may differ in")
    add("--figure", type=pathlib.Path, default=pathlib.Path("frontier.png"), metavar="FILE",
        help="default: frontier.png")  # fmt: skip
    given = parser.parse_args(arguments)
    with cli.one_message("start the same command again"):
        points, notes = run_points.read(given.folders, given.y, given.where)
        allow = run_points.parse_allowed(given.allow, points)
        found, more = group_runs(points, allow)
        made = draw(points, given.y, given.figure, allow)
        print(describe(found, given.y), end="")
        print("".join(f"* {note}\n" for note in notes + more), end="")
        if given.y == LOSS and len({p.objective for p in points}) > 1:
            print("* losses of different objectives do not compare")
        print(f"{len(points)} runs; wrote {' and '.join(map(str, made))}")


if __name__ == "__main__":
    main()
