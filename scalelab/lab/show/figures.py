"""Figures of a study, as PNG, SVG and PDF.

  score_by_task   every task, beside the trivial score and the net from random weights
  score_by_value  every score against each number that variants set, such as a mask rate
  loss_by_time, loss_by_steps, loss_by_tokens, loss_by_flops   validation loss against a clock

Losses of one kind have a row of panels, with a column for each length. A thin line is a run, a bold
one the mean over its seeds. Colour is the system, shade the size or variant.
"""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scalelab.config.durations import CLOCKS, Clock
from scalelab.helpers.names import nearest
from scalelab.lab.compare import comparability
from scalelab.lab.compare.estimates import with_bars
from scalelab.lab.compare.scores import TASK_SCORES, Scores
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load.study_runs import Point, Study
from scalelab.lab.show import score_tables
from scalelab.lab.show.score_tables import LOSS, TASKS
from scalelab.lab.tables import Column
from scalelab.records import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = dict[str, list[tuple[float, Point]]]  # label -> a field's number and its row
MakeFigure = Callable[[Study, Scores, Scores | None], "Figure | None"]
AXES = {"time" if name == "secs" else name: clock for name, clock in CLOCKS.items()}
CAPTIONS = {
    "score_by_task": "Scores by task with 95% intervals. The trivial score is that of the best"
    " constant answer, or of guessing.",
    "score_by_value": "Scores x 100 and losses in nats, with 95% intervals, against each number"
    " that the variants set. Losses of different kinds are not drawn.",
} | {
    f"loss_by_{name}": f"Validation loss by {name}. Thin lines are seeds, bold lines their means."
    for name in AXES
}
LIGHTEST = 0.7  # share of white that a shade of a colour may have
MAX_ACROSS = 5  # panels of scores in a row
ALWAYS = ("score_by_task", "loss_by_tokens")  # drawn even if the study does not ask for them


def write(
    study: Study,
    scores: Scores,
    folder: pathlib.Path,
    *,
    makers: Mapping[str, MakeFigure],
    published: Scores | None = None,
) -> list[str]:
    """Draws the figures that a study asks for, and ALWAYS; returns their names.

    Figures with nothing to show are left out.

    Raises:
      ValueError: an unknown figure.
    """
    drawn = {}
    for name in dict.fromkeys((*study.facts.figures, *ALWAYS)):
        if name not in makers:
            expected = nearest(name, makers)
            raise ValueError(f"the study asks for an unknown figure {name!r}: {expected}")
        figure = makers[name](study, scores, published)
        if figure is not None:
            drawn[name] = figure
    save(drawn, folder)
    return list(drawn)


def save(drawn: "Mapping[str, Figure]", folder: pathlib.Path) -> None:
    """Writes figures by name as PNG, SVG and PDF."""
    for name, figure in drawn.items():
        for ending in ("png", "svg", "pdf"):
            plots.save(figure, folder / f"{name}.{ending}")


def row_styles(points: Sequence[Point]) -> dict[Point, dict[str, Any]]:
    """Returns the look of every row of a study: colour by system, shade by size and variant.

    Markers and dashes differ between rows, so that no row is identified by its colour alone.
    """
    systems: dict[str, list[Point]] = {}
    for point in points:
        systems.setdefault(point.system, []).append(point)
    from matplotlib import colors

    found: dict[Point, dict[str, Any]] = {}
    # A colour comes twice only if more systems have runs than there are colours.
    by_runs = sorted(systems.values(), key=lambda own: not any(p.finished for p in own))
    for k, own in enumerate(by_runs):
        full = colors.to_rgb(plots.COLORS[k % len(plots.COLORS)])
        for place, point in enumerate(own):
            red, green, blue = (x + (1 - x) * LIGHTEST * place / len(own) for x in full)
            found[point] = plots.style(len(found), color=colors.to_hex((red, green, blue)))
    return found


