"""Figures of a study, as PNG, SVG and PDF.

  differences     every claim of the report with its 95% interval
  score_by_cost   the primary score against the training FLOPs of a run
  loss_by_time, loss_by_steps, loss_by_tokens, loss_by_flops   validation loss against a clock
  loss_by_parameters   final validation loss against the size N

Losses of one kind have a row of panels, with a column for each length. A thin line is a run, a bold
one the mean over its seeds. Color is the system, shade the size or variant. In a study whose
primary score is bits per byte, these figures draw bits per byte, if all its runs have them.
"""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scalelab.config.durations import CLOCKS, Clock
from scalelab.eval.score_names import PRETRAINING_SCORES, title_of
from scalelab.helpers.names import check_names
from scalelab.lab.compare import comparability
from scalelab.lab.compare.claims import CONFIRMED, REFUTED, Claim, Finding, Region
from scalelab.lab.compare.estimates import with_bars
from scalelab.lab.compare.scores import Scores
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load.study_runs import Row, Study
from scalelab.lab.show.answer import cost
from scalelab.lab.show.score_tables import TableRequest
from scalelab.records import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MakeFigure = Callable[[Study, StudyScores, Scores | None], "Figure | None"]
AXES = {"time" if name == "secs" else name: clock for name, clock in CLOCKS.items()}
CAPTIONS = {
    **{
        f"loss_by_{name}": f"Validation loss by {name}. Thin lines are seeds, bold lines their"
        " means."
        for name in AXES
    },
    "differences": "Every test of the report: difference with its interval, at the level of the"
    " corrected test. Green: confirmed; orange: refuted; gray: undecided or not testable.",
    "score_by_cost": "Primary score with its 95% interval against the training FLOPs of a run."
    " Small dots: seeds. Color: system; shade: size or variant. Rows stand slightly apart.",
    "loss_by_parameters": "Final validation loss against the size N (parameters without"
    " embeddings), of each system's best row at each size. Small dots: seeds.",
}
LABELS = {"loss": "loss (nats)", "bits_per_byte": "bits per byte"}
LIGHTEST = 0.7  # share of white that a shade of a color may have
ALWAYS = ("loss_by_tokens",)  # drawn even if the study does not ask for it
REMOVED = ("score_by_task", "score_by_value")  # asked for by older studies; tables have the numbers
MOST_CLAIMS = 30  # drawn
LONGEST = 80  # characters of a claim's label
SPREAD = 1.5  # factor of cost at most over which rows of equal cost stand side by side
COLORS = {CONFIRMED: "#009E73", REFUTED: "#D55E00"}


def draw(request: TableRequest, makers: Mapping[str, MakeFigure]) -> "dict[str, Figure | None]":
    """Draws the figures that a study asks for, and ALWAYS, by name; None: nothing to show.

    Raises:
      ValueError: an unknown figure.
    """
    names = dict.fromkeys((*request.study.facts.figures, *ALWAYS))
    check_names(names, [*makers, *REMOVED], "the study asks for an unknown figure")
    given = request.study, request.scores, request.published
    return {name: makers[name](*given) for name in names if name in makers}


def save(drawn: "Mapping[str, Figure | None]", folder: pathlib.Path) -> list[str]:
    """Writes figures by name as PNG, SVG and PDF; returns the names of those that show."""
    shown = {name: figure for name, figure in drawn.items() if figure is not None}
    for name, figure in shown.items():
        for ending in ("png", "svg", "pdf"):
            plots.save(figure, folder / f"{name}.{ending}")
    return [*shown]


def row_styles(points: Sequence[Row]) -> dict[Row, dict[str, Any]]:
    """Returns the look of every row of a study: color by system, shade by size and variant.

    Markers and dashes differ between rows, so that no row is identified by its color alone.
    """
    systems: dict[str, list[Row]] = {}
    for point in points:
        systems.setdefault(point.system, []).append(point)
    from matplotlib import colors

    found: dict[Row, dict[str, Any]] = {}
    # A color comes twice only if more systems have runs than there are colors.
    by_runs = sorted(systems.values(), key=lambda own: not any(p.finished for p in own))
    for k, own in enumerate(by_runs):
        full = colors.to_rgb(plots.COLORS[k % len(plots.COLORS)])
        for place, point in enumerate(own):
            red, green, blue = (x + (1 - x) * LIGHTEST * place / len(own) for x in full)
            found[point] = plots.style(len(found), color=colors.to_hex((red, green, blue)))
    return found


