"""The item-level frame beneath all scores: what each fine-tuning predicted on each dev example.

`read_items` reads the predictions of some fine-tunings on one dev split into one tidy pandas frame,
a line an example and a fine-tuning:

  row            what a table's line is about: "bert 2x128x2", or side A of a comparison
  run            the pre-training, by name
  pretrain_seed  its seed
  finetune_seed  seed of the fine-tuning
  item           number of the dev example
  gold           its class or score
  predicted      likewise
  examples       digest of the dev set, by which two are told apart

`Items.stack` turns a row of it into the array [P, F, n] that the bootstrap resamples.
"""

# The stubs of pandas and altair are narrower than what they accept.
# pyright: reportAttributeAccessIssue=false
# pyright: reportCallIssue=false

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from scalelab.lab.load.study_runs import Point, PretrainRun, Study
from scalelab.lab.load.task_runs import SeedRun, TaskRuns, differ
from scalelab.runs.json_files import Unreadable
from scalelab.runs.predictions import Predictions

CATEGORIES = ("row", "run", "examples")


class Entry(NamedTuple):
    """A fine-tuning, and where it stands in the frame."""

    row: str
    run: str
    pretrain_seed: int
    seed: SeedRun


class Stack(NamedTuple):
    """The predictions of a row on one dev split.

    Attributes:
      examples: the dev set: gold [n], labels, digest of the texts.
      predicted: [P, F, n] of P pre-trainings with F fine-tunings each.
      pretrain_seeds: [P] of the pre-trainings.
      finetune_seeds: [F] of the fine-tunings.
    """

    examples: Predictions
    predicted: np.ndarray
    pretrain_seeds: tuple[int, ...]
    finetune_seeds: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Items:
    """The frame of one dev split.

    Attributes:
      frame: a line an example and a fine-tuning, see above.
      examples: digest -> the dev set.
      unreadable: (row, run, seed) -> why its predictions cannot be read.
    """

    frame: pd.DataFrame
    examples: dict[str, Predictions]
    unreadable: dict[tuple[str, str, int], str]

    def stack(self, row: str, runs: Sequence[str], seeds: Sequence[int]) -> Stack:
        """Stacks the predictions of some fine-tunings of a row.

        Args:
          row: its name.
          runs: the pre-trainings.
          seeds: of the fine-tunings, the same of each.

        Raises:
          ValueError: a file cannot be read, or the runs were scored on different examples.
        """
        for run in runs:
            for seed in seeds:
                if why := self.unreadable.get((row, run, seed)):
                    raise ValueError(why)
        own = self.frame[
            (self.frame["row"] == row)
            & self.frame["run"].isin(runs)
            & self.frame["finetune_seed"].isin(seeds)
        ]
        first, *others = own["examples"].unique()
        for other in others:
            why = differ(self.examples[first], self.examples[other])
            raise ValueError(f"its runs do not go together: {why}")
        own = own.sort_values(["pretrain_seed", "run", "finetune_seed", "item"], kind="stable")
        predicted = own["predicted"].to_numpy().reshape(len(runs), len(seeds), -1)
        examples = self.examples[first]
        by_run = own.drop_duplicates("run")["pretrain_seed"]
        return Stack(
            examples, predicted.astype(examples.gold.dtype), tuple(map(int, by_run)),
            tuple(sorted(seeds)),
        )  # fmt: skip


