"""Which shape of a grid compound scaling starts from (protocol, 7.5.5): by loss, then by score."""

from collections.abc import Mapping, Sequence

import numpy as np

from scalelab.lab import shape_rules
from scalelab.lab.reading.study_runs import PretrainRun, Shape

LARGE = ("mnli", "qqp", "qnli")
Grid = Mapping[Shape, Sequence[PretrainRun]]  # the runs of each shape, by seed


def losses(grid: Grid) -> dict[Shape, float]:
    """Mean validation loss of each shape; empty as long as one of their runs has none."""
    if any(run.loss is None for runs in grid.values() for run in runs):
        return {}
    known = {s: [run.loss for run in runs if run.loss is not None] for s, runs in grid.items()}
    return {shape: float(np.mean(values)) for shape, values in known.items()}


def looked_at(grid: Grid, tasks: Sequence[str], num_seeds: int) -> list[Shape]:
    """The three shapes of the least mean loss; none until all that decides among them has ended.

    Args:
      grid: runs, finished or not.
      tasks: what the best shapes are fine-tuned on; none: the least loss wins.
      num_seeds: of each task.
    """
    of_each = losses(grid)
    best = sorted(of_each, key=of_each.__getitem__)[: shape_rules.NUM_BEST]
    ended = all(_tuned(run, tasks, num_seeds) for shape in best for run in grid[shape])
    return best if ended else []


def choose(grid: Grid, tasks: Sequence[str], best: Sequence[Shape]) -> Shape:
    """Of the shapes looked at the one of the best mean score; the least loss where none has any.

    A score is the mean main score of GLUE-Large's tasks, or of all if none of them is there.
    """
    scores = {shape: _score(grid[shape]) for shape in best} if tasks else {}
    return shape_rules.choose(losses(grid), scores)[0]


def _tuned(run: PretrainRun, tasks: Sequence[str], num_seeds: int) -> bool:
    """Whether all fine-tunings of a run have ended."""
    return all(
        task in run.tasks and sum(not r.unfinished for r in run.tasks[task].runs) >= num_seeds
        for task in tasks
    )


def _score(runs: Sequence[PretrainRun]) -> float:
    found = [-np.inf]
    for run in runs:
        own = {name: task for name, task in run.tasks.items() if task.finished}
        for name in set(LARGE) & own.keys() or own.keys():
            found.append(float(np.mean(own[name].values(own[name].keys[0]))))
    return float(np.mean(found[1:] or found))
