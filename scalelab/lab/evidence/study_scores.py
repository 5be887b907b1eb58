"""The scores of a study's rows, and their differences, with intervals; each is worked out once.

Scores of tasks are fractions on dev sets. Their intervals are the Multi-Bootstrap's (bootstrap.py
of statistics/) over pre-training seeds, fine-tuning seeds and dev examples. "loss" and "seconds"
are of the pre-trainings themselves: mean and Student's interval over their seeds.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.lab.compare import bootstrap, contrasts
from scalelab.lab.compare.bootstrap import Estimate
from scalelab.lab.compare.contrasts import Contrast, student
from scalelab.lab.evidence import study_seconds
from scalelab.lab.evidence.evidence import (
    OF_PRETRAINING,
    OF_TASKS,
    Evidence,
    check,
    parts_of,
    tasks_of,
)
from scalelab.lab.evidence.stacks import Stacks
from scalelab.lab.reading import losses, phases, task_runs
from scalelab.lab.reading.study_runs import Point, PretrainRun, Study
from scalelab.lab.tasks import comparison

OF_RUN: dict[str, Callable[[PretrainRun], float | None]] = {
    "loss": lambda run: run.loss,
    "seconds": lambda run: (run.result or {}).get("seconds"),
}
NUM_RESAMPLES = 2000  # as in tasks/comparison.py

Weights = tuple[tuple[tuple[Point, float], ...], ...]  # of rows, by block


class StudyScores(Evidence):
    """The scores of a study.

    Args:
      study: what `study_runs.read` gave.
      part: "tasks", or "scratch" for the fine-tunings from random weights.

    Attributes:
      notes: what could not be used, and why; grows as scores are asked for.
    """

    counts_only = False

    def __init__(self, study: Study, part: str = "tasks") -> None:
        self.study = study
        self.notes: list[str] = []
        self._stacks = Stacks(part, self._note)
        self._known: dict[tuple[object, ...], Any] = {}

    @property
    def rows(self) -> tuple[Point, ...]:
        """The study's points, finished or not."""
        return self.study.points

    @property
    def unfinished(self) -> list[str]:
        """Points whose pre-trainings are not all finished, and how many are."""
        return [
            f"{point.label}: {len(point.finished)} of {len(point.runs)} pre-trainings finished"
            for point in self.rows
            if len(point.finished) < len(point.runs)
        ]

    def remarks(self, score: str) -> list[str]:
        """What is unfinished, what could not be used, and whose seconds they are."""
        rows = len(self.unfinished)
        told = [f"Unfinished: {rows} of {len(self.rows)} rows; tables name them."] if rows else []
        return told + self.caveats([score])

    def caveats(self, scores: Iterable[str]) -> list[str]:
        """What of some scores could not be used, and why; whose seconds they are."""
        scores = list(scores)
        parts = {part for score in scores for part in parts_of(score)}
        named = [n for n in self.notes if any(re.search(rf" {part}: ", n) for part in parts)]
        found = [f"Could not be used: {note}." for note in named]
        return found + (self._once(self._of_seconds) if "seconds" in scores else [])

    def _of_seconds(self) -> list[str]:
        return study_seconds.remarks(self.study)

    def num_runs(self, row: Point, score: str) -> tuple[int, int]:
        """Pre-training seeds and, of each, fine-tuning seeds behind a score; 0, 0: none."""
        check(score)
        if score in OF_PRETRAINING:
            return len(self._numbers(row, score)), 1
        runs = self._stacks.runs(row, tasks_of(score))
        return (len(runs), len(runs[0][0])) if runs else (0, 0)

    def value(self, row: Point, score: str) -> Estimate | None:
        """A score of a row, over all its finished runs; None: there is none.

        Of several pre-trainings, and of the three tasks of GLUE-Large, only fine-tuning seeds enter
        that all of them have finished.

        Raises:
          ValueError: an unknown score.
        """
        check(score)
        return self._once(self._value, row, score)

    def difference(self, a: Point, b: Point, score: str) -> Estimate | None:
        """Score of B minus that of A; None: one is missing, or they do not compare.

        Seeds are independent, but paired where both were fine-tuned from the same weights with the
        same seeds.

        Raises:
          ValueError: an unknown score.
        """
        check(score)
        return self._once(self._difference, a, b, score)

    def contrast(self, blocks: Sequence[Mapping[Point, float]], score: str) -> Contrast | None:
        """Mean over blocks of a weighted sum of scores.

        Args:
          blocks: of each, weights by row; no row is in two blocks.
          score: a name in SCORES.

        Returns:
          None if a row has no score, or dev sets differ.

        Raises:
          ValueError: an unknown score, no block, or a row in two blocks.
        """
        check(score)
        rows = [row for block in blocks for row in block]
        if len(set(rows)) < max(1, len(rows)):
            raise ValueError("expected blocks that share no row, and one at least")
        return self._once(self._contrast, tuple(tuple(b.items()) for b in blocks), score)

    def _contrast(self, blocks: Weights, score: str) -> Contrast | None:
        rows = [row for block in blocks for row, _ in block]
        seed = _seed(" ".join(row.label for row in rows))
        if score in OF_PRETRAINING:
            if not all(self._numbers(row, score) for row in rows):
                return None
            numbers = [[(w, self._numbers(row, score)) for row, w in b] for b in blocks]
            return contrasts.of_numbers(numbers, seed=seed)
        values = [self.value(row, score) for row in rows]
        found = [self._of_predictions(blocks, part, score, seed) for part in parts_of(score)]
        if any(x is None for x in (*values, *found)):
            return None
        weights = [w / len(blocks) for block in blocks for _, w in block]
        value = sum(w * v.value for w, v in zip(weights, values, strict=True) if v)
        several = min(self.num_runs(row, score)[0] for row in rows) > 1
        if not several and len(blocks) < 2:
            return Contrast(value, None, contrasts.ALONE)
        estimate = _joined([x() for x in found if x], len(found))
        return Contrast(value, estimate, contrasts.SEEDS if several else contrasts.BLOCKS)

    def passes(self, row: Point) -> list[float | None]:
        """Passes over its corpus of each finished pre-training; None: it does not say."""
        return [phases.passes(run) for run in row.finished]

    def curves(self, row: Point) -> list[dict[int, np.ndarray]]:
        """Of each finished pre-training: maximum length -> validation loss against seconds."""
        return self._once(self._curves, row)

    def _curves(self, row: Point) -> list[dict[int, np.ndarray]]:
        found = []
        for run in row.finished:
            problems: list[str] = []
            read = losses.of_run(run, problems)
            if problems or not read:
                why = "; ".join(problems) or "metrics.jsonl has no validation"
                self._note(f"{row.label}, loss: no curve of {run.name}: {why}")
                continue
            found.append({
                length: np.array([(line["seconds"], line["eval/loss"]) for line in lines])
                for length, lines in read.items()
            })  # fmt: skip
        return found

    def _of_predictions(
        self, blocks: Weights, part: str, score: str, seed: int
    ) -> Callable[[], Estimate] | None:
        """What estimates the contrast on one task; None: it cannot be."""
        first, parts = None, []
        for block in blocks:
            parts.append([])
            for row, weight in block:
                stack = self._once(self._stacks.of, row, part, tasks_of(score))
                differs = first and stack and task_runs.differ(first, stack[0])
                if differs:
                    self._note(f"{row.label} does not compare on {part}: {differs}")
                if stack is None or differs:
                    return None
                first = first or stack[0]
                parts[-1].append((weight, stack[1]))
        assert first is not None
        return lambda: bootstrap.contrast(
            first.gold, parts, OF_TASKS[part][2], num_resamples=NUM_RESAMPLES, seed=seed
        )

    def _once(self, make: Callable[..., Any], *key: Any) -> Any:
        """What `make` gives; each is made once."""
        if (make.__name__, *key) not in self._known:
            self._known[make.__name__, *key] = make(*key)
        return self._known[make.__name__, *key]

    def _value(self, row: Point, score: str) -> Estimate | None:
        if score in OF_PRETRAINING:
            numbers = self._numbers(row, score)
            seed = _seed(f"{row.label} {score}")
            return student([(1.0, numbers)], seed=seed) if numbers else None
        # One seed for all tasks, so that they share the draws of the pre-trainings that they share.
        tasks = tasks_of(score)
        parts = [self._once(self._stacks.of, row, part, tasks) for part in parts_of(score)]
        found = [
            bootstrap.multi_bootstrap(
                part[0].gold, part[1], OF_TASKS[name][2],
                num_resamples=NUM_RESAMPLES, seed=_seed(row.label),
            )
            for name, part in zip(parts_of(score), parts, strict=True) if part
        ]  # fmt: skip
        return _joined(found, len(parts))

    def _difference(self, a: Point, b: Point, score: str) -> Estimate | None:
        seed = _seed(f"{a.label} {b.label}")
        if score in OF_PRETRAINING:
            sides = [self._numbers(row, score) for row in (a, b)]
            if not all(sides):
                return None
            return student([(-1.0, sides[0]), (1.0, sides[1])], seed=seed)
        tasks, found = tasks_of(score), []
        for part in parts_of(score):
            one, two = (self._once(self._stacks.of, row, part, tasks) for row in (a, b))
            if one is None or two is None:
                return None
            differs = task_runs.differ(one[0], two[0])
            if differs:
                self._note(f"{a.label} and {b.label} do not compare on {part}: {differs}")
                return None
            task, _, metric = OF_TASKS[part]
            place = tasks.index(task)
            sides = (
                [r for runs in self._stacks.runs(row, tasks) for r in runs[place]] for row in (a, b)
            )
            paired = one[1].shape == two[1].shape and comparison.are_paired(*sides)
            found.append(
                bootstrap.compare(
                    one[0].gold, one[1], two[1], metric,
                    paired=paired, num_resamples=NUM_RESAMPLES, seed=seed,
                )
            )  # fmt: skip
        return _joined(found, len(parts_of(score)))

    def _numbers(self, row: Point, score: str) -> tuple[float, ...]:
        """A number of each finished pre-training."""
        numbers = (OF_RUN[score](run) for run in row.finished)
        return tuple(x for x in numbers if x is not None)

    def _note(self, note: str) -> None:
        note = note.replace(f"{self.study.workdir}/", "")
        if note not in self.notes:
            self.notes.append(note)


def _joined(found: list[Estimate], num: int) -> Estimate | None:
    """The mean of a score's parts, if all are there."""
    if len(found) < num:
        return None
    return found[0] if num == 1 else bootstrap.mean(found, same_runs=True)


def _seed(label: str) -> int:
    return zlib.crc32(label.encode())