def draw_losses(
    study: Study, scores: Scores | None = None, published: Scores | None = None, *, clock: Clock
) -> "Figure | None":
    """Draws validation loss against a clock of metrics.jsonl; None if no run has one yet."""
    points = [point for point in study.points if any(run.curves for run in point.runs)]
    if not points:
        return None
    groups: dict[str, list[Point]] = {}  # rows whose losses compare, but for their length
    for point in points:
        kind = comparability.loss_fields(point.runs[0].config)
        groups.setdefault(str(kind), []).append(point)
    looks = row_styles(study.points)
    lengths = sorted({length for p in points for run in p.runs for length in run.curves})
    differing = comparability.differing_losses(points)
    names = [sorted({point.system for point in own}) for own in groups.values()]
    figure = plots.canvas(3.4 + 4.4 * len(lengths), 0.6 + 3.2 * len(groups))
    panels = figure.subplots(len(groups), len(lengths), squeeze=False)
    for row, own in zip(panels, groups.values(), strict=True):
        fields = comparability.loss_fields(own[0].runs[0].config)
        named = [
            f"{name.rpartition('.')[2]} {fields[name]}" for name in differing if name in fields
        ]
        systems = sorted({point.system for point in own})
        title = ", ".join([*systems, *(named[:2] if names.count(systems) > 1 else [])])
        for axis, length in zip(row, lengths, strict=True):
            for point in own:
                curves = [run.curves[length] for run in point.runs if length in run.curves]
                seeds = [
                    np.array([(x.get(clock.logged, math.nan), x["eval/loss"]) for x in lines]).T
                    for lines in curves
                ]
                _draw_seeds(axis, seeds, f"{point.label}, N {point.n_model:,}", looks[point])
            axis.set_title(f"{title}, length {length}", fontsize="medium")
            plots.label_clock(axis, clock.label)
            if any(len(line.get_xdata()) for line in axis.get_lines()):
                start, end = axis.dataLim.intervalx
                axis.set_xlim(left=0 if start < end / 2 else None)
        row[0].set_ylabel("validation loss (nats)")
        # Beside the panels, where it covers no line.
        row[-1].legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _draw_seeds(axis: Any, seeds: Sequence[np.ndarray], label: str, look: dict[str, Any]) -> None:
    """Draws losses [2, K]: every seed thin, and their mean where all have begun bold."""
    for readings in seeds:
        axis.plot(*readings, **look | {"marker": None, "lw": 0.7, "alpha": 0.5})
    if not seeds:
        return
    low, high = max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds)
    x = np.unique(seeds[0][0].clip(low, high))
    mean = np.mean([np.interp(x, *own) for own in seeds], axis=0)
    every = max(1, len(x) // 6)
    axis.plot(x, mean, label=label, markevery=every, **look | {"lw": 1.8, "ms": 4})


def draw_tasks(study: Study, scores: Scores, published: Scores | None = None) -> "Figure | None":
    """Draws a panel a task and a row a net: scores with 95% intervals; None without any score.

    A dashed line is the trivial score; a gray circle is the net from random weights.
    """
    tasks = [column for column in TASKS if column.key in TASK_SCORES
             and any(scores.value(point, column.key) for point in study.points)]  # fmt: skip
    points = [p for p in study.points if any(scores.value(p, c.key) for c in tasks)]
    if not points:
        return None
    looks = row_styles(study.points)
    across = min(len(tasks), MAX_ACROSS)
    down = math.ceil(len(tasks) / across)
    figure = plots.canvas(1.8 + 3.2 * across, 0.5 + down * (1.0 + 0.3 * len(points)))
    panels = figure.subplots(down, across, sharey=True, squeeze=False).flat
    for axis in panels[len(tasks) :]:
        axis.remove()
    dashed: dict[str, Any] = {"color": "black", "lw": 1, "ls": (0, (4, 2))}
    hollow: dict[str, Any] = {"color": "gray", "marker": "o", "mfc": "none", "ls": "none"}
    untrained = scores.scratch if isinstance(scores, StudyScores) else None
    for axis, column in zip(panels, tasks, strict=False):
        for place, point in enumerate(points):
            if (found := scores.value(point, column.key)) is not None:
                look = looks[point] | {"linestyle": "none", "ms": 6, "capsize": 3}
                x, bars = with_bars([found])
                axis.errorbar(x, [place], xerr=bars, **look)
            if untrained and (found := untrained.value(point, column.key)) is not None:
                axis.plot(100 * found.value, place, **hollow)
        if (constant := scores.floor(column.key)) is not None:
            axis.axvline(100 * constant, **dashed)
        axis.set_title(column.title, fontsize="medium")
        axis.set_xlabel(f"{TASK_SCORES[column.key][2]} x 100")
        axis.grid(alpha=0.3)
        axis.margins(x=0.15)
    panels[0].set_yticks(range(len(points)), [p.label for p in points])
    panels[0].set_ylim(len(points) - 0.5, -0.5)
    panels[0].plot([], [], **dashed, label="trivial score")
    if untrained and any(untrained.value(p, c.key) for p in points for c in tasks):
        panels[0].plot([], [], **hollow, label="from random weights, first seed")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_values(study: Study, scores: Scores, published: Scores | None = None) -> "Figure | None":
    """Draws scores against each number that variants set; None if no number has two values.

    A panel has one metric, a row of panels one field. A line is a system and shape, with one value
    of every other field that variants set. Losses are drawn on lines whose losses compare.
    """
    fields = score_tables.varied_fields(study, study.points)
    values = {p: {f: score_tables.field_value(p, f) for f in fields} for p in study.points}
    columns = [c for c in (*TASKS, LOSS) if any(scores.value(p, c.key) for p in study.points)]
    rows: list[tuple[str, Lines, list[Column]]] = []
    for name in fields:
        numbers = [float(x) for own in values.values() if isinstance(x := own[name], int | float)]
        if len(numbers) < len(values) or len(set(numbers)) < 2:
            continue
        lines: Lines = {}
        for number, point in sorted(zip(numbers, values, strict=True), key=lambda pair: pair[0]):
            others = [f"{f.rpartition('.')[2]} {values[point][f]}" for f in fields if f != name]
            label = ", ".join([f"{point.system} {point.shape}", *others])
            lines.setdefault(label, []).append((number, point))
        apart = any(comparability.differing_losses([p for _, p in own]) for own in lines.values())
        shown = [column for column in columns if column is not LOSS or not apart]
        for start in range(0, len(shown), MAX_ACROSS):
            rows.append((name, lines, shown[start : start + MAX_ACROSS]))
    if not rows:
        return None
    across, looks = max(len(shown) for *_, shown in rows), row_styles(study.points)
    figure = plots.canvas(3.4 + 3.2 * across, 0.4 + 3.0 * len(rows))
    panels = figure.subplots(len(rows), across + 1, squeeze=False)  # the last has the legend
    for axes, (name, lines, shown) in zip(panels, rows, strict=True):
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        for axis, column in zip(axes, shown, strict=False):
            _draw_lines(axis, name, column, lines, scores, looks)
        entries = axes[0].get_legend_handles_labels()
        axes[-1].legend(*entries, frameon=False, fontsize="small", loc="center left")
    return figure


def _draw_lines(
    axis: Any, field: str, column: Column, lines: Lines, scores: Scores,
    looks: Mapping[Point, dict[str, Any]],
) -> None:  # fmt: skip
    """Draws means and 95% intervals of a score against a config field, lines a little apart.

    A line looks as its first point does elsewhere.
    """
    scale = 1 if column is LOSS else 100
    ticks = sorted({number for own in lines.values() for number, _ in own})
    low, high = ticks[0], ticks[-1]
    log = low > 0 and high >= 8 * low
    for k, (label, points) in enumerate(lines.items()):
        aside = 0.02 * (k - (len(lines) - 1) / 2)
        values = [(number, scores.value(point, column.key)) for number, point in points]
        known = [(number, found) for number, found in values if found is not None]
        x = [at * (high / low) ** aside if log else at + aside * (high - low) for at, _ in known]
        means, bars = with_bars([found for _, found in known], scale)
        look = looks[points[0][1]] | {"ms": 5, "lw": 1.2, "capsize": 3}
        axis.errorbar(x, means, yerr=bars, label=label, **look)
    if log:
        axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(field.rpartition(".")[2])
    axis.set_title(column.title, fontsize="medium")
    axis.grid(alpha=0.3)


FIGURES: dict[str, MakeFigure] = {
    "score_by_task": draw_tasks,
    "score_by_value": draw_values,
    **{f"loss_by_{k}": functools.partial(draw_losses, clock=v) for k, v in AXES.items()},
}
