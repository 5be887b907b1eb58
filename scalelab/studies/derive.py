"""Shapes that come out of the results of an earlier stage: compound scaling (protocol, 7.5.5)."""

from collections.abc import Sequence

from scalelab.config.pretraining import Shape
from scalelab.lab.compare import base_shape, shape_rules
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import PretrainRun


class Damaged(ValueError):
    """A run that a shape would be scaled from is damaged."""


def scaled(
    runs: Sequence[tuple[Shape, PretrainRun]], step: float, tasks: Sequence[str], num_seeds: int
) -> Shape | None:
    """The shape that compound scaling gives from the best of some shapes.

    Best is, among the three of the least mean validation loss, the one with the best mean
    fine-tuned score; the least loss where nothing was fine-tuned.

    Args:
      runs: finished or not.
      step: how much larger phi becomes: 1 doubles the size.
      tasks: what the best shapes are fine-tuned on; none: the least loss wins.
      num_seeds: of each task.

    Returns:
      The shape; None as long as runs or their fine-tunings are not finished.

    Raises:
      Damaged: a run has another config than planned.
    """
    grid: dict[Shape, list[PretrainRun]] = {}
    for shape, run in runs:
        grid.setdefault(shape, []).append(run)
    best = base_shape.candidates(grid, tasks, num_seeds)
    if not best:
        return None
    for _, run in runs:
        if why := study_runs.differs_from_plan(run):
            raise Damaged(
                f"no shape is scaled from {run.folder}: {why}; move it away and run the study again"
            )
    scaling = shape_rules.Scaling(base_shape.choose(grid, tasks, best))
    return scaling.at(scaling.phi + step)


def foreseen(shapes: Sequence[Shape], step: float) -> Shape:
    """A shape of the size that `scaled` will give: what the middle one of the shapes would."""
    middle = sorted(set(shapes), key=lambda s: (s.n_model, s.num_layers))[len(set(shapes)) // 2]
    scaling = shape_rules.Scaling(middle)
    return scaling.at(scaling.phi + step)
