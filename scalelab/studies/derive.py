"""Shapes that come out of the results of an earlier stage: compound scaling (protocol, 7.5.5)."""

import pathlib
from collections.abc import Sequence

import numpy as np

from scalelab.lab import shape_rules
from scalelab.lab.reading import finetune_check, study_runs
from scalelab.lab.reading.study_runs import PretrainRun, Shape

LARGE = ("mnli", "qqp", "qnli")


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
      Damaged: the files of a run, or of a fine-tuning that counts, say different things.
    """
    shapes: dict[Shape, list[PretrainRun]] = {}
    for shape, run in runs:
        shapes.setdefault(shape, []).append(run)
    losses: dict[Shape, float] = {}
    for shape, ours in shapes.items():
        values = [run.loss for run in ours if run.loss is not None]
        if len(values) < len(ours):
            return None
        losses[shape] = float(np.mean(values))
    if not losses:
        return None
    best = sorted(losses, key=losses.__getitem__)[: shape_rules.NUM_BEST]
    chosen = [run for shape in best for run in shapes[shape]]
    if not all(_tuned(run, tasks, num_seeds) for run in chosen):
        return None
    for _, run in runs:
        _refuse(run.folder, study_runs.contradictions(run))
    scores: dict[Shape, float] = {}
    if tasks:
        for run in chosen:
            for one in (one for task in tasks for one in run.tasks[task].finished):
                _refuse(one.folder, finetune_check.of_run(one))
        scores = {shape: _score(shapes[shape]) for shape in best}
    scaling = shape_rules.Scaling(shape_rules.choose(losses, scores)[0])
    return scaling.at(scaling.phi + step)


def _refuse(folder: pathlib.Path, problems: Sequence[str]) -> None:
    if problems:
        raise Damaged(
            f"no shape is scaled from {folder}, which is damaged: {'; '.join(problems)}; move it"
            " away and run the study again"
        )


def foreseen(shapes: Sequence[Shape], step: float) -> Shape:
    """A shape of the size that `scaled` will give: what the middle one of the shapes would."""
    middle = sorted(set(shapes), key=lambda s: (s.n_model, s.num_layers))[len(set(shapes)) // 2]
    scaling = shape_rules.Scaling(middle)
    return scaling.at(scaling.phi + step)


def _tuned(run: PretrainRun, tasks: Sequence[str], num_seeds: int) -> bool:
    """Whether all fine-tunings of a run have ended."""
    return all(
        task in run.tasks and sum(not r.unfinished for r in run.tasks[task].runs) >= num_seeds
        for task in tasks
    )


def _score(runs: Sequence[PretrainRun]) -> float:
    """Mean over runs of the mean main score of GLUE-Large's tasks, or of all if none is there."""
    found = [-np.inf]
    for run in runs:
        own = {name: task for name, task in run.tasks.items() if task.finished}
        for name in set(LARGE) & own.keys() or own.keys():
            found.append(float(np.mean(own[name].values(own[name].keys[0]))))
    return float(np.mean(found[1:] or found))
