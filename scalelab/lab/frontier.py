"""The best that was reached at each cost: scores or losses against each clock, any shape.

  python -m scalelab.lab.frontier DIR... [--y=loss] [--where=...] [--allow=...] [--figure=FILE.png]

Draws every net trained below the folders, as the mean over its seeds, against size, tokens, FLOPs
and seconds, and over them each system's envelope: what its best net of any shape got that cost no
more. --y is "loss", a GLUE task, "glue_large" or "glue". Losses of different objectives do not
compare, so each objective has a row of panels. Against N only shapes may differ on one envelope,
against tokens, FLOPs and seconds budgets too; runs that differ in more of what the comparability
contract holds equal have envelopes of their own, unless --allow=FIELD,FIELD pools them. An envelope
has a colour, a marker and a line; filled and named are the nets on it. A clock on which all agree
has no panel. Leaves FILE.png and FILE.svg, and prints those nets.
"""

import argparse
import math
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from scalelab.config import cli
from scalelab.lab import palette, tables
from scalelab.lab.all_runs import kinds, run_points
from scalelab.lab.all_runs.run_points import CLOCKS, LOSS, RunPoint

PROGRAM = "python -m scalelab.lab.frontier"
NARROW = 12  # characters of a name of which six stand side by side


def envelope(cost: Sequence[float], value: Sequence[float], *, rising: bool) -> list[int]:
    """The points that no other one beats at the same cost or a lower one.

    Args:
      cost: of each point.
      value: what it reached; NaN is never on the envelope.
      rising: whether higher is better, as of scores; a loss falls.

    Returns:
      Their indices, the cheapest first; of equal points the first.
    """
    sign = 1.0 if rising else -1.0
    order = sorted(range(len(cost)), key=lambda i: (cost[i], -sign * value[i]))
    best, found = -math.inf, []
    for i in order:
        if sign * value[i] > best:
            best = sign * value[i]
            found.append(i)
    return found


def sort(
    points: Sequence[RunPoint], allow: Collection[str] = ()
) -> tuple[dict[str, kinds.Kinds], list[str]]:
    """The points of each envelope by its name, for each clock, and what has to be said of them.

    Args:
      points: of finished runs; means over seeds are taken.
      allow: fields in which those of one envelope may differ beyond what an axis shows.
    """
    nets = run_points.means(points)
    found: dict[str, kinds.Kinds] = {}
    notes: dict[str, list[str]] = {}
    for clock, title in CLOCKS.items():
        free = kinds.SHAPE if clock == "n_model" else kinds.SHAPE | kinds.BUDGET
        found[clock] = {}
        for own in run_points.by_system(nets).values():
            parts, said = kinds.of_system(own, free, allow)
            found[clock] |= parts
            mixed = [name for name, of in parts.items() if kinds.BUDGET & {*kinds.differing(of)}]
            said += [f"{name}: nets of different budgets on one envelope" for name in mixed]
            for note in said:
                notes.setdefault(note, []).append(title)
        for note in kinds.undeclared(found[clock], free, allow):
            notes.setdefault(note, []).append(title)
    return found, [f"against {', '.join(titles)}: {note}" for note, titles in notes.items()]


def draw(
    points: Sequence[RunPoint],
    measure: str,
    path: pathlib.Path,
    allow: Collection[str] = (),
) -> list[pathlib.Path]:
    """Draws the measurements against each clock, with the envelopes.

    Args:
      points: of finished runs; means over seeds are drawn.
      measure: what was measured, for the axis.
      path: of the picture; its ending is replaced by .png and .svg.
      allow: as in `sort`.

    Returns:
      Both paths.
    """
    found, _ = sort(points, allow)
    points = run_points.means(points)
    there = [name for name in CLOCKS if any(name in p.clocks for p in points)]
    clocks = [name for name in there if run_points.differing(points, name)] or there[:1]
    names = list(dict.fromkeys(name for clock in clocks for name in found[clock]))
    rows = _rows(points, measure)
    figure = palette.canvas(3.6 * len(clocks) + 0.6, 3.1 * len(rows) + 0.8)
    panels = figure.subplots(len(rows), len(clocks), sharey="row", squeeze=False)
    for row, (title, own) in zip(panels, rows.items(), strict=True):
        for axis, clock in zip(row, clocks, strict=True):
            for name, nets in found[clock].items():
                shown = [p for p in nets if p in own]
                style = palette.style(names.index(name))
                _draw_kind(axis, shown, clock, style, name, measure)
            _label(axis, clock)
        row[0].set_ylabel(title)
    known = {label: h for axis in panels.flat for h, label in
             zip(*axis.get_legend_handles_labels(), strict=True)}  # fmt: skip
    figure.legend(list(known.values()), list(known), loc="outside lower center",
                  ncols=6 if max(map(len, names)) < NARROW else 2, frameon=False)  # fmt: skip
    figure.suptitle("means over seeds; the line: the best of any shape at no higher cost")
    made = [path.with_suffix(ending) for ending in (".png", ".svg")]
    for place in made:
        palette.save(figure, place, dpi=palette.RESOLUTION)
    return made


