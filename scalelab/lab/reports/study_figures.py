"""The figures of a study, as PNG and SVG, in the style of the benchmark protocol's own.

  score_by_size   GLUE-Large against N, a panel for width, one for depth  (Figures 7.1, 7.2)
  score_by_task   every task by itself, beside the best constant answer   (task_figure.py)
  loss_by_time    validation loss against seconds of training             (7.3, B.1)
  loss_by_steps, loss_by_tokens, loss_by_flops   against the other clocks (7.4)

Losses have a row of panels for each system, objective and format, since others do not compare, and
a column for each length; a line is a run, and runs that differ in their seed alone look the same.
"""

import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from scalelab.lab import curves, palette
from scalelab.lab.contract import protocol
from scalelab.lab.evidence.evidence import Evidence
from scalelab.lab.reading import losses as losses_of
from scalelab.lab.reading.study_runs import BASELINE, Point, PretrainRun, Study
from scalelab.lab.reports import study_notes, study_tables, task_figure
from scalelab.names import nearest

CLOCKS = {"time": "seconds", "steps": "step", "tokens": "tokens", "flops": "flops"}
FIGURES = ("score_by_size", "score_by_task", *(f"loss_by_{name}" for name in CLOCKS))
FORMATS = ("png", "svg")
PUBLISHED = "published"


def write(
    study: Study, evidence: Evidence, folder: pathlib.Path, *, published: Evidence | None = None,
    footnotes: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Draws the figures that a study asks for.

    Args:
      study: what is compared.
      evidence: its scores.
      folder: gets <figure>.png and <figure>.svg.
      published: drawn beside ours, but where the study is not the protocol.
      footnotes: of the comparability contract.

    Returns:
      The names of those drawn; one that has nothing to show is left out.

    Raises:
      ValueError: an unknown figure.
    """
    beside = None if protocol.departures(study, footnotes) else published
    drawn = []
    for name in study.facts["figures"]:
        if name not in FIGURES:
            expected = nearest(name, FIGURES)
            raise ValueError(f"the study asks for an unknown figure {name!r}: {expected}")
        if name == "score_by_size":
            figure = score_by_size(study, evidence, beside)
        elif name == "score_by_task":
            figure = task_figure.draw(study, evidence)
        else:
            figure = loss_by_clock(study, CLOCKS[name.removeprefix("loss_by_")])
        if figure is not None:
            drawn.append(name)
            for ending in FORMATS:
                palette.save(figure, folder / f"{name}.{ending}", dpi=palette.RESOLUTION)
    return drawn


def score_by_size(
    study: Study, evidence: Evidence, published: Evidence | None = None, score: str = "large"
) -> Any | None:
    """GLUE-Large against N with error bars; None if nothing is scored."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    there = [p for p in study.points if p.variant == BASELINE and evidence.value(p, score)]
    panels = [(title, lines) for title, lines in panels_of(there) if lines]
    if not panels:
        return None
    systems = list(dict.fromkeys(p.system for p in study.points))
    figure = palette.canvas(1.2 + 3.9 * len(panels), 3.8)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels, strict=True):
        for line in lines:
            style = palette.style(systems.index(line[0].system))
            found = [evidence.value(p, score) for p in line]
            known = [(p.shape.n_model, e) for p, e in zip(line, found, strict=True) if e]
            # Apart by a little, so that no error bar hides another.
            aside = 1.04 ** (systems.index(line[0].system) - (len(systems) - 1) / 2)
            sizes, values = [aside * n for n, _ in known], [100 * e.value for _, e in known]
            bars = [[100 * (e.value - e.low) for _, e in known],
                    [100 * (e.high - e.value) for _, e in known]]  # fmt: skip
            joined = {} if len(line) > 1 else {"linestyle": "none"}
            axis.errorbar(
                sizes, values, yerr=bars, label=line[0].system, capsize=3, ms=6, lw=1.5,
                **style.plot(**joined),
            )  # fmt: skip
            _draw_published(axis, line, published, score, style)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel("N = 12 L H²")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("GLUE-Large")
    _legend(figure, axes)
    return figure


