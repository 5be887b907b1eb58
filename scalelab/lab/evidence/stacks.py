"""The predictions of a row's fine-tunings, stacked: what the bootstrap takes of a task."""

from collections.abc import Callable

import numpy as np

from scalelab.lab.evidence.evidence import OF_TASKS
from scalelab.lab.reading import task_runs
from scalelab.lab.reading.predictions import Predictions
from scalelab.lab.reading.study_runs import Point
from scalelab.lab.reading.task_runs import SeedRun, TaskRuns


class Stacks:
    """The stacks of a study.

    Args:
      part: "tasks", or "scratch" for the fine-tunings from random weights.
      note: takes what could not be used, and why.
    """

    def __init__(self, part: str, note: Callable[[str], None]) -> None:
        self.part, self._note = part, note
        self._texts: dict[tuple[str, str], Predictions] = {}

    def runs(self, row: Point, tasks: tuple[str, ...]) -> list[list[list[SeedRun]]]:
        """Fine-tunings [pre-training][task][seed] that are finished in all tasks."""
        found = []
        for run in row.finished:
            here = getattr(run, self.part)
            if all(task in here and here[task].finished for task in tasks):
                found.append([here[task].finished for task in tasks])
        seeds = [{run.seed for run in task} for pretraining in found for task in pretraining]
        common = set.intersection(*seeds) if seeds else set()
        if not common:
            return []
        return [[[r for r in task if r.seed in common] for task in one] for one in found]

    def of(
        self, row: Point, part: str, tasks: tuple[str, ...]
    ) -> tuple[Predictions, np.ndarray] | None:
        """Examples and predictions [P, F, n] of what `runs` finds; None: there are none."""
        task, split, metric = OF_TASKS[part]
        first, stacks = None, []
        for pretraining in self.runs(row, tasks):
            one = TaskRuns(task, tuple(pretraining[tasks.index(task)]))
            if (split, metric) not in one.keys:  # such as MNLI without its mismatched dev set
                return None
            try:
                examples, predicted = task_runs.stack(one, split)
            except (ValueError, OSError) as error:
                self._note(f"{row.label}, {part}: {error}")
                return None
            differs = task_runs.differ(first, examples) if first else None
            if differs:
                self._note(f"{row.label}, {part}: its runs do not go together: {differs}")
                return None
            first = first or examples
            stacks.append(predicted)
        if first is None:
            return None
        known = self._texts.setdefault((task, split), first)  # hold the texts of a task once
        first = first if task_runs.differ(known, first) else known
        return first, np.concatenate(stacks)
