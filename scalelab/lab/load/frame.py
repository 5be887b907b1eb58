"""The frame of scores: one line for each finished fine-tuning, dev split and metric.

  row            the row of a table: "bert 2x128x2", or a side of a comparison
  run, seed      the pre-training and its seed
  task, split, metric, finetune_seed
  score          as result.json has it, a fraction
  recipe         of the fine-tuning
  tuning         the fine-tuning itself, which reads its predictions once

Tables, tests and fits select lines of it; `stack` makes the array that the bootstrap resamples.
"""

# The stubs of pandas are narrower than what it accepts.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false
# pyright: reportGeneralTypeIssues=false

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from scalelab.lab.load.task_runs import TaskRuns, differ
from scalelab.records.predictions import Predictions

COLUMNS = ("row", "run", "seed", "task", "split", "metric", "finetune_seed", "score", "recipe",
           "tuning")  # fmt: skip
Key = tuple[str, str, str]  # task, dev split, metric
Group = tuple[str, str, int, Mapping[str, TaskRuns]]  # row, run, its seed, its fine-tunings


class Stack(NamedTuple):
    """Predictions on one dev split."""

    examples: Predictions  # the dev set: gold [n], labels, digest of the texts
    predicted: np.ndarray  # [P, F, n] of P pre-trainings with F fine-tunings each


def make(groups: Iterable[Group]) -> pd.DataFrame:
    """Returns the frame of the finished fine-tunings of some pre-trainings, in their order."""
    lines = [
        (row, run, seed, task.name, split, metric, own.seed, score, recipe, own)
        for row, run, seed, tasks in groups
        for task in tasks.values()
        for own in task.finished
        for recipe in [own.result.recipe if own.result else None]
        for (split, metric), score in own.scores.items()
    ]
    return pd.DataFrame(lines, columns=COLUMNS)


def stack(lines: pd.DataFrame) -> Stack:
    """Stacks the predictions of lines of one row, split and metric.

    Raises:
      ValueError: a file cannot be read, the runs were scored on different examples, or they differ
        in fine-tuning seeds.
    """
    lines = lines.sort_values(["seed", "run", "finetune_seed"], kind="stable")
    shape = lines["run"].nunique(), lines["finetune_seed"].nunique()
    if len(lines) < shape[0] * shape[1]:
        raise ValueError("pre-trainings differ in fine-tuning seeds or splits")
    split = lines["split"].iloc[0]
    found = [tuning.predictions(split) for tuning in lines["tuning"]]
    for own in found:
        if why := differ(found[0], own):
            raise ValueError(f"its runs were scored on different examples: {why}")
    return Stack(found[0], np.stack([x.predicted for x in found]).reshape(*shape, -1))


def shared_seeds(tasks: Mapping[str, TaskRuns], names: Iterable[str]) -> set[int]:
    """Returns the fine-tuning seeds of a pre-training that have finished all of some tasks."""
    none = TaskRuns("", ())
    return set.intersection(*({r.seed for r in tasks.get(n, none).finished} for n in names))


def mean_score(tasks: Mapping[str, TaskRuns], keys: Sequence[Key]) -> float | None:
    """Returns a pre-training's mean score over keys and its shared seeds; None without any."""
    seeds = shared_seeds(tasks, [task for task, *_ in keys])
    if not seeds or any((split, metric) not in tasks[t].keys for t, split, metric in keys):
        return None
    values = [
        [run.scores[split, metric] for run in tasks[task].finished if run.seed in seeds]
        for task, split, metric in keys
    ]
    return float(np.mean([np.mean(own) for own in values]))
