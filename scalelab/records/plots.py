"""The look of all figures, and the pictures of one run: loss curves, confusion matrix, scatter.

Colors, markers and dashes are chosen so that the color-blind tell lines apart, and no line is
identified by its color only. The colors are those of Okabe and Ito (2008, "Color Universal
Design", https://jfly.uni-koeln.de) without their yellow, which is hard to see on white.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scalelab.config.durations import CLOCKS
from scalelab.helpers import files
from scalelab.records import run_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^DXvP<>"  # names of matplotlib
DASHES = ((), (4, 2), (1, 2), (4, 2, 1, 2))  # lengths of ink and gap in points; (): unbroken
RESOLUTION = 150  # dots an inch in PNG
TRAINING = "training"


Labels = Sequence[str] | None  # names of the C classes


def style(index: int, **more: Any) -> dict[str, Any]:
    """Returns the look of a line, by its number from 0, as arguments for matplotlib.

    The first 252 differ, and neighbors differ in color, marker and dashes; `more` replaces or adds
    arguments.
    """
    dash = DASHES[index % len(DASHES)]
    return {
        "color": COLORS[index % len(COLORS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": (0, dash) if dash else "-",
    } | more


def canvas(width: float, height: float) -> "Figure":
    """Returns a matplotlib figure, of a size in inches, that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def label_clock(axis: "Axes", title: str, log: bool = False) -> None:
    """Gives an axis a grid and an x with a title and a few plain labels such as 20 k."""
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    if log:
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if log else MaxNLocator(5))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_xlabel(title)
    axis.grid(alpha=0.3)


def save(figure: "Figure", path: pathlib.Path, dpi: int = RESOLUTION) -> None:
    """Saves a figure atomically, in the format of the path's ending; a bitmap has `dpi`."""
    import matplotlib

    # Without a date and with names from a fixed salt, the same numbers give the same file.
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    metadata: dict[str, Any] = {"metadata": dates.get(path.suffix, {})}
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        with files.whole(path) as temporary:
            figure.savefig(temporary, dpi=dpi, **metadata)


def draw_curves(workdir: pathlib.Path, title: str, unit: str = "nats") -> pathlib.Path | None:
    """Draws a run's losses against each clock; returns the path of curves.png, None without any."""
    rows = run_files.read_metrics(workdir)
    lines = {TRAINING: ([row for row in rows if "train/loss" in row], "train/loss")}
    for row in sorted(run_files.validations(rows), key=lambda row: row["eval/max_len"]):
        lines.setdefault(f"valid {row['eval/max_len']}", ([], "eval/loss"))[0].append(row)
    lines = {label: line for label, line in lines.items() if line[0]}
    if not lines:
        return None
    figure = canvas(13, 3.6)
    panels = figure.subplots(1, len(CLOCKS), sharey=True)
    for axis, (clock, _, label) in zip(panels, CLOCKS.values(), strict=True):
        for k, (name, (points, key)) in enumerate(lines.items()):
            bare = name == TRAINING and len(points) > 1  # one point needs its marker
            look = style(k, lw=1, ms=4, label=name, **({"marker": None} if bare else {}))
            axis.plot([p[clock] for p in points], [p[key] for p in points], **look)
        label_clock(axis, label)
    panels[0].set_ylabel(f"loss ({unit})")
    panels[0].legend(frameon=False, handlelength=3)
    figure.suptitle(title)
    path = workdir / "curves.png"
    save(figure, path, dpi=110)
    return path


def draw_predictions(
    path: pathlib.Path, *, gold: np.ndarray, predicted: np.ndarray, labels: Labels, title: str
) -> np.ndarray | None:
    """Draws and returns a confusion matrix [C, C], rows of gold; without labels a scatter, None.

    Args:
      path: file of the picture.
      gold: [n] classes or scores.
      predicted: [n] classes or scores.
      labels: names of the C classes; None: scores.
      title: title of the picture.
    """
    num = len(labels or ())
    figure = canvas(2.6 + num, 1.8 + 0.8 * num) if labels else canvas(4.6, 4.4)
    axis, counts = figure.subplots(), None
    if labels:
        counts = np.bincount(gold * num + predicted, minlength=num * num).reshape(num, num)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        shown = axis.imshow(shares, cmap="cividis", vmin=0, vmax=1)  # also for the color-blind
        for row, column in np.ndindex(num, num):
            color = "black" if shares[row, column] > 0.5 else "white"
            axis.text(
                column, row, f"{counts[row, column]:,}", ha="center", va="center", color=color
            )
        axis.set_xticks(range(num), labels, rotation=20 if max(map(len, labels)) > 6 else 0)
        axis.set_yticks(range(num), labels)
        figure.colorbar(shown, label="share of the gold class")
    else:
        axis.scatter(gold, predicted, s=8, alpha=0.4, color=COLORS[0], linewidths=0)
        ends = [float(np.min(gold)), float(np.max(gold))]
        axis.plot(ends, ends, color=COLORS[1], lw=1, label="predicted = gold")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    axis.set_xlabel("predicted" if labels else "gold")
    axis.set_ylabel("gold" if labels else "predicted")
    axis.set_title(title)
    save(figure, path, dpi=110)
    return counts
