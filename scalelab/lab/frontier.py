"""The best that was reached at each cost: scores or losses against each clock, any shape.

  python -m scalelab.lab.frontier DIR... [--y=loss] [--where=...] [--figure=FILE.png]

Draws every finished run below the folders against size, tokens, FLOPs and seconds, and over them
the envelope: what the best run got that cost no more. --y is "loss", a GLUE task, "glue_large" or
"glue". Leaves FILE.png and FILE.svg, and prints the runs on the envelope of each clock.
"""

import argparse
import math
import pathlib
from collections.abc import Sequence

from scalelab import cli
from scalelab.lab import palette, run_points, tables
from scalelab.lab.run_points import CLOCKS, LOSS, RunPoint

PROGRAM = "python -m scalelab.lab.frontier"


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


def draw(points: Sequence[RunPoint], measure: str, path: pathlib.Path) -> list[pathlib.Path]:
    """Draws the measurements against each clock, with the envelope.

    Args:
      points: of finished runs.
      measure: what was measured, for the axis.
      path: of the picture; its ending is replaced by .png and .svg.

    Returns:
      Both paths.
    """
    clocks = [name for name in CLOCKS if any(name in p.clocks for p in points)]
    shapes = sorted({p.shape for p in points}, key=lambda s: [int(n) for n in s.split("x")[1:]])
    figure = palette.canvas(3.4 * len(clocks) + 1.6, 3.8)
    panels = figure.subplots(1, len(clocks), sharey=True, squeeze=False)[0]
    for axis, clock in zip(panels, clocks, strict=True):
        known = [p for p in points if clock in p.clocks]
        for i, shape in enumerate(shapes):
            own = [p for p in known if p.shape == shape]
            look = palette.style(i).plot(linestyle="none", ms=5, label=shape)
            axis.plot([p.clocks[clock] for p in own], [p.value for p in own], **look)
        cost, values = [p.clocks[clock] for p in known], [p.value for p in known]
        best = envelope(cost, values, rising=measure != LOSS)
        x, y = [cost[i] for i in best], [values[i] for i in best]
        axis.step([*x, max(cost)], [*y, y[-1]], where="post", color="black", lw=1, zorder=0)
        axis.set_xscale("log")
        axis.set_xlabel(CLOCKS[clock])
        axis.grid(alpha=0.3)
    panels[0].set_ylabel("loss (nats)" if measure == LOSS else f"{measure} (dev)")
    panels[-1].legend(
        frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5), title="A x H x L"
    )
    figure.suptitle("each run, and the best of any shape at no higher cost")
    made = [path.with_suffix(ending) for ending in (".png", ".svg")]
    for place in made:
        palette.save(figure, place, dpi=palette.RESOLUTION)
    return made


def table(points: Sequence[RunPoint], measure: str) -> str:
    """The runs on the envelope of each clock, for a terminal."""
    rows = []
    for clock, title in CLOCKS.items():
        known = [p for p in points if clock in p.clocks]
        cost, values = [p.clocks[clock] for p in known], [p.value for p in known]
        for i in envelope(cost, values, rising=measure != LOSS):
            numbers = [f"{cost[i]:.4g}", f"{values[i]:.4f}"]
            rows.append([title, known[i].system, known[i].shape, *numbers])
    return tables.plain(("clock", "system", "shape", "cost", measure), rows, 3)


def run(given: argparse.Namespace) -> None:
    """Reads, draws and prints.

    Raises:
      ValueError: there are no such runs.
    """
    points, notes = run_points.read(given.folders, given.y, given.where)
    made = draw(points, given.y, given.figure)
    print(table(points, given.y), end="")
    print("".join(f"* {note}\n" for note in notes), end="")
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
    parser.add_argument("--figure", type=pathlib.Path, default=pathlib.Path("frontier.png"),
                        metavar="FILE", help="default: frontier.png")  # fmt: skip
    given = parser.parse_args(arguments)
    with cli.one_message("start the same command again"):
        run(given)


if __name__ == "__main__":
    main()
