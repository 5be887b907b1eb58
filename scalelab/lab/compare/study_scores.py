"""The scores of a study's rows, and their weighted sums, with intervals; results are cached.

Scores of tasks are fractions on dev sets. Their intervals are the Multi-Bootstrap's (bootstrap.py)
over pre-training seeds, fine-tuning seeds and dev examples. "loss" and "seconds" are numbers of the
pre-trainings themselves: mean and Student's interval over seeds. Seeds that rows share are drawn
jointly, and a contrast uses the seeds that all of its rows have finished. The variance of seeds
of a row, or of a difference of two rows, is estimated from all rows that have finished these seeds;
for "seconds" and for sums of more rows, from the summed rows only.
"""

import dataclasses
import functools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from scalelab.eval.names import TRIVIAL
from scalelab.eval.score_names import PARTS, PRETRAINING_SCORES, SCORES, TASK_SCORES
from scalelab.lab.compare import bootstrap, comparability, estimates, learned
from scalelab.lab.compare.bootstrap import DevSet
from scalelab.lab.compare.claim_lines import Arm
from scalelab.lab.compare.claims import Treatment
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.compare.scores import Block, Row, Scores, mean_weights
from scalelab.lab.load import frame, task_runs
from scalelab.lab.load.study_runs import Study
from scalelab.records import archive
from scalelab.records.baselines import Baseline

NUM_RESAMPLES = 2000  # the least p is 2 / 2001

Parts = tuple[tuple[Row, float], ...]  # rows with their weights
Seeds = tuple[tuple[int, ...], tuple[int, ...]]  # seeds of pre-training, seeds of fine-tuning


@dataclasses.dataclass(frozen=True)
class Best:
    """Arms at the values of the lowest validation loss."""

    blocks: Sequence[Block]  # the differences of the rows that were chosen
    estimate: Estimate | None  # their mean; None: they do not compare
    chosen: str = ""  # the choice in words
    why: str = ""  # the reason if there is no pair


