"""Figures of a study, as PNG and SVG.

  score_by_task   every task, beside the best constant answer
  loss_by_time, loss_by_steps, loss_by_tokens, loss_by_flops   validation loss against a clock

Losses have a row of panels for each system, objective and format, because others do not compare,
and a column for each length. A line is a run; runs that differ only in their seed look the same.
"""

import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from scalelab.helpers.names import nearest
from scalelab.lab.compare.evidence import OF_TASKS, Evidence
from scalelab.lab.load.study_runs import Point, Study
from scalelab.lab.scores import metrics
from scalelab.lab.show import notes, plots
from scalelab.lab.show.score_tables import LARGE, TASKS
from scalelab.lab.show.tables import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MakeFigure = Callable[[Study, Evidence, Evidence | None], "Figure | None"]
CLOCKS = {"time": "seconds", "steps": "step", "tokens": "tokens", "flops": "flops"}
FORMATS = ("png", "svg")
CONSTANT = "always the same class"
PANEL_WIDTH, ROW_HEIGHT = 3.2, 0.3  # inches in score_by_task
CAPTIONS = {
    "score_by_size": "Scores against N with 95% intervals; rows of equal N stand slightly apart.",
    "score_by_task": "Scores by task with 95% intervals; dashed: the best constant answer.",
    "loss": "Validation loss; a line is a run, and seeds of one shape look the same.",
}


def caption(name: str) -> str:
    """Returns the caption of a figure."""
    return CAPTIONS[name if name in CAPTIONS else "loss"]


def write(
    study: Study,
    evidence: Evidence,
    folder: pathlib.Path,
    *,
    makers: Mapping[str, MakeFigure],
    published: Evidence | None = None,
) -> list[str]:
    """Draws the figures that a study asks for.

    Args:
      study: the comparison.
      evidence: its scores.
      folder: receives <figure>.png and <figure>.svg.
      makers: the known figures by name.
      published: scores to draw beside ours.

    Returns:
      The names of those drawn; one without anything to show is left out.

    Raises:
      ValueError: an unknown figure.
    """
    drawn = []
    for name in study.facts["figures"]:
        if name not in makers:
            expected = nearest(name, makers)
            raise ValueError(f"the study asks for an unknown figure {name!r}: {expected}")
        figure = makers[name](study, evidence, published)
        if figure is not None:
            drawn.append(name)
            for ending in FORMATS:
                plots.save(figure, folder / f"{name}.{ending}")
    return drawn


