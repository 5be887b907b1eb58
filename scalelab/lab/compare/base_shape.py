"""The base shape of compound scaling, chosen from a study's grid of one size (protocol, 7.5.5)."""

from collections.abc import Mapping, Sequence

import numpy as np

from scalelab.config.pretraining import Shape
from scalelab.lab.compare import shape_rules
from scalelab.lab.load.study_runs import Point, PretrainRun, Study

LARGE = ("mnli", "qqp", "qnli")
Grid = Mapping[Shape, Sequence[PretrainRun]]  # the runs of each shape, by seed


def losses(grid: Grid) -> dict[Shape, float]:
    """Returns the mean validation loss of each shape; empty while a run has none."""
    if any(run.loss is None for runs in grid.values() for run in runs):
        return {}
    known = {s: [run.loss for run in runs if run.loss is not None] for s, runs in grid.items()}
    return {shape: float(np.mean(values)) for shape, values in known.items()}


def candidates(grid: Grid, tasks: Sequence[str], num_seeds: int) -> list[Shape]:
    """Returns the three shapes of least mean loss; empty until their runs have ended.

    Args:
      grid: runs, finished or not.
      tasks: that the best shapes are fine-tuned on; empty: the least loss wins.
      num_seeds: of each task.
    """
    by_shape = losses(grid)
    best = sorted(by_shape, key=by_shape.__getitem__)[: shape_rules.NUM_BEST]
    ended = all(_is_tuned(run, tasks, num_seeds) for shape in best for run in grid[shape])
    return best if ended else []


def choose(grid: Grid, tasks: Sequence[str], best: Sequence[Shape]) -> Shape:
    """Returns the candidate of best mean score, or of least loss if none has a score.

    A score is the mean main score of GLUE-Large's tasks, or of all tasks if none of them is there.
    """
    scores = {shape: _mean_score(grid[shape]) for shape in best} if tasks else {}
    return shape_rules.choose(losses(grid), scores)[0]


def describe(study: Study, points: Sequence[Point]) -> list[str]:
    """Returns base, alpha and beta of each grid of one size among the rows of a table."""
    found, facts = [], study.facts
    for system, variant in dict.fromkeys((p.system, p.variant) for p in points):
        own = [p for p in points if (p.system, p.variant) == (system, variant)]
        grid = {p.shape: p.runs for p in own}
        sizes = [shape.n_model for shape in grid]
        if len(grid) < shape_rules.NUM_BEST or max(sizes) > shape_rules.EQUAL * min(sizes):
            continue
        ended = all(p.finished == p.runs for p in own)
        best = candidates(grid, facts["tasks"], facts["finetune_seeds"]) if ended else []
        if best:
            base = choose(grid, facts["tasks"], best)
            scaling = shape_rules.Scaling(base)
            reason = "best mean score" if facts["tasks"] else "least loss"
            found.append(
                f"Compound scaling of {system} starts from {base}, the {reason} among the shapes of"
                f" least mean loss ({', '.join(map(str, best))}); the differences may be small."
                f" phi = log2(L H^2) = {scaling.phi:.3f}, alpha = L^(1/phi) = {scaling.alpha:.4f},"
                f" beta = H^(1/phi) = {scaling.beta:.4f}. One step of phi up is"
                f" {scaling.at(scaling.phi + 1)}."
            )
    return found


def _is_tuned(run: PretrainRun, tasks: Sequence[str], num_seeds: int) -> bool:
    """Whether all fine-tunings of a run have ended."""
    return all(
        task in run.tasks and sum(not r.unfinished for r in run.tasks[task].runs) >= num_seeds
        for task in tasks
    )


def _mean_score(runs: Sequence[PretrainRun]) -> float:
    found = []
    for run in runs:
        own = {name: task for name, task in run.tasks.items() if task.finished}
        for name in set(LARGE) & own.keys() or own.keys():
            found.append(float(np.mean(own[name].values(own[name].keys[0]))))
    return float(np.mean(found)) if found else -np.inf
