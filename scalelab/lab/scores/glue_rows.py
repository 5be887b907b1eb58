"""Rows of the table of a benchmark: each task's scores over seeds, and the averages over tasks."""

import dataclasses
import zlib
from collections.abc import Callable, Mapping

from scalelab.lab.compare import bootstrap, estimates
from scalelab.lab.compare.estimates import Estimate, Summary
from scalelab.lab.load.task_runs import DEV_SIZES, SHORT, TITLES, TaskRuns
from scalelab.lab.scores.predictions import stack_runs

# GLUE-Large: the mean of the three large tasks (protocol, "Fine-tuning").
LARGE = (("mnli", "matched"), ("qqp", "dev"), ("qnli", "dev"))


@dataclasses.dataclass(frozen=True, eq=False)
class Score:
    """What a net scored.

    Attributes:
      summary: over its seeds.
      estimate: with the interval over seeds and examples; None where predictions are missing.
      num_unfinished: seeds that are still at work, or were stopped.
      num_examples: of the dev set; None where predictions are missing, and for averages.
    """

    summary: Summary
    estimate: Estimate | None
    num_unfinished: int = 0
    num_examples: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A line of the table.

    Attributes:
      label: the task, or the name of an average.
      task: the task; None for an average.
      split: the dev split; "" for an average, or where no run is finished.
      metric: likewise.
      score: of the net.
      baseline: of the same net from random weights; None if there is no such run.
      best: mean over seeds of the score that is best on dev; None where unknown.
    """

    label: str
    task: str | None
    split: str
    metric: str
    score: Score
    baseline: Score | None
    best: float | None = None


Pick = Callable[[Row], Score | None]


def score(task: TaskRuns, key: tuple[str, str], missing: list[str]) -> Score:
    """Scores the runs of a task.

    Args:
      task: its runs.
      key: split and metric.
      missing: a note is added where there is no interval.
    """
    degenerate = sum(bool(run.degenerate) for run in task.finished)
    failed = sum(run.failed is not None for run in task.runs)
    unfinished = sum(run.unfinished for run in task.runs)
    summary = estimates.summarise(task.values(key), failed, degenerate)
    try:
        examples, predicted, *_ = stack_runs([task], key[0])
    except ValueError as error:
        note = f"{task.title}: no interval: {error}"
        missing += [] if note in missing else [note]
        return Score(summary, None, unfinished)
    seed = zlib.crc32(task.name.encode())
    estimate = bootstrap.multi_bootstrap(examples.gold, predicted, key[1], seed=seed)
    return Score(summary, estimate, unfinished, len(examples.gold))


def of_task(task: TaskRuns, baseline: TaskRuns | None, missing: list[str]) -> list[Row]:
    """One row for every metric on every split; one without scores if no run is finished."""
    if not task.finished:
        failed = sum(run.failed is not None for run in task.runs)
        empty = Score(estimates.summarise([], failed), None, len(task.runs) - failed)
        keys = baseline.keys[:1] if baseline else []
        beside = [score(baseline, key, missing) for key in keys] if baseline else []
        return [Row(task.title, task.name, "", "", empty, beside[0] if beside else None)]
    rows = []
    for key in task.keys:
        beside = score(baseline, key, missing) if baseline and key in baseline.keys else None
        best = [x for run in task.finished if (x := run.best(key)) is not None]
        mean = sum(best) / len(best) if len(best) == len(task.finished) else None
        label = SHORT.get(key[0], task.title) if task.name == "mnli" else task.title
        rows.append(Row(label, task.name, key[0], key[1], score(task, key, missing), beside, mean))
    return rows


def not_of_glue(rows: list[Row]) -> tuple[list[str], list[str]]:
    """What keeps an average from being GLUE's: tasks and splits that are absent, and other sets."""
    absent, others = [], []
    for name, sizes in DEV_SIZES.items():
        scored = {r.split: r.score.num_examples for r in rows if r.task == name and r.split}
        if not scored:
            absent.append(TITLES[name])
            continue
        for split, size in sizes.items():
            label = SHORT.get(split, TITLES[name])
            if split not in scored:
                absent.append(label)
            elif (rows_read := scored[split]) not in (None, size):
                how = " carved or cut" if rows_read < size else ""
                others.append(f"{label} {rows_read:,}{how} (GLUE's {size:,})")
    return absent, others


def averages(rows: list[Row], *, whole: bool) -> list[Row]:
    """The average over tasks, and GLUE-Large with each metric of QQP, where its parts are there.

    Args:
      rows: the tasks'.
      whole: whether they are GLUE's nine, on every one of GLUE's dev sets.
    """
    scored: dict[str, list[Row]] = {}
    for row in rows:
        if row.task in TITLES and row.score.summary.num:
            scored.setdefault(row.task, []).append(row)
    found = []
    if len(scored) > 1:
        label = "GLUE average" if whole else f"mean of {len(scored)} tasks"
        found.append(_average(label, scored))
    for metric, label in (("accuracy", "QQP acc."), ("f1", "QQP F1")):
        parts = {
            task: [r for r in scored.get(task, []) if r.split == split and r.metric == wanted]
            for (task, split), wanted in zip(LARGE, ("accuracy", metric, "accuracy"), strict=True)
        }
        if all(parts.values()):
            found.append(_average(f"GLUE-Large, {label}", parts))
    return found


def _average(label: str, parts: Mapping[str, list[Row]]) -> Row:
    """The mean over tasks of the mean of a task's rows."""
    ours = _average_score(parts, lambda row: row.score)
    assert ours is not None
    baseline = _average_score(parts, lambda row: row.baseline)
    return Row(label, None, "", "", ours, baseline)


def _average_score(parts: Mapping[str, list[Row]], pick: Pick) -> Score | None:
    """The average of the scores that `pick` takes from each row; None if it has not all of them."""
    tasks = [[pick(row) for row in rows] for rows in parts.values()]
    scores = [[s for s in task if s is not None and s.summary.num] for task in tasks]
    if [len(task) for task in scores] != [len(task) for task in tasks]:
        return None
    means = [sum(s.summary.mean for s in task) / len(task) for task in scores]
    nothing = float("nan")  # a median or sd over seeds would need the same seeds in every task
    summary = Summary(
        min(s.summary.num for task in scores for s in task),
        nothing,
        sum(means) / len(means),
        nothing,
        sum(task[0].summary.num_failed for task in scores),
        sum(task[0].summary.num_degenerate for task in scores),
    )
    estimates = [[s.estimate for s in task if s.estimate is not None] for task in scores]
    estimate = None
    if [len(task) for task in estimates] == [len(task) for task in scores]:
        estimate = bootstrap.mean([bootstrap.mean(task, same_runs=True) for task in estimates])
    return Score(summary, estimate, sum(task[0].num_unfinished for task in scores))
