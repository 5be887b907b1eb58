"""The scores of a study's rows, and their weighted sums, with intervals; each is made once.

Scores of tasks are fractions on dev sets. Their intervals are the Multi-Bootstrap's (bootstrap.py)
over pre-training seeds, fine-tuning seeds and dev examples. "loss" and "seconds" are numbers of the
pre-trainings themselves: mean and Student's interval over seeds. Seeds that rows share are drawn
jointly, and a contrast uses the seeds that all of its rows have finished.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.lab.compare import bootstrap, estimates, treatment
from scalelab.lab.compare.estimates import Contrast, Estimate
from scalelab.lab.compare.evidence import (
    OF_PRETRAINING,
    OF_TASKS,
    TITLES,
    Evidence,
    check,
    parts_of,
    tasks_of,
)
from scalelab.lab.compare.treatment import Treatment
from scalelab.lab.load import archive, phases, task_runs
from scalelab.lab.load.study_runs import Point, PretrainRun, Study
from scalelab.lab.scores.predictions import StudyPredictions
from scalelab.runs.predictions import Predictions

OF_RUN: dict[str, Callable[[PretrainRun], float | None]] = {
    "loss": lambda run: run.loss,
    "seconds": lambda run: run.result.seconds if run.result else None,
}
NUM_RESAMPLES = 2000  # the least p is 2 / 2001
UNEVEN = 0.05  # speeds of runs of one row may differ by this share

Seeds = tuple[tuple[int, ...], tuple[int, ...]]  # of pre-training, of fine-tuning


class StudyScores(Evidence):
    """The scores of a study.

    Args:
      study: what `study_runs.read` gave.
      part: "tasks", or "scratch" for the fine-tunings from random weights.
      treatments: the checks of pre-training objectives that claims must pass.

    Attributes:
      notes: what could not be used, and why; grows as scores are asked for.
    """

    counts_only = False

    def __init__(
        self, study: Study, part: str = "tasks", treatments: Sequence[Treatment] = ()
    ) -> None:
        self.study, self.part, self.treatments = study, part, treatments
        self.notes: list[str] = []
        self._items = StudyPredictions(study, part, self._note)
        self._known: dict[tuple[object, ...], Any] = {}

    @property
    def rows(self) -> tuple[Point, ...]:
        """The study's points, finished or not."""
        return self.study.points

    def num_runs(self, row: Point, score: str) -> tuple[int, int]:
        """Returns how many pre-training seeds, and fine-tuning seeds of each, there are."""
        check(score)
        if score in OF_PRETRAINING:
            return len(self._numbers(row, score)), 1
        pretrain, finetune = self._seeds([row], score)
        return (len(pretrain), len(finetune)) if pretrain and finetune else (0, 0)

    def value(self, row: Point, score: str) -> Estimate | None:
        """Returns a score of a row, over the seeds that all its runs and tasks have finished.

        Raises:
          ValueError: an unknown score.
        """
        check(score)
        return self._once(self._estimate, ((row, 1.0),), score)

    def difference(self, a: Point, b: Point, score: str) -> Estimate | None:
        """Returns the score of B minus that of A; None: one is missing, or they do not compare.

        Raises:
          ValueError: an unknown score.
        """
        check(score)
        return self._once(self._estimate, ((a, -1.0), (b, 1.0)), score)

    def contrast(self, weights: Mapping[Point, float], score: str) -> Contrast | None:
        """Returns a weighted sum of scores; it has an interval if rows share two seeds or more.

        Raises:
          ValueError: an unknown score, or no row.
        """
        check(score)
        if not weights:
            raise ValueError("expected one row at least")
        parts = tuple(weights.items())
        found = self._once(self._estimate, parts, score)
        if found is None:
            return None
        if score in OF_PRETRAINING:
            alone = not len(found.resamples)
        else:
            alone = len(self._seeds([row for row, _ in parts], score)[0]) < 2
        if alone:
            return Contrast(found.value, None, estimates.ALONE)
        return Contrast(found.value, found, estimates.SEEDS)

    def untestable(self, rows: Iterable[Point], score: str) -> str:
        """Returns why the treatment of some rows did not take; "": it did, or time is compared."""
        check(score)
        if score == "seconds":
            return ""
        rows, title = list(rows), TITLES.get(score, score)
        metrics = {row.label: _validation(row) for row in rows}
        reasons = treatment.untrained(metrics, self.treatments)
        if score not in OF_PRETRAINING:
            values = {row: x.value for row in rows if (x := self.value(row, score)) is not None}
            reasons += treatment.on_floor(
                max(values.values(), default=None), self._floor(score), title
            )
            scratch = self._once(self._from_scratch)
            pairs = ((x, scratch.value(row, score)) for row, x in values.items())
            gains = (x - other.value for x, other in pairs if other is not None)
            reasons += treatment.behind_scratch(gains, title)
        return "; ".join(reasons)

    def passes(self, row: Point) -> list[float | None]:
        """Returns each finished pre-training's passes over its corpus; None: not recorded."""
        return [phases.num_passes(run) for run in row.finished]

    def curves(self, row: Point) -> dict[int, dict[int, np.ndarray]]:
        """Returns seed -> maximum length -> [K, 2] validation losses by seconds."""
        return self._once(self._curves, row)

    def remarks(self, score: str) -> list[str]:
        """Returns remarks on unfinished rows, on runs that were left out, and on machines."""
        waiting = sum(len(point.finished) < len(point.runs) for point in self.rows)
        found = [f"Unfinished: {waiting} of {len(self.rows)} rows; tables name them."]
        return (found if waiting else []) + self.caveats([score])

    def caveats(self, scores: Iterable[str]) -> list[str]:
        """Returns what of some scores could not be used, and why; whose seconds they are."""
        scores = list(scores)
        parts = {part for score in scores for part in parts_of(score)}
        named = [n for n in self.notes if any(re.search(rf" {part}: ", n) for part in parts)]
        found = [f"Could not be used: {note}." for note in named]
        return found + (self._once(self._of_seconds) if "seconds" in scores else [])

    # --- How it is worked out ---------------------------------------------------------------------

    def _estimate(self, parts: tuple[tuple[Point, float], ...], score: str) -> Estimate | None:
        seed = zlib.crc32(" ".join(row.label for row, _ in parts).encode())
        if score in OF_PRETRAINING:
            numbers = [(weight, self._numbers(row, score)) for row, weight in parts]
            found = estimates.contrast_numbers(numbers, seed=seed)
            if found is None:
                return None
            return found.estimate or estimates.without_interval(found.value)
        seeds = self._seeds([row for row, _ in parts], score)
        if not all(seeds):
            return None
        stacks = {name: self._weighted_predictions(parts, name, seeds) for name in parts_of(score)}
        sets = [(gold, rows, OF_TASKS[name][2]) for name, (gold, rows) in stacks.items()]
        if not all(rows for _, rows, _ in sets):
            return None
        return bootstrap.mean_score(sets, num_resamples=NUM_RESAMPLES, seed=seed)

    def _weighted_predictions(
        self, parts: tuple[tuple[Point, float], ...], name: str, seeds: Seeds
    ) -> tuple[np.ndarray, list[tuple[float, np.ndarray]]]:
        """Returns gold, and weights with predictions [P, F, n]; none where they do not compare."""
        first, rows = None, []
        for row, weight in parts:
            stack = self._once(self._predictions, row, name, seeds)
            differs = first and stack and task_runs.differ(first, stack[0])
            if differs:
                self._note(f"{row.label} does not compare on {name}: {differs}")
            if stack is None or differs:
                return np.empty(0), []
            first = first or stack[0]
            rows.append((weight, stack[1]))
        assert first is not None
        return first.gold, rows

    def _seeds(self, rows: Sequence[Point], score: str) -> Seeds:
        """Returns the seeds that all rows have finished in all tasks."""
        tasks = tasks_of(score)
        there = []
        for row in rows:
            found = {}
            for run in row.finished:
                of_run = getattr(run, self.part)
                tuned = [{r.seed for r in of_run[t].finished} for t in tasks if t in of_run]
                if len(tuned) == len(tasks) and (common := set.intersection(*tuned)):
                    found[run.seed] = common
            there.append(found)
        pretrain = set.intersection(*(set(found) for found in there))
        tuned = [found[p] for found in there for p in pretrain]
        finetune = set.intersection(*tuned) if tuned else set()
        return tuple(sorted(pretrain)), tuple(sorted(finetune))

    def _predictions(
        self, row: Point, name: str, seeds: Seeds
    ) -> tuple[Predictions, np.ndarray] | None:
        """Returns the dev set, and predictions [P, F, n] of some seeds."""
        found = self._items.stack(row, name, OF_TASKS[name], *seeds)
        return (found.examples, found.predicted) if found else None

    def _floor(self, score: str) -> float | None:
        """Returns the score of the best constant answer, by the dev sets of a first row."""
        found = []
        for name in parts_of(score):
            for row in self.rows:
                seeds = self._seeds([row], score)
                stack = self._once(self._predictions, row, name, seeds) if all(seeds) else None
                if stack:
                    found.append(treatment.CONSTANT[OF_TASKS[name][2]](stack[0].gold))
                    break
        return float(np.mean(found)) if len(found) == len(parts_of(score)) else None

    def _from_scratch(self) -> "StudyScores":
        return StudyScores(self.study, "scratch")

    def _numbers(self, row: Point, score: str) -> dict[int, float]:
        """Returns a number of each finished pre-training, by seed."""
        numbers = {run.seed: OF_RUN[score](run) for run in row.finished}
        return {seed: x for seed, x in numbers.items() if x is not None}

    def _curves(self, row: Point) -> dict[int, dict[int, np.ndarray]]:
        found = {}
        for run in row.finished:
            if not run.curves:
                self._note(f"{row.label}, loss: {run.name} has no validation in metrics.jsonl")
                continue
            found[run.seed] = {
                length: np.array([(line["seconds"], line["eval/loss"]) for line in lines])
                for length, lines in run.curves.items()
            }
        return found

    def _of_seconds(self) -> list[str]:
        """Returns remarks on several machines, and on runs of one row at uneven speeds."""
        machines = sorted({r.environment.machine for r in self.study.runs if r.finished})
        found = []
        if len(machines) > 1:
            found.append(f"Seconds are of different machines: {'; '.join(machines)}.")
        spreads = {}
        for row in self.rows:
            results = [run.result for run in row.finished if run.result]
            rates = [r.steps / r.seconds for r in results if r.seconds]
            spreads[row.label] = max(rates) / min(rates) - 1 if rates else 0.0
        label = max(spreads, key=spreads.__getitem__, default="")
        if label and spreads[label] > UNEVEN:
            found.append(
                f"Runs of one row differ in speed by up to {spreads[label]:.0%} ({label}): claims"
                " about seconds are no surer than that."
            )
        return found

    def _once(self, make: Callable[..., Any], *key: Any) -> Any:
        """Returns the result of `make`; each is made once."""
        if (make.__name__, *key) not in self._known:
            self._known[make.__name__, *key] = make(*key)
        return self._known[make.__name__, *key]

    def _note(self, note: str) -> None:
        note = archive.shorten(self.study.workdir, note)
        if note not in self.notes:
            self.notes.append(note)


def _validation(row: Point) -> dict[str, float]:
    """Returns the last validation at the longest length, mean over the row's runs."""
    found: dict[str, list[float]] = {}
    for run in row.finished:
        assert run.result is not None
        last = run.result.eval
        metrics = dict(last[max(last, key=int)]) if last else {}
        metrics[treatment.UNIGRAM] = run.result.unigram_nats
        for name, x in metrics.items():
            if x is not None:
                found.setdefault(name, []).append(float(x))
    return {name: float(np.mean(numbers)) for name, numbers in found.items()}
