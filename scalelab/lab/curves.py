"""WORKDIR/curves.png: training and validation loss against each clock."""

import pathlib

from scalelab.lab import palette
from scalelab.lab.reading import run_files

CLOCKS = (
    ("step", "steps"),
    ("tokens", "tokens"),
    ("flops", "training FLOPs"),
    ("seconds", "seconds of training"),
)


TRAINING = "training"


def draw(workdir: pathlib.Path, title: str, unit: str = "nats") -> pathlib.Path | None:
    """Draws the losses of a run.

    Args:
      workdir: the run folder.
      title: what the figure says above.
      unit: of the loss.

    Returns:
      Path of the picture, or None if there is nothing to draw yet.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator

    rows = run_files.read_metrics(workdir / "metrics.jsonl", [])
    lines = {TRAINING: ([row for row in rows if "train/loss" in row], "train/loss")}
    validations = run_files.validations(rows)
    for length in sorted({row["eval/max_len"] for row in validations}):
        points = [row for row in validations if row["eval/max_len"] == length]
        lines[f"valid {length}"] = (points, "eval/loss")
    lines = {label: line for label, line in lines.items() if line[0]}
    if not lines:
        return None
    figure = palette.canvas(13, 3.6)
    panels = figure.subplots(1, len(CLOCKS), sharey=True)
    for axis, (clock, label) in zip(panels, CLOCKS, strict=True):
        for k, (name, (points, key)) in enumerate(lines.items()):
            bare = name == TRAINING and len(points) > 1  # a line of one point is not seen
            look = palette.style(k).plot(**{"marker": None} if bare else {})
            x, y = [p[clock] for p in points], [p[key] for p in points]
            axis.plot(x, y, lw=1, ms=4, label=name, **look)
        axis.set_xlabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.grid(alpha=0.3)
    ends = zip(lines.items(), panels[-1].get_lines(), strict=True)
    palette.name_ends(
        panels[-1],
        [(points[-1][key], name, line.get_color()) for (name, (points, key)), line in ends],
    )
    panels[0].set_ylabel(f"loss ({unit})")
    panels[0].legend(frameon=False, handlelength=3)
    figure.suptitle(title)
    path = workdir / "curves.png"
    palette.save(figure, path, dpi=110)
    return path
