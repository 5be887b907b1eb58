"""What the charts of a report draw, as page/chart.js reads it: losses and scores."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from scalelab.lab import curves, palette
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.reading.study_runs import Point, Study
from scalelab.lab.reports import study_figures, study_notes, study_tables, task_figure
from scalelab.lab.reports.scored_table import Column
from scalelab.thesis import size_figure

MAX_POINTS = 200  # of a curve in the page; more are thinned out
DIGITS = 5  # of a number in the page's curves
MEASURES = (("eval/loss", "validation loss (nats)"), ("eval/bits_per_byte", "bits per byte"))
SIZES = (("n_model", "N = 12 L H²"), *curves.CLOCKS[1:])


def losses(study: Study) -> dict[str, Any] | None:
    """Validation loss against every clock, a panel for each length."""
    found = [(p, r, study_figures.read_losses(r)) for p in study.points for r in p.runs]
    lengths = sorted({length for _, _, rows in found for length in rows})
    if not lengths:
        return None
    series = {}
    for place, point in enumerate(study.points):
        series[point] = _series(point.label, palette.style(place), point.system)
    for point, run, of_length in found:
        for length, rows in of_length.items():
            thin = rows[:: math.ceil(len(rows) / MAX_POINTS)]
            thin += [] if thin[-1] is rows[-1] else [rows[-1]]
            points = [
                {
                    "x": [_short(row.get(clock)) for clock, _ in curves.CLOCKS],
                    "y": [_short(row.get(measure)) for measure, _ in MEASURES],
                }
                for row in thin
            ]
            line = {"label": f"seed {run.seed}", "panel": lengths.index(length), "points": points}
            series[point]["lines"].append(line)
    kinds = {study_notes.loss_kind(point) for point in study.points}
    return {
        "title": "Validation loss in training",
        "note": study_notes.LOSSES if len(kinds) > 1 else "",
        "x": [title for _, title in curves.CLOCKS],
        "y": [title for _, title in MEASURES],
        "panels": [f"length {length}" for length in lengths],
        "series": [s for s in series.values() if s["lines"]],
    }


def scores(study: Study, evidence: Evidence) -> dict[str, Any] | None:
    """Every score of a task, with its interval, against size and clocks; width and depth apart."""
    columns = [
        c for c in (*study_tables.LARGE, *study_tables.SMALL, *study_tables.PROBES)
        if any(evidence.value(p, c.key) for p in study.points)
    ]  # fmt: skip
    scored = [p for p in study.points if any(evidence.value(p, c.key) for c in columns)]
    panels = size_figure.panels_of(scored)
    if not columns or not panels:
        return None
    systems = list(dict.fromkeys(p.system for p in study.points))
    series = [_series(s, palette.style(i), s) for i, s in enumerate(systems)]
    for place, (title, lines) in enumerate(panels):
        for line in lines:
            points = [_scored_point(p, columns, evidence) for p in line]
            made = {"label": title, "panel": place, "points": points}
            series[systems.index(line[0].system)]["lines"].append(made)
    return {
        "title": "Scores on dev sets",
        "note": "Bars: 95% intervals. Systems stand apart by a little, so that none hides another."
        + task_figure.said(study, [c for c in columns if c is not study_tables.LARGE[0]]),
        "aside": True,
        "x": [title for _, title in SIZES],
        "y": [column.title for column in columns],
        "panels": [title for title, _ in panels],
        "logX": True,
        "series": [s for s in series if s["lines"]],
    }


def _scored_point(point: Point, columns: Sequence[Column], evidence: Evidence) -> dict[str, Any]:
    found = [evidence.value(point, column.key) for column in columns]
    size = [point.shape.n_model, *(point.mean(clock) for clock, _ in SIZES[1:])]
    ends: Callable[[str], list[float | None]] = lambda name: [  # noqa: E731
        None if e is None else _short(100 * getattr(e, name)) for e in found
    ]
    return {
        "label": point.label,
        "x": [_short(x) for x in size],
        "y": ends("value"),
        "low": ends("low"),
        "high": ends("high"),
    }


def _series(name: str, style: palette.Style, system: str) -> dict[str, Any]:
    dash = " ".join(map(str, style.dash))
    look = {"color": style.color, "marker": style.marker, "dash": dash}
    return {"name": name, "group": system, **look, "lines": []}


def _short(value: float | None) -> float | None:
    """Few digits, as the page holds many numbers; None for what JSON cannot say."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
