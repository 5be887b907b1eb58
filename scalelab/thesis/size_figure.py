"""GLUE-Large against N in panels of width, depth, several dimensions and variants.

In the style of the thesis' Figures 7.1 and 7.2. A row that belongs to no line has its shape beside
it; such rows of equal size, as the grid of section 7.5.5, stand slightly apart.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from scalelab.lab.compare import shape_rules
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.load.study_runs import BASELINE, Point, Study
from scalelab.lab.show import plots, score_tables

PUBLISHED = "published"
SCORE = "large"
APART, ALONE_APART = 1.04, 1.08  # factors of N between neighbours of one size
RANGE = 4  # an axis of N spans such a factor at least


def draw(study: Study, evidence: Evidence, published: Evidence | None = None) -> Any | None:
    """Draws GLUE-Large against N with error bars; None if nothing is scored.

    Args:
      study: what is compared.
      evidence: its scores.
      published: drawn beside ours.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    scored = [p for p in study.points if evidence.value(p, SCORE)]
    shapes = {v: {p.shape for p in scored if p.variant == v} for v in {p.variant for p in scored}}
    panels = panels_of([p for p in scored if p.variant == BASELINE or len(shapes[p.variant]) > 1])
    if not panels:
        return None
    systems = list(dict.fromkeys(p.system for p in study.points))
    figure = plots.canvas(1.2 + 3.9 * len(panels), 3.8)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels, strict=True):
        alone = [line[0] for line in lines if len(line) == 1]
        for line in lines:
            place = systems.index(line[0].system)
            aside = APART ** (place - (len(systems) - 1) / 2)
            if len(line) == 1:
                aside = _among(line[0], alone)
            _draw_line(axis, line, evidence, aside, plots.style(place))
            _draw_published(axis, line, published, plots.style(place))
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_minor_formatter(NullFormatter())
        left, right = axis.get_xlim()
        more = max(1.0, RANGE * left / right) ** 0.5
        axis.set_xlim(left / more, right * more)
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel("N = 12 L H²")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("GLUE-Large")
    _legend(figure, axes)
    return figure


def _among(point: Point, alone: Sequence[Point]) -> float:
    """Returns the factor of N that sets a single row apart from others of its size."""

    def as_large(other: Point) -> bool:
        sizes = sorted((other.shape.n_model, point.shape.n_model))
        return sizes[1] <= shape_rules.EQUAL * sizes[0]

    near = [other for other in alone if as_large(other)]
    return ALONE_APART ** (near.index(point) - (len(near) - 1) / 2)


def _draw_line(
    axis: Any, line: Sequence[Point], evidence: Evidence, aside: float, style: plots.Style
) -> None:
    """Draws a line's scores with their intervals; a single row has its shape beside it."""
    found = [(p.shape.n_model * aside, evidence.value(p, SCORE)) for p in line]
    known = [(size, estimate) for size, estimate in found if estimate]
    sizes, values = [size for size, _ in known], [100 * e.value for _, e in known]
    bars = [[100 * (e.value - e.low) for _, e in known],
            [100 * (e.high - e.value) for _, e in known]]  # fmt: skip
    joined = {} if len(line) > 1 else {"linestyle": "none"}
    axis.errorbar(
        sizes, values, yerr=bars, label=line[0].system, capsize=3, ms=6, lw=1.5,
        **style.plot(**joined),
    )  # fmt: skip
    if len(line) == 1:
        axis.annotate(
            str(line[0].shape), (sizes[0], values[0]), xytext=(3, 0), textcoords="offset points",
            rotation=90, fontsize="x-small", va="center",
        )  # fmt: skip


def panels_of(points: Sequence[Point]) -> list[tuple[str, list[list[Point]]]]:
    """Sorts rows into lines: of one system, and of shapes that differ in width or depth alone.

    Returns:
      ("width", lines), ("depth", lines) and, for the baseline's rows that are in neither, ("other
      shapes", lines): of rows that grow in both, or of one row; and each other variant with its
      rows, one by one. Panels without lines are left out.
    """
    variants = [(v, [[p] for p in points if p.variant == v])
                for v in dict.fromkeys(p.variant for p in points) if v != BASELINE]  # fmt: skip
    points = [p for p in points if p.variant == BASELINE]
    width = _lines(points, lambda p: (p.system, p.shape.num_heads, p.shape.num_layers))
    depth = _lines(points, lambda p: (p.system, p.shape.num_heads, p.shape.width))
    placed = {id(p) for line in width + depth for p in line}
    others: dict[Any, list[Point]] = {}
    for point in sorted(points, key=lambda p: p.shape.n_model):
        if id(point) not in placed:
            others.setdefault((point.system, point.shape.num_heads), []).append(point)
    both = [line for of in others.values() for line in ([of] if _rises(of) else [[p] for p in of])]
    rest = "other shapes" if width or depth else "all shapes"
    panels = [("width", width), ("depth", depth), (rest, both), *variants]
    return [(title, lines) for title, lines in panels if lines]


def _rises(points: Sequence[Point]) -> bool:
    """Returns whether each point is wider and deeper than the one before it."""
    shapes = [p.shape for p in points]
    return all(
        a.width < b.width and a.num_layers < b.num_layers for a, b in itertools.pairwise(shapes)
    )


def _lines(points: Sequence[Point], key: Any) -> list[list[Point]]:
    """Returns groups of at least two points that share a key, by size."""
    groups: dict[Any, list[Point]] = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    return [sorted(g, key=lambda p: p.shape.n_model) for g in groups.values() if len(g) > 1]


def _draw_published(
    axis: Any, line: Sequence[Point], published: Evidence | None, style: plots.Style
) -> None:
    """Draws published scores as hollow markers on a thin line."""
    theirs = [(p.shape.n_model, score_tables.find_published(published, p, SCORE)) for p in line]
    known = [(size, 100 * score) for size, score in theirs if score is not None]
    if known:
        look = style.plot(linestyle=":", markerfacecolor="white", lw=0.8, ms=6)
        axis.plot(*zip(*known, strict=True), label=f"{line[0].system}, {PUBLISHED}", **look)


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """Draws one legend below all panels; duplicate labels appear once."""
    known = dict(_handles(axes))
    figure.legend(
        list(known.values()), list(known), loc="outside lower center", ncols=4, frameon=False
    )


def _handles(axes: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        yield from zip(labels, handles, strict=True)