def draw_differences(findings: Sequence[Finding]) -> "Figure | None":
    """Draws the effect of every claim with its interval; None if no claim has one."""
    found: dict[tuple[str, Region], Claim] = {}  # a claim of two findings is drawn once
    for finding in findings:
        for claim in finding.claims:
            if claim.estimate is not None:
                found.setdefault((claim.what, claim.region), claim)
    claims = list(found.values())[:MOST_CLAIMS]
    units = [unit for unit in (100.0, 1.0) if any(c.scale == unit for c in claims)]
    if not claims:
        return None
    sizes = [sum(c.scale == unit for c in claims) for unit in units]
    figure = plots.canvas(9.5, 0.8 * len(units) + 0.3 * len(claims))
    panels = figure.subplots(len(units), 1, squeeze=False, height_ratios=[n + 1 for n in sizes])
    for axis, unit in zip(panels[:, 0], units, strict=True):
        own = [claim for claim in claims if claim.scale == unit]
        for place, claim in enumerate(own):
            assert claim.estimate is not None
            value, low, high = (unit * x for x in (claim.estimate.value, *claim.ends))
            color = COLORS.get(claim.verdict, "#767676")
            axis.plot([low, high], [place, place], color=color, lw=2, solid_capstyle="butt")
            axis.plot([value], [place], color=color, marker="o", ms=6)
        names = [c.what if len(c.what) <= LONGEST else f"{c.what[:LONGEST]}..." for c in own]
        axis.set_yticks(range(len(own)), names)
        axis.set_ylim(len(own) - 0.5, -0.5)
        axis.axvline(0, color="black", lw=1)
        axis.set_xlabel("points (scores x 100)" if unit == 100 else "nats, seconds or as named")
        axis.grid(alpha=0.3, axis="x")
    return figure


def draw_cost(scores: StudyScores, score: str) -> "Figure | None":
    """Draws the primary score of every row against its training FLOPs; None without two rows."""
    known = {p: x for p in scores.rows if (x := scores.value(p, score))}
    if len(known) < 2:
        return None
    scale, looks = 1 if score in PRETRAINING_SCORES else 100, row_styles(scores.rows)
    figure = plots.canvas(7.5, max(4.2, 0.2 * len(known) + 0.4))  # a legend line is 0.2 inches
    axis = figure.subplots()
    apart = min(1.06, SPREAD ** (1 / len(known)))
    for k, (point, value) in enumerate(known.items()):
        look: dict[str, Any] = looks[point] | {"linestyle": "none", "capsize": 3, "ms": 7}
        means, bars = with_bars([value], scale)
        x = cost(point, "flops") * apart ** (k - (len(known) - 1) / 2)
        axis.errorbar([x], means, yerr=bars, label=point.label, **look)
        dot: dict[str, Any] = {"color": look["color"], "marker": ".", "ms": 5, "ls": "none"}
        seeds = scores.by_seed(point, score)
        axis.plot([x * apart**0.4] * len(seeds), [scale * number for number in seeds], **dot)
    floor = scores.floor(score) if scale == 100 else None
    if floor is not None:
        axis.axhline(scale * floor, color="black", lw=1, ls=(0, (4, 2)), label="trivial score")
    plots.label_clock(axis, "training FLOPs of a run", log=True)
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, high / 4), max(high, 4 * low))  # equal costs stand in the middle
    axis.set_ylabel(title_of(score) + (" x 100" if scale == 100 else " (nats)" * (score == "loss")))
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure


def draw_losses(study: Study, *_: object, clock: Clock) -> "Figure | None":
    """Draws validation loss against a clock of metrics.jsonl; None if no run has one yet."""
    points = [point for point in study.points if any(run.curves for run in point.runs)]
    if not points:
        return None
    score = _loss_score(study)
    groups = _group_losses(points, score)
    looks = row_styles(study.points)
    lengths = sorted({length for p in points for run in p.runs for length in run.curves})
    differing = comparability.differing_losses(points, score)
    names = [sorted({point.system for point in own}) for own in groups]
    heights = [max(3.2, 0.4 + 0.2 * len(own)) for own in groups]  # a legend line is 0.2 inches
    figure = plots.canvas(3.4 + 4.4 * len(lengths), 0.6 + sum(heights))
    panels = figure.subplots(len(groups), len(lengths), squeeze=False, height_ratios=heights)
    for row, own in zip(panels, groups, strict=True):
        fields = comparability.loss_fields(own[0].runs[0].config)
        named = [  # a path is long: only its last part
            f"{name.rpartition('.')[2]} {str(fields[name]).rpartition('/')[2]}"
            for name in differing
            if name in fields
        ]
        systems = sorted({point.system for point in own})
        title = ", ".join([*systems, *(named[:2] if names.count(systems) > 1 else [])])
        for axis, length in zip(row, lengths, strict=True):
            for point in own:
                curves = [run.curves[length] for run in point.runs if length in run.curves]
                seeds = [
                    np.array([[x.get(key, math.nan) for key in (clock.logged, f"eval/{score}")]
                              for x in lines]).T
                    for lines in curves
                ]  # fmt: skip
                _draw_seeds(axis, seeds, f"{point.label}, N {point.n_model:,}", looks[point])
            axis.set_title(f"{title}, length {length}", fontsize="medium")
            plots.label_clock(axis, clock.label)
            if any(len(line.get_xdata()) for line in axis.get_lines()):
                start, end = axis.dataLim.intervalx
                axis.set_xlim(left=0 if start < end / 2 else None)
            else:  # no run of these systems has this length
                axis.set_axis_off()
                axis.set_title("")
        row[0].set_ylabel(f"validation {LABELS[score]}")
        # Beside the panels, where it covers no line.
        shown = {}  # label -> line; a system of one phase has curves of one length
        for axis in row:
            handles, labels = axis.get_legend_handles_labels()
            shown |= dict(zip(labels, handles, strict=True))
        row[-1].legend(shown.values(), shown, frameon=False, fontsize="small",
                       loc="center left", bbox_to_anchor=(1, 0.5))  # fmt: skip
    return figure


def captions(study: Study) -> dict[str, str]:
    """Returns the captions of the figures; those of losses name what the study's figures draw."""
    drawn = _loss_score(study).replace("_", " ")
    return {
        name: text.replace("alidation loss", f"alidation {drawn}")
        for name, text in CAPTIONS.items()
    }


def _loss_score(study: Study) -> str:
    """Returns what figures of losses draw: bits per byte if they are primary, else "loss"."""
    lines = [line for run in study.runs for own in run.curves.values() for line in own]
    everywhere = all("eval/bits_per_byte" in line for line in lines)
    return "bits_per_byte" if study.facts.primary == "bits_per_byte" and everywhere else "loss"


def _group_losses(points: Sequence[Row], score: str) -> list[list[Row]]:
    """Returns rows whose losses compare, but for their length, in groups."""
    apart = comparability.loss_apart
    return comparability.group_alike(
        points, lambda a, b: not apart(a.runs[0].config, b.runs[0].config, score)
    )


def draw_parameters(study: Study, scores: StudyScores, *_: object) -> "Figure | None":
    """Draws the final loss of each system's best row against N; None if no system has two sizes.

    Losses that do not compare, also for their length, have panels of their own.
    """
    score = _loss_score(study)
    known = {p: x for p in study.points if p.finished and (x := scores.value(p, score))}
    panels: list[dict[str, dict[int, Row]]] = []  # system -> N -> its row with the lowest loss
    for group in _group_losses([*known], score):
        by_length: dict[int, dict[str, dict[int, Row]]] = {}
        for point in sorted(group, key=lambda p: (p.n_model, -known[p].value)):
            best = by_length.setdefault(comparability.loss_kind(point)["length"], {})
            best.setdefault(point.system, {})[point.n_model] = point
        panels += by_length.values()
    if all(len(own) < 2 for best in panels for own in best.values()):
        return None
    figure = plots.canvas(7.5, 0.6 + 3.6 * len(panels))
    systems = {system: [*own.values()][0] for best in panels for system, own in best.items()}
    looks = row_styles([*systems.values()])
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, best in zip(axes, panels, strict=True):
        for system, own in best.items():
            look: dict[str, Any] = looks[systems[system]] | {"capsize": 3, "ms": 6}
            means, bars = with_bars([known[point] for point in own.values()], 1)
            if 0 in own:  # counts, which have no place on a logarithmic axis
                axis.axhline(means[0], label=f"{system}, N 0", color=look["color"], ls=(0, (4, 2)))
                continue
            axis.errorbar([*own], means, yerr=bars, label=system, **look)
            dot: dict[str, Any] = {"color": look["color"], "marker": ".", "ms": 4, "ls": "none"}
            for size, point in own.items():
                seeds = scores.by_seed(point, score)
                axis.plot([size] * len(seeds), seeds, **dot)
        plots.label_clock(axis, "N (parameters without embeddings)", log=True)
        axis.set_ylabel(f"validation {LABELS[score]}")
        axis.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
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


FIGURES: dict[str, MakeFigure] = {
    **{f"loss_by_{k}": functools.partial(draw_losses, clock=v) for k, v in AXES.items()},
    "loss_by_parameters": draw_parameters,
}