def panels_of(points: Sequence[Point]) -> list[tuple[str, list[list[Point]]]]:
    """Sorts points into lines: of one system, and of shapes that differ in width or depth alone.

    Returns:
      ("width", lines), ("depth", lines) and, for the points that are in neither, ("other shapes",
      lines): of points that grow in both, or of one point.
    """
    width = _lines(points, lambda p: (p.system, p.shape.num_heads, p.shape.num_layers))
    depth = _lines(points, lambda p: (p.system, p.shape.num_heads, p.shape.width))
    placed = {id(p) for line in width + depth for p in line}
    others: dict[Any, list[Point]] = {}
    for point in sorted(points, key=lambda p: p.shape.n_model):
        if id(point) not in placed:
            others.setdefault((point.system, point.shape.num_heads), []).append(point)
    both = [line for of in others.values() for line in ([of] if _rises(of) else [[p] for p in of])]
    return [("width", width), ("depth", depth), ("other shapes", both)]


def _rises(points: Sequence[Point]) -> bool:
    """Whether each point is wider and deeper than the one before it."""
    shapes = [p.shape for p in points]
    return all(
        a.width < b.width and a.num_layers < b.num_layers for a, b in itertools.pairwise(shapes)
    )


def loss_by_clock(study: Study, clock: str) -> Any | None:
    """Validation loss against a clock in metrics.jsonl; None if no run has one yet."""
    from matplotlib.ticker import EngFormatter

    found = {p: [(run, read_losses(run)) for run in p.runs] for p in study.points}
    found = {p: runs for p, runs in found.items() if any(losses for _, losses in runs)}
    if not found:
        return None
    rows = _comparable(list(found))
    lengths = sorted({n for runs in found.values() for _, losses in runs for n in losses})
    size = (3.4 + 4.4 * len(lengths), 0.6 + 3.2 * len(rows))
    figure = palette.canvas(*size)
    panels = figure.subplots(len(rows), len(lengths), squeeze=False)
    for row, column in itertools.product(range(len(rows)), range(len(lengths))):
        axis, (title, points), length = panels[row][column], rows[row], lengths[column]
        for place, point in enumerate(points):
            for seed, (_, losses) in enumerate(found[point]):
                lines = losses.get(length, [])
                name = point.label.removeprefix(f"{point.system} ")
                label = f"{name}, N {point.shape.n_model:,}"
                axis.plot(
                    [line[clock] for line in lines], [line["eval/loss"] for line in lines],
                    label=None if seed else label, ms=4, lw=1.2, markevery=max(1, len(lines) // 6),
                    **palette.style(place).plot(),
                )  # fmt: skip
        axis.set_title(f"{title}, length {length}", fontsize="medium")
        axis.set_xlabel(dict(curves.CLOCKS)[clock])
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.grid(alpha=0.3)
        if column == 0:
            axis.set_ylabel("validation loss (nats)")
        if column == len(lengths) - 1:  # beside the panels, where it covers no line
            axis.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def read_losses(run: PretrainRun) -> dict[int, list[dict[str, Any]]]:
    """Validations of a run, finished or not, by length; empty if there is none, or damaged."""
    return losses_of.of_run(run, [])


def _comparable(points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """Points whose losses compare, by system, and by objective and format if it has several."""
    groups: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        groups.setdefault((point.system, *study_notes.loss_kind(point)), []).append(point)
    systems = [key[0] for key in groups]
    return [
        (system if systems.count(system) == 1 else f"{system}, {objective} on {data_format}", of)
        for (system, objective, *_, data_format), of in groups.items()
    ]


def _lines(points: Sequence[Point], key: Any) -> list[list[Point]]:
    """Groups of at least two points that share a key, by size."""
    groups: dict[Any, list[Point]] = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    return [sorted(g, key=lambda p: p.shape.n_model) for g in groups.values() if len(g) > 1]


def _draw_published(
    axis: Any, line: Sequence[Point], published: Evidence | None, score: str, style: palette.Style
) -> None:
    """Hollow markers on a thin line."""
    theirs = [(p.shape.n_model, study_tables.beside_of(published, p, score)) for p in line]
    known = [(size, 100 * e.value) for size, e in theirs if e]
    if known:
        look = style.plot(linestyle=":", markerfacecolor="white", lw=0.8, ms=6)
        axis.plot(*zip(*known, strict=True), label=f"{line[0].system}, {PUBLISHED}", **look)


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """One legend below all panels; a name that several lines have is said once."""
    known = dict(_handles(axes))
    figure.legend(
        list(known.values()), list(known), loc="outside lower center", ncols=4, frameon=False
    )


def _handles(axes: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        yield from zip(labels, handles, strict=True)
