"""Interactive charts of report.html: losses and scores against every clock, as Vega-Lite (altair).

The axis of a chart is chosen from a list below it, and a click on a legend entry hides the others.
"""

# The stubs of pandas and altair are narrower than what they accept.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
# pyright: reportReturnType=false

import functools
import math
from collections.abc import Sequence

import altair as alt
import pandas as pd

from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.load.study_runs import Study
from scalelab.lab.show import notes, plots
from scalelab.lab.show.score_tables import TASKS

MAX_POINTS = 200  # of a curve; longer curves are thinned
DIGITS = 5  # of a number in a chart
MEASURES = {"validation loss (nats)": "eval/loss", "bits per byte": "eval/bits_per_byte"}
LOSS_CLOCKS = {title: key for key, title in plots.CLOCKS}
SIZES = {"N = 12 L H²": "n_model"} | {title: key for key, title in plots.CLOCKS[1:]}
SHAPES = dict(
    zip(
        plots.MARKERS,
        ("circle", "square", "triangle-up", "diamond", "M-1,-1L1,1M1,-1L-1,1", "triangle-down",
         "cross", "triangle-left", "triangle-right"),
        strict=True,
    )
)  # fmt: skip
WIDTH, HEIGHT = 720, 360
APART = 6  # pixels between systems, so that no error bar hides another


def draw_losses(study: Study) -> alt.Chart | None:
    """Returns validation loss against a chosen clock; None without any validation."""
    rows = []
    for point in study.points:
        for run in point.runs:
            for length, lines in run.curves.items():
                step = math.ceil(len(lines) / MAX_POINTS)
                kept = lines[::step] + ([] if (len(lines) - 1) % step == 0 else lines[-1:])
                for line in kept:
                    keys = (*LOSS_CLOCKS.values(), *MEASURES.values())
                    values = {key.replace("/", "_"): _short(line.get(key)) for key in keys}
                    rows.append({"run": point.label, "seed": run.seed, "length": length} | values)
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    lengths = sorted(int(length) for length in frame["length"].unique())
    measures = {t: k.replace("/", "_") for t, k in MEASURES.items()}
    measures = {t: k for t, k in measures.items() if frame[k].notna().any()}
    x, y = _choice("clock", LOSS_CLOCKS), _choice("measure", measures)
    length = _choice("length", {str(n): n for n in lengths})
    labels = [point.label for point in study.points if point.label in set(frame["run"])]
    styles = [plots.style([p.label for p in study.points].index(label)) for label in labels]
    dashes = alt.Scale(domain=labels, range=[list(s.dash) or [1, 0] for s in styles])
    look = _look("run", labels, styles)
    look["strokeDash"] = alt.StrokeDash("run:N", title=None, scale=dashes)
    tooltip = ["run:N", "seed:Q", *(f"{k}:Q" for k in (*measures.values(), *LOSS_CLOCKS.values()))]
    base = (
        _base(frame, x, y)
        .transform_filter(alt.datum.length == length)
        .encode(**look, detail="seed:N", tooltip=tooltip)
    )
    legend = alt.selection_point(fields=["run"], bind="legend", name="shown")
    opacity = {"opacity": alt.condition(legend, alt.value(1), alt.value(0.06))}
    line = base.mark_line().encode(**opacity).add_params(x, y, length, legend)
    return _finish(alt.layer(line, base.mark_point(size=25).encode(**opacity)), x)


