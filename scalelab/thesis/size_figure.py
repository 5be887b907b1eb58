"""GLUE-Large against N in panels of width, depth, several dimensions and variants.

The style is that of the thesis' Figures 7.1 and 7.2. A row outside all lines is labeled with its
shape. Such rows of equal size, as in the grid of section 7.5.5, are drawn slightly apart.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalelab.lab.compare.estimates import with_bars
from scalelab.lab.compare.scores import Scores
from scalelab.lab.load.study_runs import Row, Study
from scalelab.lab.show import score_tables
from scalelab.records import plots
from scalelab.records.study_file import DEFAULT
from scalelab.thesis import select

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORE = "large"
APART, SAME_SIZE_APART = 1.04, 1.08  # factors of N between points of one size
RANGE = 4  # an axis of N spans at least this factor


def draw(study: Study, scores: Scores, published: Scores | None = None) -> "Figure | None":
    """Draws GLUE-Large against N with error bars, published scores hollow; None without scores."""
    scored = [p for p in study.points if scores.value(p, SCORE)]
    by_variant = select.group(scored, lambda p: p.variant)
    several = {v for v, own in by_variant.items() if len({p.shape for p in own}) > 1}
    panels = group_panels([p for p in scored if p.variant in several | {DEFAULT}])
    if not panels:
        return None
    systems = list(dict.fromkeys(p.system for p in study.points))
    figure = plots.canvas(1.2 + 3.9 * len(panels), 3.8)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels, strict=True):
        for line in lines:
            system, place = line[0].system, systems.index(line[0].system)
            look = plots.style(place, ms=6, lw=1.5, label=system, capsize=3)
            aside = APART ** (place - (len(systems) - 1) / 2)
            if len(line) == 1:
                near = [own[0] for own in lines if len(own) == 1 and select.near(own[0], line[0])]
                aside = SAME_SIZE_APART ** (near.index(line[0]) - (len(near) - 1) / 2)
                look["linestyle"] = "none"
            sizes = [p.shape.n_model * aside for p in line]
            estimates = [scores.value(p, SCORE) for p in line]
            values, bars = with_bars([e for e in estimates if e])
            axis.errorbar(sizes, values, yerr=bars, **look)
            if len(line) == 1:
                axis.annotate(
                    str(line[0].shape), (sizes[0], values[0]), xytext=(3, 0), rotation=90,
                    textcoords="offset points", fontsize="x-small", va="center",
                )  # fmt: skip
            printed = [(p.shape.n_model, score_tables.find_published(published, p, SCORE))
                      for p in line]  # fmt: skip
            if known := [(size, 100 * score) for size, score in printed if score is not None]:
                hollow = {"linestyle": ":", "markerfacecolor": "white", "lw": 0.8, "ms": 6}
                label = f"{system}, published"
                axis.plot(*zip(*known, strict=True), **plots.style(place, label=label, **hollow))
        plots.label_clock(axis, "N = 12 L H²", log=True)
        left, right = axis.get_xlim()
        more = max(1.0, RANGE * left / right) ** 0.5
        axis.set_xlim(left / more, right * more)
        axis.set_title(title, fontsize="medium")
    axes[0].set_ylabel("GLUE-Large")
    known = {label: handle for axis in figure.axes for handle, label in
             zip(*axis.get_legend_handles_labels(), strict=True)}  # fmt: skip
    figure.legend(list(known.values()), list(known), loc="outside lower center",
                  ncols=4, frameon=False)  # fmt: skip
    return figure


def group_panels(points: Sequence[Row]) -> list[tuple[str, list[list[Row]]]]:
    """Sorts rows into panels and lines; a line is one system, with shapes growing in one dimension.

    Returns:
      Pairs (panel, lines): "width"; "depth"; "other shapes" with the default variant's other rows,
      which grow in both dimensions or are single; and a panel of single rows for each other
      variant. Panels without lines are left out.
    """
    size = lambda p: p.shape.n_model  # noqa: E731
    base = [p for p in points if p.variant == DEFAULT]
    width, depth = (
        [sorted(own, key=size) for own in select.group(base, key).values() if len(own) > 1]
        for key in (
            lambda p: (p.system, p.shape.num_heads, p.shape.num_layers),
            lambda p: (p.system, p.shape.num_heads, p.shape.width),
        )
    )
    placed = {point for line in width + depth for point in line}
    both = []
    unplaced = sorted((p for p in base if p not in placed), key=size)
    for own in select.group(unplaced, lambda p: (p.system, p.shape.num_heads)).values():
        rises = all(a.shape.width < b.shape.width and a.shape.num_layers < b.shape.num_layers
                    for a, b in itertools.pairwise(own))  # fmt: skip
        both += [own] if rises else [[p] for p in own]
    rest = "other shapes" if width or depth else "all shapes"
    found = {"width": width, "depth": depth, rest: both}
    for point in points:
        if point.variant != DEFAULT:
            found.setdefault(point.variant, []).append([point])
    return [(title, lines) for title, lines in found.items() if lines]
