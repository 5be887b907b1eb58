"""The figures of a study, as PNG and SVG, in the style of the benchmark protocol's own.

  score_by_size   GLUE-Large against N                                    (7.1, 7.2; size_figure.py)
  score_by_task   every task by itself, beside the best constant answer   (task_figure.py)
  loss_by_time    validation loss against seconds of training             (7.3, B.1)
  loss_by_steps, loss_by_tokens, loss_by_flops   against the other clocks (7.4)

Losses have a row of panels for each system, objective and format, since others do not compare, and
a column for each length; a line is a run, and runs that differ in their seed alone look the same.
"""

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

from scalelab.helpers.names import nearest
from scalelab.lab import curves, palette
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.reading import losses as losses_of
from scalelab.lab.reading.study_runs import Point, PretrainRun, Study
from scalelab.lab.reports import study_notes, task_figure
from scalelab.thesis import protocol, size_figure

CLOCKS = {"time": "seconds", "steps": "step", "tokens": "tokens", "flops": "flops"}
FIGURES = ("score_by_size", "score_by_task", *(f"loss_by_{name}" for name in CLOCKS))
FORMATS = ("png", "svg")


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
            figure = size_figure.draw(study, evidence, beside)
        elif name == "score_by_task":
            figure = task_figure.draw(study, evidence)
        else:
            figure = loss_by_clock(study, CLOCKS[name.removeprefix("loss_by_")])
        if figure is not None:
            drawn.append(name)
            for ending in FORMATS:
                palette.save(figure, folder / f"{name}.{ending}", dpi=palette.RESOLUTION)
    return drawn


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