def draw_losses(
    study: Study, evidence: Evidence | None = None, published: Evidence | None = None, *, clock: str
) -> "Figure | None":
    """Draws validation loss against a clock of metrics.jsonl; None if no run has one yet."""
    from matplotlib.ticker import EngFormatter

    found = {p: [run.curves for run in p.runs] for p in study.points}
    found = {p: runs for p, runs in found.items() if any(runs)}
    if not found:
        return None
    rows = _group_comparable(list(found))
    lengths = sorted({length for runs in found.values() for losses in runs for length in losses})
    figure = plots.canvas(3.4 + 4.4 * len(lengths), 0.6 + 3.2 * len(rows))
    panels = figure.subplots(len(rows), len(lengths), squeeze=False)
    for row, column in itertools.product(range(len(rows)), range(len(lengths))):
        axis, (title, points), length = panels[row][column], rows[row], lengths[column]
        for place, point in enumerate(points):
            for seed, losses in enumerate(found[point]):
                lines = losses.get(length, [])
                name = point.label.removeprefix(f"{point.system} ")
                label = f"{name}, N {point.shape.n_model:,}"
                axis.plot(
                    [line[clock] for line in lines], [line["eval/loss"] for line in lines],
                    label=None if seed else label, ms=4, lw=1.2, markevery=max(1, len(lines) // 6),
                    **plots.style(place).plot(),
                )  # fmt: skip
        axis.set_title(f"{title}, length {length}", fontsize="medium")
        axis.set_xlabel(dict(plots.CLOCKS)[clock])
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.grid(alpha=0.3)
        if column == 0:
            axis.set_ylabel("validation loss (nats)")
        if column == len(lengths) - 1:  # beside the panels, where it covers no line
            axis.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def draw_tasks(
    study: Study, evidence: Evidence, published: Evidence | None = None
) -> "Figure | None":
    """Draws a panel a task and a row a net: scores with 95% intervals; None without any score.

    A dashed line is the score of the best constant answer, such as the most frequent class.
    """
    columns = scored_columns(study, evidence)
    points = [p for p in study.points if any(evidence.value(p, c.key) for c in columns)]
    if not points:
        return None
    systems = list(dict.fromkeys(p.system for p in study.points))
    figure = plots.canvas(1.8 + PANEL_WIDTH * len(columns), 1.5 + ROW_HEIGHT * len(points))
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axis, column in zip(panels, columns, strict=True):
        for place, point in enumerate(points):
            look = plots.style(systems.index(point.system)).plot(linestyle="none")
            _draw_score(axis, evidence, point, column.key, place, look)
        constant = constant_score(study, column.key)
        if constant is not None:
            axis.axvline(100 * constant, color="black", lw=1, ls=(0, (4, 2)))
        axis.set_title(column.title, fontsize="medium")
        axis.set_xlabel(f"{OF_TASKS[column.key][2]} x 100")
        axis.grid(alpha=0.3)
        axis.margins(x=0.15)
    panels[0].set_yticks(range(len(points)), [p.label for p in points])
    panels[0].set_ylim(len(points) - 0.5, -0.5)
    handle = panels[0].plot([], [], color="black", lw=1, ls=(0, (4, 2)))
    figure.legend(handle, [CONSTANT], loc="outside lower center", frameon=False)
    return figure


FIGURES: dict[str, MakeFigure] = {
    "score_by_task": draw_tasks,
    **{f"loss_by_{name}": partial(draw_losses, clock=clock) for name, clock in CLOCKS.items()},
}


def scored_columns(study: Study, evidence: Evidence) -> list[Column]:
    """Returns the columns of single tasks in which any row has a score."""
    single = [c for c in TASKS if c is not LARGE[0]]
    return [c for c in single if any(evidence.value(p, c.key) for p in study.points)]


def constant_score(study: Study, score: str) -> float | None:
    """Returns the best score of a constant answer on the dev set; None if it is not known."""
    task, split, metric = OF_TASKS[score]
    for run in study.runs:
        for seed in run.tasks[task].finished if task in run.tasks else ():
            try:
                gold = seed.predictions(split).gold
            except (ValueError, OSError):  # damaged, which other notes tell
                continue
            answers = [np.full_like(gold, value) for value in np.unique(gold)]
            return max(float(metrics.METRICS[metric](gold, answer)) for answer in answers)
    return None


def describe_constants(study: Study, evidence: Evidence) -> str:
    """Returns the scores of constant answers as a sentence; empty if they are not known."""
    found = [(c.title, constant_score(study, c.key)) for c in scored_columns(study, evidence)]
    text = ", ".join(f"{title} {100 * value:.1f}" for title, value in found if value is not None)
    return f" A constant answer scores at best: {text}." if text else ""


def _draw_score(
    axis: "Axes", evidence: Evidence, point: Point, score: str, place: int, look: dict
) -> None:
    found = evidence.value(point, score)
    if found is None:
        return
    ends = np.array([[found.value - found.low], [found.high - found.value]])
    bars = None if np.isnan(ends).any() else 100 * ends.clip(0)
    axis.errorbar([100 * found.value], [place], xerr=bars, capsize=3, ms=6, **look)


def _group_comparable(points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """Points whose losses compare, by system, and by objective and format if it has several."""
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        groups.setdefault((point.system, *notes.loss_kind(point)), []).append(point)
    systems = [key[0] for key in groups]
    return [
        (str(system) if systems.count(system) == 1 else f"{system}, {objective} on {fmt}", own)
        for (system, objective, *_, fmt), own in groups.items()
    ]
