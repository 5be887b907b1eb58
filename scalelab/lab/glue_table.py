"""The table of a benchmark: every task's scores over seeds, and how far they can be trusted.

`write(WORKDIR)` reads WORKDIR/<task>/seed<k> and, as the baseline, WORKDIR/scratch/<task>/seed<k>,
leaves WORKDIR/glue.md and glue.csv, and returns the same for a terminal. Scores are of dev sets, in
percent; in glue.csv they are fractions with all digits.
"""

import dataclasses
import pathlib
import zlib
from collections.abc import Callable, Mapping

from scalelab.lab import bootstrap, notes, statistics, tables, task_runs
from scalelab.lab.bootstrap import Estimate
from scalelab.lab.statistics import Summary
from scalelab.lab.task_runs import DEV_SIZES, SHORT, TITLES, TaskRuns

# GLUE-Large: the mean of the three large tasks (protocol, "Fine-tuning").
LARGE = (("mnli", "matched"), ("qqp", "dev"), ("qnli", "dev"))
NO_BASELINE = "no baseline run"


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


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows, and what has to be said below them."""

    rows: list[Row]
    notes: list[str]


def write(workdir: pathlib.Path, *, best: bool = False) -> str:
    """Writes glue.md and glue.csv and returns the table for a terminal.

    Args:
      workdir: the folder of all tasks.
      best: whether to show the best-on-dev score too, labelled.

    Raises:
      ValueError: the folder holds no fine-tuning, or files that do not go together.
      OSError: a file cannot be read or written.
    """
    table = read(workdir)
    for name, text in (("glue.md", markdown(table, best=best)), ("glue.csv", csv(table))):
        part = workdir / f"{name}.tmp"
        part.write_text(text, encoding="utf-8")
        part.replace(workdir / name)
    return plain(table, best=best)


def of_task(workdir: pathlib.Path, task: str, *, best: bool = False) -> str:
    """The table of one task for a terminal; arguments and errors as for `write`.

    Args:
      workdir: holds seed0, seed1, ... or the folder of all tasks.
      task: its name.
      best: as for `write`.
    """
    return plain(read(workdir, only=task), best=best)


def read(workdir: pathlib.Path, *, only: str | None = None) -> Table:
    """Makes the table of the fine-tunings in a folder.

    Args:
      workdir: see above.
      only: leave out all other tasks, and the averages.

    Raises:
      ValueError: the folder holds no fine-tuning, or files that do not go together.
      OSError: a file cannot be read.
    """
    runs = task_runs.read(workdir)
    scratch = workdir / "scratch"
    baselines = task_runs.read(scratch) if scratch.is_dir() and any(scratch.iterdir()) else {}
    if only is not None:
        if only not in runs:
            raise ValueError(f"{workdir} holds no fine-tuning on {only}; on {', '.join(runs)}")
        runs = {only: runs[only]}
    missing: list[str] = []
    rows = []
    for name, task in runs.items():
        rows += _rows(task, baselines.get(name), missing)
    absent, others = _not_of_glue(rows)
    averages = [] if only is not None else _averages(rows, whole=not absent + others)
    said = notes.of_table(runs, baselines, [row.label for row in averages])
    said += (notes.of_averages(absent, others) if averages else []) + missing
    return Table(rows + averages, said)


def plain(table: Table, *, best: bool = False) -> str:
    """The table for a terminal, notes below."""
    header, rows = _cells(table, best)
    return tables.plain(header, rows, 2) + "".join(f"* {note}\n" for note in _said(table, best))


def markdown(table: Table, *, best: bool = False) -> str:
    """The table in Markdown, notes below."""
    header, rows = _cells(table, best)
    said = "".join(f"- {note}\n" for note in _said(table, best))
    return tables.markdown(header, rows, 2) + "\n" + said


def csv(table: Table) -> str:
    """The table for programs: fractions with all digits, an empty field for what is unknown."""
    numbers = ("median", "mean", "sd", "low", "high", "seeds", "failed", "unfinished", "degenerate")
    header = ["name", "task", "split", "metric", *numbers]
    header += [f"scratch_{name}" for name in numbers] + ["best_on_dev"]
    lines = []
    for row in table.rows:
        line: list[object] = [row.label, row.task, row.split, row.metric]
        for score in (row.score, row.baseline):
            line += [None] * len(numbers) if score is None else _numbers(score)
        lines.append([None if x != x else x for x in [*line, row.best]])  # NaN is unknown too
    return tables.comma_separated(header, lines)


def score(task: TaskRuns, key: tuple[str, str], missing: list[str]) -> Score:
    """Scores the runs of a task.

    Args:
      task: its runs.
      key: split and metric.
      missing: a note is added where there is no interval.
    """
    degenerate = sum(bool(run.result.get("degenerate")) for run in task.finished)
    failed = sum(run.failed is not None for run in task.runs)
    unfinished = sum(run.unfinished for run in task.runs)
    summary = statistics.summarise(task.values(key), failed, degenerate)
    try:
        examples, predicted = task_runs.stack(task, key[0])
    except (FileNotFoundError, ValueError) as error:
        note = f"{task.title}: no interval: {error}"
        missing += [] if note in missing else [note]
        return Score(summary, None, unfinished)
    seed = zlib.crc32(task.name.encode())
    estimate = bootstrap.multi_bootstrap(examples.gold, predicted, key[1], seed=seed)
    return Score(summary, estimate, unfinished, len(examples.gold))


def _rows(task: TaskRuns, baseline: TaskRuns | None, missing: list[str]) -> list[Row]:
    """One row for every metric on every split; one without scores if no run is finished."""
    if not task.finished:
        failed = sum(run.failed is not None for run in task.runs)
        empty = Score(statistics.summarise([], failed), None, len(task.runs) - failed)
        keys = baseline.keys[:1] if baseline else []
        beside = [score(baseline, key, missing) for key in keys] if baseline else []
        return [Row(task.title, task.name, "", "", empty, beside[0] if beside else None)]
    rows = []
    for key in task.keys:
        beside = score(baseline, key, missing) if baseline and key in baseline.keys else None
        best = [run.result["best"]["dev"][key[0]][key[1]] for run in task.finished
                if run.result.get("best")]  # fmt: skip
        mean = sum(best) / len(best) if len(best) == len(task.finished) else None
        label = SHORT.get(key[0], task.title) if task.name == "mnli" else task.title
        rows.append(Row(label, task.name, key[0], key[1], score(task, key, missing), beside, mean))
    return rows


# --- Averages -------------------------------------------------------------------------------------

Pick = Callable[[Row], Score | None]


def _not_of_glue(rows: list[Row]) -> tuple[list[str], list[str]]:
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


def _averages(rows: list[Row], *, whole: bool) -> list[Row]:
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


# --- Words ----------------------------------------------------------------------------------------


def _said(table: Table, best: bool) -> list[str]:
    return table.notes + ([notes.BEST] if best else [])


def _numbers(score: Score) -> list[object]:
    s, e = score.summary, score.estimate
    ends = [None, None] if e is None else [e.low, e.high]
    counts = [s.num, s.num_failed, score.num_unfinished, s.num_degenerate]
    return [s.median, s.mean, s.sd, *ends, *counts]


def _cells(table: Table, best: bool) -> tuple[list[str], list[list[str]]]:
    header = ["task", "metric", "median", "mean", "sd", "95% interval", "seeds"]
    header += ["failed", "unfinished", "degenerate", "from scratch"]
    rows = []
    for row in table.rows:
        s = row.score.summary
        line = [row.label, row.metric, *map(percent, (s.median, s.mean, s.sd))]
        line += [interval(row.score.estimate), str(s.num), str(s.num_failed)]
        line += [str(row.score.num_unfinished), str(s.num_degenerate)]
        if row.baseline is None:
            line.append(NO_BASELINE if row.task else "-")
        else:
            mean = percent(row.baseline.summary.mean)
            line.append(f"{mean} {interval(row.baseline.estimate)}")
        rows.append(line + ([percent(row.best)] if best else []))
    return header + (["best on dev"] if best else []), rows


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal; "-" for what is unknown."""
    return "-" if value is None or value != value else f"{100 * value:.1f}"


def interval(estimate: Estimate | None) -> str:
    """The interval of an estimate in percent."""
    return "-" if estimate is None else f"[{percent(estimate.low)}, {percent(estimate.high)}]"
