"""The best result at each cost: scores or losses against each clock, over all shapes.

  python -m scalelab.lab.frontier DIR... [--y=loss] [--where=...] [--allow=...] [--figure=FILE.png]

Draws every net trained below the folders, as the mean over its seeds, against size, tokens, FLOPs
and seconds, with the envelope of each system: the best result at no higher cost. --y is "loss", a
GLUE task, "glue_large" or "glue". Losses of different objectives do not compare, so each objective
has a row of panels. Against N, only shapes may differ on one envelope; against tokens, FLOPs and
seconds, budgets too. Runs that differ in other comparability fields get envelopes of their own,
unless --allow=FIELD,FIELD pools them. The nets on an envelope are filled, named and printed. A
clock on which all nets agree has no panel.
"""

import math
import pathlib
from collections.abc import Collection, Sequence

from scalelab.config import cli
from scalelab.lab import tables
from scalelab.lab.compare import run_points
from scalelab.lab.compare.run_points import AXES, LOSS, RunPoint
from scalelab.lab.show import plots

SHORT_NAME = 12  # characters of a legend entry; six such entries fit side by side

Pools = dict[str, run_points.Pools]  # clock -> name of an envelope -> its nets


def envelope(cost: Sequence[float], value: Sequence[float], *, rising: bool) -> list[int]:
    """Returns the indices of the Pareto-optimal points (cost against value), cheapest first.

    `rising`: higher values are better, as for scores. Ties keep the first point; NaN is left out.
    """
    sign = 1.0 if rising else -1.0
    order = sorted(range(len(cost)), key=lambda i: (cost[i], -sign * value[i]))
    best, found = -math.inf, []
    for i in order:
        if sign * value[i] > best:
            best = sign * value[i]
            found.append(i)
    return found


def group_runs(points: Sequence[RunPoint], allow: Collection[str] = ()) -> tuple[Pools, list[str]]:
    """Returns the nets of each envelope by name for each clock, and notes on what differs.

    `allow`: fields in which nets of one envelope may differ beyond what an axis shows.
    """
    nets = run_points.means(points)
    found: Pools = {}
    notes: dict[str, list[str]] = {}
    for clock, title in AXES.items():
        free = run_points.SHAPE if clock == "n_model" else run_points.SHAPE | run_points.BUDGET
        found[clock], remarks = {}, []
        for own in run_points.by_system(nets).values():
            parts, more = run_points.pool(own, free, allow)
            found[clock] |= parts
            remarks += more + [
                f"{name}: nets of different budgets on one envelope"
                for name, group in parts.items()
                if run_points.BUDGET & {*run_points.differing(group)}
            ]
        for note in remarks + run_points.describe_undeclared(found[clock], free, allow):
            notes.setdefault(note, []).append(title)
    return found, [f"against {', '.join(titles)}: {note}" for note, titles in notes.items()]


def draw(
    points: Sequence[RunPoint], measure: str, path: pathlib.Path, allow: Collection[str] = ()
) -> list[list[str]]:
    """Draws the means of finished runs over seeds against each clock, with the envelopes.

    Returns:
      The nets on the envelopes: clock, envelope, shape, cost, value and number of seeds.
    """
    found, _ = group_runs(points, allow)
    points = run_points.means(points)
    known = [name for name in AXES if any(name in p.clocks for p in points)]
    clocks = [name for name in known if run_points.clock_differs(points, name)] or known[:1]
    names = list(dict.fromkeys(name for clock in clocks for name in found[clock]))
    titles = {p.objective: f"{p.objective} loss (nats)".strip() for p in points}
    if measure != LOSS:
        titles = dict.fromkeys(titles, f"{measure} (dev)")
    rows = list(dict.fromkeys(titles.values()))
    figure = plots.canvas(3.6 * len(clocks) + 0.6, 3.1 * len(rows) + 0.8)
    panels = figure.subplots(len(rows), len(clocks), sharey="row", squeeze=False)
    lines = []
    for column, clock in enumerate(clocks):
        for name, nets in found[clock].items():
            place = names.index(name)
            for row, title in enumerate(rows):
                own = [p for p in nets if titles[p.objective] == title and clock in p.clocks]
                cost, values = [p.clocks[clock] for p in own], [p.value for p in own]
                best = envelope(cost, values, rising=measure != LOSS)
                if not best:
                    continue
                axis = panels[row, column]
                hollow = {"linestyle": "none", "ms": 5, "markerfacecolor": "white"}
                axis.plot(cost, values, **plots.style(place, **hollow))
                x, y = [cost[i] for i in best], [values[i] for i in best]
                look = plots.style(place, lw=1.2, ms=6, label=name, drawstyle="steps-post")
                axis.plot([*x, max(cost)], [*y, y[-1]], markevery=range(len(best)), **look)
                for i in best:
                    axis.annotate(
                        own[i].shape, (cost[i], values[i]), textcoords="offset points",
                        xytext=(4, 4) if measure == LOSS else (4, -10),  # beside the line
                        fontsize=7, color=look["color"],
                    )  # fmt: skip
                    numbers = [f"{cost[i]:.4g}", f"{values[i]:.4f}", str(own[i].num_seeds)]
                    lines.append([AXES[clock], name, own[i].shape, *numbers])
        for row, title in enumerate(rows):
            axis = panels[row, column]
            plots.label_clock(axis, AXES[clock], log=True)
            axis.set_ylabel(title if column == 0 else "")
            axis.margins(0.24, 0.1)
    plots.add_legend(figure, 6 if max(map(len, names)) < SHORT_NAME else 2)
    figure.suptitle("means over seeds; the line: the best of any shape at no higher cost")
    plots.save(figure, path)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; a mistake in arguments or folders is one message and exit code 2."""
    parser = cli.Parser("python -m scalelab.lab.frontier", __doc__)
    add = parser.add_argument
    add("folders", metavar="DIR", nargs="+", type=pathlib.Path)
    add("--y", default=LOSS, help="loss or a score; default: loss")
    add("--where", default="", help="conditions on runs, as scalelab.lab.runs takes them")
    add("--allow", default="", metavar="FIELD,FIELD", help="fields that pooled runs may differ in")
    add("--figure", type=pathlib.Path, default=pathlib.Path("frontier.png"), metavar="FILE",
        help="default: frontier.png; .svg and .pdf too")  # fmt: skip
    given = parser.parse_args(arguments)
    with cli.one_message("start the same command again"):
        points, notes = run_points.read(given.folders, given.y, given.where)
        allow = run_points.parse_allowed(given.allow, points)
        notes += group_runs(points, allow)[1]
        lines = draw(points, given.y, given.figure, allow)
        header = ("clock", "runs", "shape", "cost", given.y, "seeds")
        print(tables.plain(header, lines, 3) + "".join(f"* {note}\n" for note in notes), end="")
        print(f"{len(points)} runs; wrote {given.figure}")


if __name__ == "__main__":
    main()