def read_items(entries: Iterable[Entry], split: str) -> Items:
    """Reads what fine-tunings predicted on a dev split; those that lack the split are left out."""
    parts: list[pd.DataFrame] = []
    examples: dict[str, Predictions] = {}
    unreadable: dict[tuple[str, str, int], str] = {}
    for row, run, pretrain_seed, seed in entries:
        if split not in {name for name, _ in seed.scores}:
            continue
        try:
            found = seed.predictions(split)
        except Unreadable as error:
            unreadable[row, run, seed.seed] = str(error)
            continue
        digest = _digest(found)
        examples.setdefault(digest, found)
        parts.append(
            pd.DataFrame({
                "row": pd.Categorical([row]).repeat(len(found.gold)),
                "run": pd.Categorical([run]).repeat(len(found.gold)),
                "pretrain_seed": np.int64(pretrain_seed),
                "finetune_seed": np.int64(seed.seed),
                "item": np.arange(len(found.gold), dtype=np.int32),
                "gold": found.gold.astype(np.float32),
                "predicted": found.predicted.astype(np.float32),
                "examples": pd.Categorical([digest]).repeat(len(found.gold)),
            })
        )  # fmt: skip
    for name in CATEGORIES:
        known = pd.CategoricalDtype(list(dict.fromkeys(p[name].cat.categories[0] for p in parts)))
        for part in parts:
            part[name] = part[name].astype(known)
    columns = ("row", "run", "pretrain_seed", "finetune_seed", "item", "gold", "predicted",
               "examples")  # fmt: skip
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    return Items(frame, examples, unreadable)


def stack_runs(groups: Sequence[TaskRuns], split: str) -> Stack:
    """Stacks the finished fine-tunings of one task, of one pre-training or several.

    Args:
      groups: of each pre-training its fine-tunings, with the same seeds.
      split: of the dev set.

    Raises:
      ValueError: a file cannot be read, or the runs were scored on different examples.
    """
    entries = [
        Entry("", str(place), place, run) for place, task in enumerate(groups)
        for run in task.finished
    ]  # fmt: skip
    seeds = [run.seed for run in groups[0].finished]
    return read_items(entries, split).stack("", [str(k) for k in range(len(groups))], seeds)


class StudyPredictions:
    """The predictions of a study's fine-tunings, each dev split read once.

    Args:
      study: what `study_runs.read` gave.
      part: "tasks", or "scratch" for the fine-tunings from random weights.
      note: takes what could not be used, and why.
    """

    def __init__(self, study: Study, part: str, note: Callable[[str], None]) -> None:
        self._study, self._part, self._note = study, part, note
        self._items: dict[tuple[str, str], Items] = {}

    def items(self, task: str, split: str) -> Items:
        """Returns the frame of a dev split, of all rows."""
        if (task, split) not in self._items:
            entries = [
                Entry(row.label, run.name, run.seed, seed)
                for row in self._study.points for run in row.finished
                for seed in self._of_run(run, task)
            ]  # fmt: skip
            self._items[task, split] = read_items(entries, split)
        return self._items[task, split]

    def stack(
        self,
        row: Point,
        score: str,
        key: tuple[str, str, str],
        pretrain_seeds: Sequence[int],
        finetune_seeds: Sequence[int],
    ) -> Stack | None:
        """Stacks the predictions of a row's fine-tunings; None if it lacks some.

        Args:
          row: of the study.
          score: for a note of what could not be used.
          key: task, dev split and metric.
          pretrain_seeds: of the pre-trainings.
          finetune_seeds: of the fine-tunings of each.
        """
        task, split, metric = key
        runs = [run for run in row.finished if run.seed in pretrain_seeds]
        tuned = [seed for run in runs for seed in self._of_run(run, task)
                 if seed.seed in finetune_seeds]  # fmt: skip
        if not tuned or not all((split, metric) in seed.scores for seed in tuned):
            return None  # such as MNLI without its mismatched dev set
        try:
            items = self.items(task, split)
            return items.stack(row.label, [run.name for run in runs], finetune_seeds)
        except ValueError as error:
            self._note(f"{row.label}, {score}: {error}")
            return None

    def _of_run(self, run: PretrainRun, task: str) -> list[SeedRun]:
        runs = getattr(run, self._part)
        return runs[task].finished if task in runs else []


def _digest(found: Predictions) -> str:
    """Returns a digest of a dev set: its texts, labels and gold."""
    content = repr((found.texts_digest, found.labels)).encode() + found.gold.tobytes()
    return hashlib.sha256(content).hexdigest()