def draw_scores(study: Study, evidence: Evidence) -> alt.Chart | None:
    """Returns a chosen score with its interval against a chosen size or clock; None without any."""
    columns = [c for c in TASKS if any(evidence.value(p, c.key) for p in study.points)]
    rows = []
    for point in study.points:
        for column in columns:
            found = evidence.value(point, column.key)
            if found is None:
                continue
            sizes = {key: _short(point.mean(key)) for key in list(SIZES.values())[1:]}
            ends = {k: _short(100 * getattr(found, k)) for k in ("value", "low", "high")}
            rows.append({"system": point.system, "net": point.label, "score": column.title}
                        | {"n_model": point.shape.n_model} | sizes | ends)  # fmt: skip
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    systems = [
        s for s in dict.fromkeys(p.system for p in study.points) if s in set(frame["system"])
    ]
    styles = [plots.style(i) for i in range(len(systems))]
    x, score = _choice("size", SIZES), _choice("score", {c.title: c.title for c in columns})
    look = _look("system", systems, styles)
    base = (
        alt.Chart(frame)
        .transform_filter(alt.datum.score == score)
        .transform_calculate(x=f"datum[{x.name}]")
        .transform_filter("isValid(datum.x) && datum.x > 0")
        .encode(
            x=alt.X("x:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=30),
                    axis=alt.Axis(format="~s")),
            color=look["color"],
            tooltip=["net:N", "score:N", "value:Q", "low:Q", "high:Q",
                     *(f"{key}:Q" for key in SIZES.values())],
        )
    )  # fmt: skip
    y = alt.Y("value:Q", scale=alt.Scale(zero=False), title="score x 100")
    layers = []
    for place, system in enumerate(systems):
        own = base.transform_filter(alt.datum.system == system)
        aside = APART * (place - (len(systems) - 1) / 2)
        layers.append(
            own.mark_rule(xOffset=aside).encode(y=alt.Y("low:Q", title="score x 100"), y2="high:Q")
        )
        # The rule has no shape: Vega-Lite would draw a point at its lower end.
        points = own.mark_point(xOffset=aside, filled=True, size=70)
        layers.append(points.encode(y=y, shape=look["shape"]))
    layers[0] = layers[0].add_params(x, score)
    return _finish(alt.layer(*layers), x)


@functools.cache
def library() -> str:
    """Returns the JavaScript that draws the charts, so that a page needs no network."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()
    assert "</script" not in bundle and "<!--" not in bundle  # these would end its element
    return bundle


def describe_losses(study: Study) -> str:
    """Returns the note below the losses."""
    kinds = {notes.loss_kind(point) for point in study.points}
    return "A line is a run; runs that differ only in their seed look the same." + (
        f" {notes.LOSSES}" if len(kinds) > 1 else ""
    )


def _base(frame: pd.DataFrame, x: alt.Parameter, y: alt.Parameter) -> alt.Chart:
    """A chart of two chosen columns."""
    return (
        alt.Chart(frame)
        .transform_calculate(x=f"datum[{x.name}]", y=f"datum[{y.name}]")
        .transform_filter("isValid(datum.x) && isValid(datum.y)")
        .encode(
            x=alt.X("x:Q", title=None, axis=alt.Axis(format="~s")),
            y=alt.Y("y:Q", title=None, scale=alt.Scale(zero=False)),
            order="x:Q",
        )
    )


def _choice(name: str, options: dict[str, object]) -> alt.Parameter:
    """A parameter that the reader chooses from a list; the first option to begin with."""
    values = list(options.values())
    bind = alt.binding_select(options=values, labels=list(options), name=f"{name} ")
    return alt.param(name=name, value=values[0], bind=bind)


def _look(field: str, names: Sequence[str], styles: Sequence[plots.Style]) -> dict[str, object]:
    """Colours and markers of lines, as in the figures."""
    colors = alt.Scale(domain=names, range=[style.color for style in styles])
    shapes = alt.Scale(domain=names, range=[SHAPES[style.marker] for style in styles])
    return {
        "color": alt.Color(f"{field}:N", title=None, scale=colors),
        "shape": alt.Shape(f"{field}:N", title=None, scale=shapes),
    }


def _finish(chart: alt.LayerChart, x: alt.Parameter) -> alt.LayerChart:
    return chart.properties(width=WIDTH, height=HEIGHT).configure_legend(labelLimit=400)


def _short(value: float | None) -> float | None:
    """Rounds a number, because a page holds many; None where JSON has no such number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
