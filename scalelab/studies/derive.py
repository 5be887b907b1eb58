"""Shapes that come out of the results of an earlier stage: compound scaling (protocol, 7.5.5)."""

from collections.abc import Sequence

import numpy as np

from scalelab.lab import compound
from scalelab.lab.study_runs import PretrainRun, Shape

NUM_BEST = 3  # shapes of the least loss, of which the best score wins (protocol, 7.5.5)
LARGE = (("mnli", "matched"), ("qqp", "dev"), ("qnli", "dev"))


def scaled(runs: Sequence[tuple[Shape, PretrainRun]], step: float) -> Shape | None:
    """The shape that compound scaling gives from the best of some shapes.

    Best is, among the three of the least mean validation loss, the one with the best mean
    fine-tuned score; the least loss where nothing was fine-tuned.

    Args:
      runs: finished or not.
      step: how much larger phi becomes: 1 doubles the size.

    Returns:
      The shape; None as long as runs or their fine-tunings are not finished.
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
    best = sorted(losses, key=losses.__getitem__)[:NUM_BEST]
    scores = {shape: _score(shapes[shape]) for shape in best}
    known = {shape: score for shape, score in scores.items() if score is not None}
    if not known:
        chosen = best[0]
    elif len(known) < len(best):
        return None
    else:
        chosen = max(known, key=known.__getitem__)
    return Shape(*compound.scaled(chosen, step))


def _score(runs: Sequence[PretrainRun]) -> float | None:
    """Mean over runs and tasks of the main score: GLUE-Large's tasks, or all where none is there."""
    found = []
    for run in runs:
        own = {name: task for name, task in run.tasks.items() if task.finished}
        large = {name for name, _ in LARGE} & own.keys()
        for name in large or own.keys():
            found.append(float(np.mean(own[name].values(own[name].keys[0]))))
    return float(np.mean(found)) if found else None
