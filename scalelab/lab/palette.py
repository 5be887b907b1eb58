"""How all figures look: colours, markers and dashes that the colour-blind tell apart, and a canvas.

The colours are those of Okabe and Ito (2008, "Color Universal Design", https://jfly.uni-koeln.de)
without their yellow, which is hard to see on white. No line is told by its colour alone.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "down", "plus", "left", "right")
MATPLOTLIB = "os^DXvP<>"  # the same markers by its names
DASHES = ((), (4, 2), (1, 2), (4, 2, 1, 2))  # lengths of ink and gap in points; (): unbroken
SHADES = "cividis"  # for what is shaded; made for the colour-blind too
LINE = 0.065  # between two lines of small text, as a share of an axis of curves
RESOLUTION = 150  # dots an inch in PNG


class Style(NamedTuple):
    """How one line looks: names as above."""

    color: str
    marker: str
    dash: tuple[int, ...]

    def plot(self, **more: Any) -> dict[str, Any]:
        """The same as arguments for matplotlib, `more` on top."""
        return {
            "color": self.color,
            "marker": MATPLOTLIB[MARKERS.index(self.marker)],
            "linestyle": (0, self.dash) if self.dash else "-",
        } | more


def style(index: int) -> Style:
    """The look of line `index`: the first 252 differ, neighbours in all three."""
    return Style(
        COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)]
    )


def name_ends(axis: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Writes the names of lines right of an axis, as high as they end or as near as there is room.

    Args:
      axis: of matplotlib, all drawn.
      ends: of each line its last y, its name and its colour.
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


def canvas(width: float, height: float) -> Any:
    """A matplotlib figure of that many inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: pathlib.Path, **more: Any) -> None:
    """Saves a figure in the format that the path's ending says; nobody ever sees half of it."""
    import matplotlib

    part = path.with_name(f"{path.stem}.tmp{path.suffix}")
    # Without a date and with names from a fixed salt, the same numbers give the same file.
    more |= {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(part, **more)
    part.replace(path)
