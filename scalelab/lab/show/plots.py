"""The look of all figures, and the loss curves of one run (WORKDIR/curves.png).

Colours, markers and dashes are chosen so that the colour-blind tell lines apart, and no line is
identified by its colour only. The colours are those of Okabe and Ito (2008, "Color Universal
Design", https://jfly.uni-koeln.de) without their yellow, which is hard to see on white.
"""

# The stubs of pandas and altair are narrower than what they accept.
# pyright: reportArgumentType=false

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scalelab.helpers import files
from scalelab.runs import records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = "cividis"  # colour map, also for the colour-blind
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^DXvP<>"  # names of matplotlib
DASHES = ((), (4, 2), (1, 2), (4, 2, 1, 2))  # lengths of ink and gap in points; (): unbroken
LINE = 0.065  # height of a line of small text, as a share of an axis of curves
RESOLUTION = 150  # dots an inch in PNG
CLOCKS = (
    ("step", "steps"),
    ("tokens", "tokens"),
    ("flops", "training FLOPs"),
    ("seconds", "seconds of training"),
)
TRAINING = "training"


class Style(NamedTuple):
    """The look of one line: a colour, a marker of matplotlib, and dashes."""

    color: str
    marker: str
    dash: tuple[int, ...]

    def plot(self, **more: Any) -> dict[str, Any]:
        """Returns the look as arguments for matplotlib, updated by `more`."""
        line = (0, self.dash) if self.dash else "-"
        return {"color": self.color, "marker": self.marker, "linestyle": line} | more


def style(index: int) -> Style:
    """Returns the look of line `index`: the first 252 differ, neighbours in all three."""
    return Style(
        COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)]
    )


def canvas(width: float, height: float) -> "Figure":
    """Returns a matplotlib figure of that many inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def use_log_sizes(axis: "Axes") -> None:
    """Gives an axis a logarithmic x with a few plain labels such as 20 k."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_minor_formatter(NullFormatter())


def name_ends(axis: "Axes", ends: Sequence[tuple[float, str, str]]) -> None:
    """Writes the names of lines at their right ends, moved apart where they would overlap.

    Args:
      axis: with all lines drawn.
      ends: last y, name and colour of each line.
    """
    low, high = axis.get_ylim()
    wanted = sorted(((y - low) / (high - low), name, color) for y, name, color in ends)
    places: list[float] = []
    for y, _, _ in wanted:
        places.append(max([y, *(place + LINE for place in places[-1:])]))
    over = max(0.0, max(places, default=0.0) - 1)
    for place, (_, name, color) in zip(places, wanted, strict=True):
        axis.annotate(
            name, (1.03, place - over), xycoords="axes fraction", color=color, fontsize="small",
            va="center", annotation_clip=False,
        )  # fmt: skip


def add_legend(figure: "Figure", num_columns: int) -> None:
    """Draws one shared legend below all panels; duplicate labels appear once."""
    known = {label: handle for axis in figure.axes for handle, label in
             zip(*axis.get_legend_handles_labels(), strict=True)}  # fmt: skip
    figure.legend(list(known.values()), list(known), loc="outside lower center",
                  ncols=num_columns, frameon=False)  # fmt: skip


def save(figure: "Figure", path: pathlib.Path, dpi: int = RESOLUTION) -> None:
    """Saves a figure atomically, in the format of the path's ending."""
    import matplotlib

    # Without a date and with names from a fixed salt, the same numbers give the same file.
    metadata = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        with files.whole(path) as temporary:
            figure.savefig(temporary, dpi=dpi, **metadata)


def draw_curves(workdir: pathlib.Path, title: str, unit: str = "nats") -> pathlib.Path | None:
    """Draws training and validation loss of a run against each clock.

    Args:
      workdir: the run folder.
      title: of the figure.
      unit: of the loss.

    Returns:
      The path of the picture; None if the run has no losses yet.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator

    rows = records.read_metrics(workdir)
    lines = {TRAINING: ([row for row in rows if "train/loss" in row], "train/loss")}
    validations = records.validations(rows)
    for length in sorted({row["eval/max_len"] for row in validations}):
        points = [row for row in validations if row["eval/max_len"] == length]
        lines[f"valid {length}"] = (points, "eval/loss")
    lines = {label: line for label, line in lines.items() if line[0]}
    if not lines:
        return None
    figure = canvas(13, 3.6)
    panels = figure.subplots(1, len(CLOCKS), sharey=True)
    for axis, (clock, label) in zip(panels, CLOCKS, strict=True):
        for k, (name, (points, key)) in enumerate(lines.items()):
            bare = name == TRAINING and len(points) > 1  # one point needs its marker
            look = style(k).plot(**{"marker": None} if bare else {})
            x, y = [p[clock] for p in points], [p[key] for p in points]
            axis.plot(x, y, lw=1, ms=4, label=name, **look)
        axis.set_xlabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.grid(alpha=0.3)
    ends = zip(lines.items(), panels[-1].get_lines(), strict=True)
    name_ends(
        panels[-1],
        [(points[-1][key], name, line.get_color()) for (name, (points, key)), line in ends],
    )
    panels[0].set_ylabel(f"loss ({unit})")
    panels[0].legend(frameon=False, handlelength=3)
    figure.suptitle(title)
    path = workdir / "curves.png"
    save(figure, path, dpi=110)
    return path