class StudyScores(Scores):
    """The scores of a study.

    Args:
      study: the result of `study_runs.read`.
      part: "tasks"; "scratch" for the fine-tunings from random weights; or "early/0.25" for the
        scores at this share of the budget.
      baselines: objective -> the trivial baseline that it must beat.
    """

    def __init__(
        self,
        study: Study,
        part: str = "tasks",
        baselines: Mapping[str, Baseline] | None = None,
    ) -> None:
        self.study, self.part, self.baselines = study, part, baselines or {}
        self.notes: list[str] = []  # what could not be used; grows as scores are asked for
        lines = frame.make(
            (point.key, run.name, run.seed, run.tuned.get(part, {}))
            for point in study.points
            for run in point.finished
        )
        self._lines = dict(iter(lines.groupby(["row", "task", "split", "metric"])))
        self._stack = functools.cache(self._make_stack)
        self._estimate = functools.cache(self._make_estimate)
        self._table = functools.cache(self._make_table)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The study's points, finished or not."""
        return self.study.points

    def value(self, row: Row, score: str) -> Estimate | None:
        """Returns a score of a row, over the seeds that all its runs and tasks have finished."""
        return self._estimate(((row, 1.0),), score)

    def difference(self, a: Row, b: Row, score: str) -> Estimate | None:
        """Returns score(B) - score(A); None if one is missing or they do not compare."""
        return self._estimate(((a, -1.0), (b, 1.0)), score)

    def contrast(self, weights: Mapping[Row, float], score: str) -> Estimate | None:
        """Returns a weighted sum of scores; it has an interval if rows share two seeds or more."""
        found = self._estimate(tuple(weights.items()), score)
        if found is None or len(self._seeds([*weights], score)[0]) > 1:
            return found
        return estimates.without_interval(found.value)

    def choose(self, pairs: Sequence[tuple[Arm, Arm]], score: str, fields: Sequence[str]) -> Best:
        """Compares pairs of arms, each at the values of `fields` of the lowest validation loss.

        The choice is made again in every resample, by the mean loss over its pre-training seeds, so
        that the interval has the uncertainty of the choice (estimates.with_choice). A row that
        lacks a seed, a loss or a score which another row of its arm has is not chosen.
        """
        kept, shared = self._candidates(pairs, score)
        pairs = [pair for pair in pairs if all(kept[arm] for arm in pair)] if shared else []
        if not pairs:
            return Best([], None, why="no seed with validation loss and score of each arm")
        arms = list(dict.fromkeys(arm for pair in pairs for arm in pair))
        rows = [row for arm in arms for row in kept[arm]]
        tuned = self._seeds(rows, score)[1]
        rng = np.random.default_rng(zlib.crc32(" ".join(row.key for row in rows).encode()))
        draws = bootstrap.draw_seeds(rng, NUM_RESAMPLES, len(shared), len(tuned))
        losses = [
            np.array([[_numbers(row, "loss")[s] for row in kept[arm]] for s in shared])
            for arm in arms
        ]  # [P, rows] each
        here = [int(np.argmin(own.mean(axis=0))) for own in losses]
        drawn = np.stack([np.argmin(draws.sum(axis=2) @ own, axis=1) for own in losses], axis=1)

        def select(places: Iterable[int]) -> list[Block]:
            row = {arm: kept[arm][place] for arm, place in zip(arms, places, strict=True)}
            return [{row[a]: 1.0, row[b]: -1.0} for a, b in pairs]

        text = _describe_choice(fields, arms, kept, here, (drawn == here).mean(axis=0))
        plain = self.contrast(mean_weights(select(here)), score)
        if plain is None or len(shared) < 2 or (drawn == here).all():
            return Best(select(here), plain, text)
        resamples = np.empty(NUM_RESAMPLES)
        for places in np.unique(drawn, axis=0):
            parts = tuple(mean_weights(select(places.tolist())).items())
            found = self._estimate_drawn(parts, score, (shared, tuned), draws)
            if found is None:  # such as texts that changed: see the notes
                return Best(select(here), None, text)
            now = (drawn == places).all(axis=1)
            resamples[now] = found.resamples[now]
        return Best(select(here), estimates.with_choice(plain, resamples), text)

    def _candidates(
        self, pairs: Sequence[tuple[Arm, Arm]], score: str
    ) -> tuple[dict[Arm, Arm], tuple[int, ...]]:
        """Returns the rows of each arm that can be chosen, and the seeds that all of them have."""
        arms = dict.fromkeys(arm for pair in pairs for arm in pair)
        seeds = dict[Row, set[int]]()  # with a finite validation loss and the score
        for row in (row for arm in arms for row in arm):
            finite = {seed for seed, x in _numbers(row, "loss").items() if np.isfinite(x)}
            seeds[row] = finite & set(self._seeds([row], score)[0])
        most = {arm: max(len(seeds[row]) for row in arm) for arm in arms}
        kept = {a: tuple(row for row in a if n and len(seeds[row]) == n) for a, n in most.items()}
        used = [seeds[row] for rows in kept.values() for row in rows]
        return kept, tuple(sorted(set.intersection(*used))) if used else ()

    def by_seed(self, row: Row, score: str) -> list[float]:
        """Returns a score of a row for each of its pre-training seeds."""
        if score in PRETRAINING_SCORES:
            return [*_numbers(row, score).values()]
        seeds = self._seeds([row], score)
        sets = self._dev_sets(((row, 1.0),), score, seeds) if all(seeds) else ()
        return bootstrap.by_seed(sets).tolist() if sets else []

    def check_treatment(self, rows: Iterable[Row], score: str) -> Treatment:
        """Returns why some rows can test nothing, and what was not checked; see learned.py."""
        return learned.check(self, [*rows], score)

    def passes(self, row: Row) -> list[float | None]:
        """Returns each finished pre-training's passes over its corpus; None: not recorded."""
        return [run.result.passes for run in row.finished if run.result]

    def curves(self, row: Row) -> dict[int, dict[int, np.ndarray]]:
        """Returns seed -> maximum length -> [K, 2] validation losses by seconds."""
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

    def remarks(self, scores: Iterable[str]) -> list[str]:
        """Returns remarks on some scores: unusable values with reasons, and the clock's device."""
        scores = list(scores)
        parts = {part for score in scores for part in PARTS.get(score, ())}
        named = [n for n in self.notes if any(re.search(rf" {part}: ", n) for part in parts)]
        found = [f"Could not be used: {note}." for note in named]
        if "seconds" not in scores:
            return found
        machines = sorted({r.environment.machine for r in self.study.runs if r.finished})
        if len(machines) > 1:
            found.append(f"Seconds are of different machines: {'; '.join(machines)}.")
        return found

    @functools.cached_property
    def scratch(self) -> "StudyScores":
        """The scores of the same models from random weights."""
        return StudyScores(self.study, "scratch")

    def at(self, share: float) -> "StudyScores":
        """Returns the scores at a share of the budget."""
        return StudyScores(self.study, f"early/{share}")

    # --- Computation ------------------------------------------------------------------------------

    def _make_estimate(self, parts: Parts, score: str) -> Estimate | None:
        if score not in SCORES:
            raise ValueError(f"unknown score {score!r}: expected one of {', '.join(SCORES)}")
        seeds = self._seeds([row for row, _ in parts], score)
        found = self._estimate_drawn(parts, score, seeds) if all(seeds) else None
        if found is None or score not in PRETRAINING_SCORES or len(parts) > 1:
            return found
        return dataclasses.replace(found, low=max(found.low, 0.0))  # no loss is below 0

    def _estimate_drawn(
        self, parts: Parts, score: str, seeds: Seeds, draws: np.ndarray | None = None
    ) -> Estimate | None:
        """Estimates a weighted sum over some seeds.

        With `draws` [R, P, F] of these seeds, estimates of several sums share them.
        """
        seed = zlib.crc32(" ".join(row.key for row, _ in parts).encode())
        if score in PRETRAINING_SCORES:
            if score != "seconds" and not self._losses_compare(parts, score):
                return None
            given, apart = [row for row, _ in parts], comparability.differing_losses
            others = [  # their losses compare with the given ones
                row for row in self.rows
                if score != "seconds" and row.finished and row not in given
                and not all(apart((row, own), score) for own in given)
            ]  # fmt: skip
            table = [(_group(row), _numbers(row, score)) for row in (*given, *others)]
            weights, drawn = [w for _, w in parts], None if draws is None else draws.sum(axis=2)
            return estimates.contrast_numbers(weights, table, seeds[0], seed=seed, draws=drawn)
        sets = self._dev_sets(parts, score, seeds)
        if not sets:
            return None
        weights = [(_group(row), weight) for row, weight in parts]
        pooled = estimates.pooled_variances(self._table(score, seeds), weights)
        return bootstrap.mean_score(
            sets, num_resamples=NUM_RESAMPLES, seed=seed, pooled=pooled, draws=draws
        )

    def _make_table(self, score: str, seeds: Seeds) -> list[tuple[str, np.ndarray]]:
        """Returns group and scores [P] of each row that has finished these seeds."""
        found = list[tuple[str, np.ndarray]]()
        for row in self.rows:
            there = self._seeds([row], score)
            if all(set(own) <= set(all_own) for own, all_own in zip(seeds, there, strict=True)):
                sets = self._dev_sets(((row, 1.0),), score, seeds)
                found += [(_group(row), bootstrap.by_seed(sets))] if sets else []
        return found

    def _losses_compare(self, parts: Parts, score: str) -> bool:
        """Whether a sum of losses is a mean loss, or a difference of comparable losses."""
        weights, apart = dict(parts), comparability.differing_losses
        rows = list(weights)
        groups = comparability.group_alike(rows, lambda a, b: not apart((a, b), score))
        if len(groups) == 1 or all(abs(sum(weights[row] for row in own)) < 1e-9 for own in groups):
            return True
        fields = ", ".join(comparability.differing_losses(rows, score))
        self._note(
            f"the {score}: losses of different {fields} do not compare; compare evaluations, or"
            " bits per byte if objective and mask rate are the same"
        )
        return False

    def _make_stack(self, row: Row, name: str, seeds: Seeds) -> frame.Stack | None:
        """Stacks a row's predictions for a score; None if some are missing or unusable."""
        task, split, metric = TASK_SCORES[name]
        lines, key = self._lines.get((row.key, task, split, metric)), (split, metric)
        if lines is None:
            none = task_runs.TaskRuns(task, ())
            tasks = (run.tuned.get(self.part, {}).get(task, none) for run in row.finished)
            if why := next((own.undefined[key] for own in tasks if key in own.undefined), ""):
                self._note(f"{row.label}, {name}: undefined: {why}")
            return None
        there = lines["seed"].isin(seeds[0]) & lines["finetune_seed"].isin(seeds[1])
        chosen = pd.DataFrame(lines[there])
        if len(chosen) < len(seeds[0]) * len(seeds[1]):
            return None
        try:
            return frame.stack(chosen)
        except ValueError as error:
            self._note(f"{row.label}, {name}: {error}")
            return None

    def _dev_sets(self, parts: Parts, score: str, seeds: Seeds) -> list[DevSet]:
        """Returns the dev sets of a score; [] if one is missing."""
        found = [self._dev_set(parts, name, seeds) for name in PARTS[score]]
        whole = [own for own in found if own is not None]
        return whole if len(whole) == len(found) else []

    def _dev_set(self, parts: Parts, name: str, seeds: Seeds) -> DevSet | None:
        """Returns gold, weights with predictions [P, F, n], and the metric of a score."""
        first, rows = None, []
        for row, weight in parts:
            stack = self._stack(row, name, seeds)
            if stack is None:
                return None
            first = first or stack.examples
            if differs := task_runs.differ(first, stack.examples):
                self._note(f"{row.label} does not compare on {name}: {differs}")
                return None
            rows.append((weight, stack.predicted))
        assert first is not None
        return first.gold, rows, TASK_SCORES[name][2]

    def _seeds(self, rows: Sequence[Row], score: str) -> Seeds:
        """Returns the seeds that all rows have finished in all tasks; (0,) are those of no task."""
        if score in PRETRAINING_SCORES:
            found = set.intersection(*(set(_numbers(row, score)) for row in rows))
            return tuple(sorted(found)), (0,)
        tasks = [TASK_SCORES[part][0] for part in PARTS[score]]
        there = []
        for row in rows:
            tuned = ((run.seed, run.tuned.get(self.part, {})) for run in row.finished)
            found = {seed: frame.shared_seeds(own, tasks) for seed, own in tuned}
            there.append({seed: tuned for seed, tuned in found.items() if tuned})
        pretrain = set.intersection(*(set(found) for found in there))
        tuned = [found[p] for found in there for p in pretrain]
        finetune = set.intersection(*tuned) if tuned else set()
        return tuple(sorted(pretrain)), tuple(sorted(finetune))

    def floor(self, score: str) -> float | None:
        """Returns the trivial score: of a guess, or of the best constant answer of a first row."""
        found = []
        for name in PARTS[score]:
            every = ((((row, 1.0),), name, self._seeds([row], score)) for row in self.rows)
            sets = (self._dev_set(*parts) for parts in every if all(parts[2]))
            first = next(filter(None, sets), None)
            if first is None:
                return None
            found.append(TRIVIAL.get(name, _constant(TASK_SCORES[name][2], first[0])))
        return float(np.mean(found))

    def _note(self, note: str) -> None:
        note = archive.shorten(self.study.workdir, note)
        if note not in self.notes:
            self.notes.append(note)


