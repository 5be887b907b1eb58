"""WORKDIR/curves.png: training and validation loss against each clock."""

import pathlib

from scalelab.lab import palette, run_files
from scalelab.lab.palette import COLORS

CLOCKS = (
    ("step", "steps"),
    ("tokens", "tokens"),
    ("flops", "training FLOPs"),
    ("seconds", "seconds of training"),
)


def draw(workdir: pathlib.Path, title: str) -> pathlib.Path | None:
    """Draws the losses of a run.

    Args:
      workdir: the run folder.
      title: what the figure says above.

    Returns:
      Path of the picture, or None if there is nothing to draw yet.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator

    rows = run_files.read_metrics(workdir / "metrics.jsonl", [])
    lines = {"training": ([row for row in rows if "train/loss" in row], "train/loss")}
    validations = run_files.validations(rows)
    for length in sorted({row["eval/max_len"] for row in validations}):
        points = [row for row in validations if row["eval/max_len"] == length]
        lines[f"validation, length {length}"] = (points, "eval/loss")
    lines = {label: line for label, line in lines.items() if line[0]}
    if not lines:
        return None
    figure = palette.canvas(13, 3.6)
    panels = figure.subplots(1, len(CLOCKS), sharey=True)
    for axis, (clock, label) in zip(panels, CLOCKS, strict=True):
        for (name, (points, key)), color in zip(lines.items(), COLORS, strict=False):
            marker = None if key == "train/loss" else "o"
            x, y = [p[clock] for p in points], [p[key] for p in points]
            axis.plot(x, y, color=color, lw=1, marker=marker, ms=3.5, label=name)
        axis.set_xlabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.grid(alpha=0.3)
    panels[0].set_ylabel("loss (nats)")
    panels[0].legend(frameon=False)
    figure.suptitle(title)
    path = workdir / "curves.png"
    palette.save(figure, path, dpi=110)
    return path
