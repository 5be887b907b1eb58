"""Scores of a study by task, with intervals, beside what the best constant answer gets."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.lab import palette, scores
from scalelab.lab.compare.evidence import OF_TASKS, Evidence
from scalelab.lab.reading.study_runs import Study
from scalelab.lab.reports import study_tables
from scalelab.lab.reports.scored_table import Column

COLUMNS = (*study_tables.LARGE[1:], *study_tables.SMALL, *study_tables.PROBES)
CONSTANT = "always the same class"
WIDTH, ROW = 3.2, 0.3  # inches of a panel, and of a row


def draw(study: Study, evidence: Evidence) -> Any | None:
    """A panel a task, a row a net: the score with its 95% interval; None if nothing is scored.

    A dashed line is where a classifier of one class ends, such as the most frequent one.
    """
    columns = scored_columns(study, evidence)
    points = [p for p in study.points if any(evidence.value(p, c.key) for c in columns)]
    if not points:
        return None
    systems = list(dict.fromkeys(p.system for p in study.points))
    figure = palette.canvas(1.8 + WIDTH * len(columns), 1.5 + ROW * len(points))
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axis, column in zip(panels, columns, strict=True):
        for place, point in enumerate(points):
            found = evidence.value(point, column.key)
            if found is None:
                continue
            look = palette.style(systems.index(point.system)).plot(linestyle="none")
            ends = np.array([[found.value - found.low], [found.high - found.value]])
            bars = None if np.isnan(ends).any() else 100 * ends.clip(0)
            axis.errorbar([100 * found.value], [place], xerr=bars, capsize=3, ms=6, **look)
        always = constant(study, column.key)
        if always is not None:
            axis.axvline(100 * always, color="black", lw=1, ls=(0, (4, 2)))
        metric = OF_TASKS[column.key][2]
        axis.set_title(column.title, fontsize="medium")
        axis.set_xlabel(f"{metric} x 100")
        axis.grid(alpha=0.3)
        axis.margins(x=0.15)
    panels[0].set_yticks(range(len(points)), [p.label for p in points])
    panels[0].set_ylim(len(points) - 0.5, -0.5)
    handle = panels[0].plot([], [], color="black", lw=1, ls=(0, (4, 2)))
    figure.legend(handle, [CONSTANT], loc="outside lower center", frameon=False)
    return figure


def scored_columns(study: Study, evidence: Evidence) -> list[Column]:
    """The columns of tables for single tasks that any row has a score in."""
    return [c for c in COLUMNS if any(evidence.value(p, c.key) for p in study.points)]


def constant(study: Study, score: str) -> float | None:
    """The best score that a constant answer gets on the dev set; None if that is not at hand."""
    task, split, metric = OF_TASKS[score]
    for run in study.runs:
        for seed_run in run.tasks[task].finished if task in run.tasks else ():
            try:
                gold = seed_run.predictions(split).gold
            except (ValueError, OSError):  # damaged: said elsewhere
                continue
            said = [np.full_like(gold, value) for value in np.unique(gold)]
            return max(float(scores.METRICS[metric](gold, one)) for one in said)
    return None


def said(study: Study, columns: Sequence[Column]) -> str:
    """What constant answers get, as a sentence behind others; empty if it is not known."""
    found = [(c.title, constant(study, c.key)) for c in columns]
    listed = ", ".join(f"{title} {100 * value:.1f}" for title, value in found if value is not None)
    return f" Always the same class gets: {listed}." if listed else ""
