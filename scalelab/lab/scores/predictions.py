"""The item-level frame beneath all scores: one line per fine-tuning, with its predictions.

`read_items` reads some fine-tunings on one dev split into one pandas frame:

  row            the table's row: "bert 2x128x2", or side A of a comparison
  run            the pre-training, by name
  pretrain_seed  its seed
  finetune_seed  seed of the fine-tuning
  items          its predictions with gold, or the reason why they are unreadable

`stack` turns lines of the frame into the array [P, F, n] that the bootstrap resamples; `score_run`
scores the lines of one pre-training, for laws and grids.
"""

# The stubs of pandas are narrower than what it accepts.
# pyright: reportAttributeAccessIssue=false
# pyright: reportCallIssue=false

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from scalelab.lab.load.study_runs import Point, Study
from scalelab.lab.load.task_runs import SeedRun, TaskRuns, differ
from scalelab.runs.json_files import Unreadable
from scalelab.runs.predictions import Predictions
from scalelab.tasks import metrics

Key = tuple[str, str, str]  # task, dev split, metric
COLUMNS = ("row", "run", "pretrain_seed", "finetune_seed", "items")


class Stack(NamedTuple):
    """Predictions on one dev split."""

    examples: Predictions  # the dev set: gold [n], labels, digest of the texts
    predicted: np.ndarray  # [P, F, n] of P pre-trainings with F fine-tunings each


def read_items(entries: Iterable[tuple[str, str, int, SeedRun]], split: str) -> pd.DataFrame:
    """Reads fine-tunings, each with its row, run and pre-training seed, into a frame.

    Leaves out fine-tunings without the dev split, and all texts and probabilities.
    """
    lines: list[tuple[object, ...]] = []
    for row, run, pretrain_seed, seed in entries:
        if any(name == split for name, _ in seed.scores):
            try:
                found = seed.predictions(split)
                digest = found.texts_digest
                items: Predictions | Unreadable = dataclasses.replace(
                    found, texts=None, probabilities=None, packed_digest=digest
                )
            except Unreadable as error:
                items = error
            lines.append((row, run, pretrain_seed, seed.seed, items))
    return pd.DataFrame(lines, columns=COLUMNS)


def stack(frame: pd.DataFrame, row: str, runs: Sequence[str], seeds: Sequence[int]) -> Stack | None:
    """Stacks fine-tunings of a row, the same seeds of each run; None if the frame lacks some.

    Raises:
      ValueError: a file cannot be read, or the runs were scored on different examples.
    """
    own = frame[
        (frame["row"] == row) & frame["run"].isin(runs) & frame["finetune_seed"].isin(seeds)
    ]
    found = list(own.sort_values(["pretrain_seed", "run", "finetune_seed"], kind="stable")["items"])
    if not found or len(found) < len(runs) * len(seeds):
        return None
    for items in found:
        if isinstance(items, Unreadable):
            raise items
        if why := differ(found[0], items):
            raise ValueError(f"its runs were scored on different examples: {why}")
    predicted = np.stack([items.predicted for items in found])
    return Stack(found[0], predicted.reshape(len(runs), len(seeds), -1))


def stack_runs(groups: Sequence[TaskRuns], split: str) -> Stack:
    """Stacks the finished fine-tunings of one task: a group for each pre-training.

    Raises:
      ValueError: as `stack`, or the seeds of the groups differ.
    """
    entries = (("", str(k), k, run) for k, task in enumerate(groups) for run in task.finished)
    seeds = [run.seed for run in groups[0].finished]
    found = stack(read_items(entries, split), "", [str(k) for k in range(len(groups))], seeds)
    if found is None:
        raise ValueError(f"{groups[0].title}: pre-trainings differ in fine-tuning seeds or splits")
    return found


def shared_seeds(tuned: Mapping[str, TaskRuns], tasks: Sequence[str]) -> set[int]:
    """Returns the fine-tuning seeds of a pre-training that have finished all of some tasks."""
    found = [{run.seed for run in tuned[task].finished} for task in tasks if task in tuned]
    return set.intersection(*found) if len(found) == len(tasks) else set()


def score_run(tuned: Mapping[str, TaskRuns], keys: Sequence[Key]) -> float | None:
    """Returns the mean score of a pre-training over its shared seeds and `keys`; None without any.

    Raises:
      ValueError: as `stack_runs`.
    """
    seeds, scores = shared_seeds(tuned, [task for task, *_ in keys]), []
    for task, split, metric in keys if seeds else ():
        runs = tuple(run for run in tuned[task].finished if run.seed in seeds)
        found = stack_runs([TaskRuns(task, runs)], split)
        scores.append(metrics.METRICS[metric](found.examples.gold, found.predicted[0]).mean())
    return float(np.mean(scores)) if scores else None


class StudyPredictions:
    """The predictions of a study's fine-tunings, each dev split read once.

    `part` is "tasks", or "scratch" for the fine-tunings from random weights; `note` receives a
    message on everything that could not be used.
    """

    def __init__(self, study: Study, part: str, note: Callable[[str], None]) -> None:
        self._study, self._part, self._note = study, part, note
        self._frames: dict[tuple[str, str], pd.DataFrame] = {}

    def stack(
        self, row: Point, score: str, key: Key,
        pretrain_seeds: Sequence[int], finetune_seeds: Sequence[int],
    ) -> Stack | None:  # fmt: skip
        """Stacks a row's predictions on a task and split; None if some are missing.

        Notes on unusable predictions begin with the row and the name `score`.
        """
        task, split, _ = key
        if (task, split) not in self._frames:
            entries = (
                (point.label, run.name, run.seed, seed)
                for point in self._study.points for run in point.finished
                if (tuned := getattr(run, self._part).get(task)) for seed in tuned.finished
            )  # fmt: skip
            self._frames[task, split] = read_items(entries, split)
        runs = [run.name for run in row.finished if run.seed in pretrain_seeds]
        try:
            return stack(self._frames[task, split], row.label, runs, finetune_seeds)
        except ValueError as error:
            self._note(f"{row.label}, {score}: {error}")
            return None