def _constant(metric: str, gold: np.ndarray) -> float:
    """Returns the score of the best constant answer."""
    if metric == "accuracy":
        return float(np.unique(gold, return_counts=True)[1].max() / len(gold))
    share = float(np.mean(gold == 1)) if metric == "f1" else 0.0  # 0 for correlations and hits
    return 2 * share / (1 + share)


def _group(row: Row) -> str:
    """Returns the name of the rows that differ from this one in their shapes only."""
    return f"{row.system} {row.variant}"


def _describe_choice(
    fields: Sequence[str], arms: Sequence[Arm], kept: Mapping[Arm, Arm], places: Sequence[int],
    shares: Iterable[float],
) -> str:  # fmt: skip
    """Returns in words which row of each arm has the lowest loss, and in how many resamples."""
    chosen = ", ".join(
        f"{kept[arm][place].label} (in {share:.0%} of the resamples)"
        for arm, place, share in zip(arms, places, shares, strict=True)
    )
    left = [row.label for arm in arms for row in arm if row not in kept[arm]]
    without = f"; left out, as runs are missing or diverged: {', '.join(left)}" * bool(left)
    names = ", ".join(field.rpartition(".")[2] for field in fields)
    return f"{names} chosen by validation loss: {chosen}{without}"


def _numbers(row: Row, score: str) -> dict[int, float]:
    """Returns seed -> score of the finished pre-trainings that have one."""
    known = {run.seed: getattr(run.result, score) for run in row.finished}
    return {seed: x for seed, x in known.items() if x is not None}