def _label(axis: Any, clock: str) -> None:
    """The axis of a cost."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(CLOCKS[clock])
    axis.margins(0.24, 0.1)
    axis.grid(alpha=0.3)


def _rows(points: Sequence[RunPoint], measure: str) -> dict[str, list[RunPoint]]:
    """What stands in each row of panels, by the label of its axis."""
    if measure != LOSS:
        return {f"{measure} (dev)": list(points)}
    objectives = dict.fromkeys(p.objective for p in points)
    return {
        f"{name} loss (nats)".strip(): [p for p in points if p.objective == name]
        for name in objectives
    }


def _draw_kind(
    axis: Any,
    points: Sequence[RunPoint],
    clock: str,
    style: palette.Style,
    name: str,
    measure: str,
) -> None:
    """One envelope in one panel: a marker for each net, a line along the envelope."""
    known = [p for p in points if clock in p.clocks]
    cost, values = [p.clocks[clock] for p in known], [p.value for p in known]
    best = envelope(cost, values, rising=measure != LOSS)
    if not best:
        return
    axis.plot(cost, values, **style.plot(linestyle="none", ms=5, markerfacecolor="white"))
    x, y = [cost[i] for i in best], [values[i] for i in best]
    look = style.plot(lw=1.2, ms=6, drawstyle="steps-post", markevery=list(range(len(best))))
    axis.plot([*x, max(cost)], [*y, y[-1]], label=name, **look)
    beside = (4, 4) if measure == LOSS else (4, -10)  # where the line does not go
    for i in best:
        axis.annotate(
            known[i].shape, (cost[i], values[i]), xytext=beside, textcoords="offset points",
            fontsize=7, color=style.color,
        )  # fmt: skip


def table(found: Mapping[str, kinds.Kinds], measure: str) -> str:
    """The nets on each envelope for each clock, as `sort` has them, for a terminal."""
    rows = []
    for clock, title in CLOCKS.items():
        for name, own in found[clock].items():
            known = [p for p in own if clock in p.clocks]
            cost, values = [p.clocks[clock] for p in known], [p.value for p in known]
            for i in envelope(cost, values, rising=measure != LOSS):
                numbers = [f"{cost[i]:.4g}", f"{values[i]:.4f}", str(known[i].num_seeds)]
                rows.append([title, name, known[i].shape, *numbers])
    return tables.plain(("clock", "runs", "shape", "cost", measure, "seeds"), rows, 3)


def run(given: argparse.Namespace) -> None:
    """Reads, draws and prints.

    Raises:
      ValueError: there are no such runs, or a field to allow is none.
    """
    points, notes = run_points.read(given.folders, given.y, given.where)
    allow = kinds.allowed(given.allow, points)
    found, more = sort(points, allow)
    made = draw(points, given.y, given.figure, allow)
    print(table(found, given.y), end="")
    print("".join(f"* {note}\n" for note in notes + more), end="")
    if given.y == LOSS and len({p.objective for p in points}) > 1:
        print("* losses of different objectives do not compare")
    print(f"{len(points)} runs; wrote {' and '.join(map(str, made))}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The program; a mistake in its arguments or folders is one message and exit code 2."""
    parser = cli.Parser(
        prog=PROGRAM,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", type=pathlib.Path)
    parser.add_argument("--y", default=LOSS, help="what was reached; default: loss")
    parser.add_argument("--where", default="", help="conditions, as scalelab.lab.runs takes them")
    parser.add_argument("--allow", default="", metavar="FIELD,FIELD",
                        help="pool runs that differ in these, against the contract")  # fmt: skip
    parser.add_argument("--figure", type=pathlib.Path, default=pathlib.Path("frontier.png"),
                        metavar="FILE", help="default: frontier.png")  # fmt: skip
    given = parser.parse_args(arguments)
    with cli.one_message("start the same command again"):
        run(given)


if __name__ == "__main__":
    main()
