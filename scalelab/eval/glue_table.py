"""The table of a benchmark: every task's scores over seeds, with intervals and notes.

`write(WORKDIR)` reads WORKDIR/<task>/seed<k> and, as the baseline, WORKDIR/scratch/<task>/seed<k>.
It writes WORKDIR/glue.md and glue.csv, and returns the table for a terminal. Scores are of dev
sets, in percent; in glue.csv they are fractions with all digits.
"""

import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalelab.config.fields import differing
from scalelab.eval import score_names
from scalelab.eval.score_names import GLUE_TITLES
from scalelab.helpers import files
from scalelab.lab import tables
from scalelab.lab.compare import bootstrap, estimates
from scalelab.lab.load import frame, task_runs
from scalelab.lab.load.task_runs import TaskRuns
from scalelab.records.run_files import TaskResult
from scalelab.tasks.glue import GLUE

Row = dict[str, Any]  # a line of the table; columns scratch_* are for the model from random weights

# Rows of GLUE's dev sets, by split.
DEV_SIZES = {task.name: {s.name: s.count for s in task.dev_splits} for task in GLUE}
# Dev split -> its own title, where a task has several with a score.
SHORT = {
    s.split: s.title for task in GLUE if len(task.dev_splits) > 1 for s in task.scores.values()
}
NO_BASELINE = "no baseline run"
COUNTS = ("seeds", "failed", "unfinished", "degenerate")
NUMBERS = ("median", "mean", "sd", "low", "high", *COUNTS)
HIDDEN = ("estimate", "examples")  # columns of a row that glue.csv leaves out
NOTHING: Row = dict.fromkeys((*NUMBERS, *HIDDEN))
PREFIXES = ("", "scratch_")
SCORES = (
    "Scores x 100 on dev sets, of the last step; the mean is over all finished seeds, degenerate"
    " ones included. 95% interval of the mean: Multi-Bootstrap over fine-tuning seeds and dev"
    " examples together; pre-training was not repeated, so its variation is not included."
)
MARKS = {  # field of a result -> note on the tasks that have it
    "mnli_first": "mnli-first: started from weights fine-tuned on MNLI",
    "early_stopping": "Early stopping on dev: steps chosen by dev score, too high",
    "chosen": "Grid: settings chosen on dev with the first seed, which is among the scores shown,"
    " so they are too high",
}


def write(workdir: pathlib.Path, *, only: str | None = None) -> str:
    """Writes glue.md and glue.csv and returns the table for a terminal.

    Args:
      workdir: the folder of all tasks, or of the seeds of one.
      only: shows only this task, without averages, and writes no file.

    Raises:
      ValueError: the folder has no fine-tuning, or files that contradict each other.
    """
    rows, notes = read(workdir, only=only)
    texts = _texts(rows)
    if only is None:
        markdown = tables.markdown(texts, 2) + "\n" + tables.bullets(notes)
        files.write_text(workdir / "glue.md", markdown)
        hidden = [prefix + name for prefix in PREFIXES for name in HIDDEN]
        numbers = pd.DataFrame(rows, dtype=object).drop(columns=hidden)
        numbers = numbers.assign(footnotes=" ".join(notes))
        files.write_text(workdir / "glue.csv", numbers.to_csv(index=False))
    plain = tables.plain(list(texts), texts.to_numpy().tolist(), 2)
    return plain + "".join(f"* {note}\n" for note in notes)


def read(workdir: pathlib.Path, *, only: str | None = None) -> tuple[list[Row], list[str]]:
    """Returns the rows of a table, and the notes below; arguments and errors as for `write`."""
    runs, scratch = task_runs.read(workdir), workdir / "scratch"
    begun = any(scratch.glob("seed*")) or any(scratch.glob("*/seed*"))
    if only is not None:
        if only not in runs:
            raise ValueError(f"{workdir} holds no fine-tuning on {only}; on {', '.join(runs)}")
        runs = {only: runs[only]}
    found = task_runs.read(scratch) if begun else {}
    baselines = {name: task for name, task in found.items() if name in runs}
    lines = frame.make([("", "", 0, runs), ("scratch_", "", 0, baselines)])
    missing: list[str] = []
    rows = [row for task in runs.values()
            for row in _task_rows(task, baselines.get(task.name), lines, missing)]  # fmt: skip
    notes = [SCORES, *describe_runs(runs)]
    if only is None:
        absent, other = _find_gaps(rows)
        averages = _averages(rows, whole=not absent + other)
        rows += averages
        if averages:
            notes.append("Averages: means over tasks of the mean of a task's metrics and splits.")
            if absent:
                notes.append(f"Not the GLUE average of nine: without {', '.join(absent)}.")
            if other:
                notes.append(f"Averages over dev sets that are not GLUE's: {'; '.join(other)}.")
    return rows, notes + _describe_baselines(runs, baselines, lines, scratch, only) + missing


# --- Rows -----------------------------------------------------------------------------------------


def _task_rows(
    task: TaskRuns, baseline: TaskRuns | None, lines: pd.DataFrame, missing: list[str]
) -> list[Row]:
    """Returns a row for each metric and split, or a row without scores if no run is finished."""
    rows = []
    several = len({split for split, _ in task.keys}) > 1
    lines = lines[lines["task"] == task.name]
    none = [] if task.undefined else (baseline.keys if baseline else [])[:1] or [("", "")]
    for key in task.keys or none:
        label = SHORT.get(key[0], f"{task.title} {key[0]}" if several else task.title)
        split, metric = key if task.keys else ("", "")
        row = {"name": label, "task": task.name, "split": split, "metric": metric}
        for prefix, own in zip(PREFIXES, (task, baseline), strict=True):
            at = (lines[["row", "split", "metric"]] == [prefix, *key]).all(axis=1)
            score = _score(own, lines[at], missing) if own and (at.any() or not prefix) else NOTHING
            row |= {prefix + name: value for name, value in score.items()}
        rows.append(row)
    return rows + [
        {"name": SHORT.get(split, task.title), "task": task.name, "split": split, "metric": metric}
        | {prefix + name: value for prefix in PREFIXES for name, value in NOTHING.items()}
        | {"seeds": 0, **_count(task), "undefined": why}
        for (split, metric), why in task.undefined.items()
    ]


def _count(task: TaskRuns) -> Row:
    """Returns the numbers of failed, unfinished and degenerate runs of a task."""
    return {
        "failed": sum(run.failed is not None for run in task.runs),
        "unfinished": sum(run.unfinished for run in task.runs),
        "degenerate": sum(bool(run.degenerate) for run in task.finished),
    }


def _score(task: TaskRuns, lines: pd.DataFrame, missing: list[str]) -> Row:
    """Returns the columns of some runs; `missing` gets a note if there is no interval."""
    values = pd.Series(list(lines["score"]), dtype=float)
    found = NOTHING | {
        "median": values.median(), "mean": values.mean(), "sd": values.std(),
        "seeds": len(values), **_count(task),
    }  # fmt: skip
    try:
        if len(values):
            (examples, predicted), metric = frame.stack(lines), lines["metric"].iloc[0]
            seed = zlib.crc32(task.name.encode())
            e = bootstrap.mean_score([(examples.gold, [(1.0, predicted)], metric)], seed=seed)
            found |= {"estimate": e, "low": e.low, "high": e.high, "examples": len(examples.gold)}
    except ValueError as error:
        note = f"{task.title}: no interval: {error}"
        missing += [] if note in missing else [note]
    return found


def _find_gaps(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Returns the tasks and splits of GLUE without scores, and dev sets that differ from GLUE's."""
    absent, other = [], []
    for name, sizes in DEV_SIZES.items():
        scored = {r["split"]: r["examples"] for r in rows if r["task"] == name and r["seeds"]}
        for split, size in sizes.items() if scored else ():
            label, found = SHORT.get(split, GLUE_TITLES[name]), scored.get(split)
            if split not in scored:
                absent.append(label)
            elif found not in (None, size):
                how = " carved or cut" if found < size else ""
                other.append(f"{label} {found:,}{how} (GLUE's {size:,})")
        absent += [] if scored else [GLUE_TITLES[name]]
    return absent, other


def _averages(rows: Sequence[Row], *, whole: bool) -> list[Row]:
    """Returns the average over tasks, and GLUE-Large by QQP's accuracy and by its F1.

    `whole`: the rows have GLUE's nine tasks, on all of GLUE's dev sets.
    """
    scored = {name: [r for r in rows if r["task"] == name and r["seeds"]] for name in GLUE_TITLES}
    tasks = [own for own in scored.values() if own]
    found = {"GLUE average" if whole else f"mean of {len(tasks)} tasks": tasks * (len(tasks) > 1)}
    for name, parts in score_names.MEANS.items():
        found[score_names.TITLES[name]] = [
            [r for r in scored[task] if (r["split"], r["metric"]) == (split, metric)]
            for task, split, metric in (score_names.TASK_SCORES[part] for part in parts)
        ]
    return [
        {"name": label, "task": None, "split": "", "metric": ""}
        | {prefix + name: x for prefix in PREFIXES for name, x in _average(parts, prefix).items()}
        for label, parts in found.items() if parts and all(parts)
    ]  # fmt: skip


def _average(tasks: Sequence[Sequence[Row]], prefix: str) -> Row:
    """Returns the mean over tasks of the mean of a task's rows; {} if a value is missing.

    It has no median or sd over seeds: they would need the same seeds in every task.
    """
    if not all(row[prefix + "seeds"] for rows in tasks for row in rows):
        return NOTHING
    column = lambda name: [[row[prefix + name] for row in rows] for rows in tasks]  # noqa: E731
    found = NOTHING | {
        "mean": np.mean([np.mean(own) for own in column("mean")]),
        "seeds": min(min(own) for own in column("seeds")),
        **{name: sum(own[0] for own in column(name)) for name in COUNTS[1:]},
    }
    if all(map(all, column("estimate"))):
        e = bootstrap.mean([bootstrap.mean(own, same_runs=True) for own in column("estimate")])
        found |= {"estimate": e, "low": e.low, "high": e.high}
    return found


def _texts(rows: Sequence[Row]) -> pd.DataFrame:
    """Returns the table for people, in percent."""
    percent = lambda x: "-" if x is None or x != x else f"{100 * x:.1f}"  # noqa: E731

    def interval(row: Row, prefix: str) -> str:
        low, high = (row[prefix + end] for end in ("low", "high"))
        return "-" if low is None else estimates.show_interval(100 * low, 100 * high, ".1f")

    def scratch(row: Row) -> str:
        if row["scratch_mean"] is None:
            return NO_BASELINE if row["task"] else "-"
        return f"{percent(row['scratch_mean'])} {interval(row, 'scratch_')}"

    return pd.DataFrame([
        {"task": row["name"], "metric": row["metric"]}
        | {name: percent(row[name]) for name in ("median", "mean", "sd")}
        | ({"mean": "undefined"} if row.get("undefined") else {})
        | {"95% interval": interval(row, "")}
        | {name: str(row[name]) for name in COUNTS} | {"from scratch": scratch(row)}
        for row in rows
    ])  # fmt: skip


# --- Notes ----------------------------------------------------------------------------------------


def describe_runs(tasks: Mapping[str, TaskRuns]) -> list[str]:
    """Describes recipes of runs, runs that failed or learned nothing, and missing data."""
    done = [(task, run) for task in tasks.values() for run in task.finished]
    results = [(task.title, run.result) for task, run in done if run.result]
    names = {"System": "system", "recipe": "recipe", "initial weights": "init"}
    parts = {label: dict.fromkeys(str(v) for _, r in results if (v := getattr(r, f)) is not None)
             for label, f in names.items()}  # fmt: skip
    found = ["; ".join(f"{label} {' and '.join(x)}" for label, x in parts.items() if x) + "."]
    for field, note in MARKS.items():
        titles = dict.fromkeys(title for title, result in results if getattr(result, field))
        found += [f"{note}: {', '.join(titles)}."] if titles else []
    for task in tasks.values():
        for run in task.runs:
            state = f"degenerate: {run.degenerate}" if run.degenerate else ""
            state = f"failed: {run.failed}" if run.failed is not None else state
            state = "unfinished" if run.unfinished else state
            found += [f"{task.title}: seed {run.seed} {state}"] if state else []
        sound = [run.scores[task.keys[0]] for run in task.finished
                 if task.keys and not run.degenerate]  # fmt: skip
        if 0 < len(sound) < len(task.finished):
            mean = f"{100 * sum(sound) / len(sound):.1f}"
            found.append(f"{task.title}: mean {task.keys[0][1]} of the other {len(sound)}: {mean}")
    if single := [task.title for task in tasks.values() if len(task.finished) == 1]:
        found.append(f"One seed, so the interval is over examples alone: {', '.join(single)}.")
    for title, remark in ((title, x) for title, result in results for x in result.remarks):
        found.append(remark if remark.startswith(title) else f"{title}: {remark}")
    return list(dict.fromkeys(found))


def differing_settings(lines: pd.DataFrame, sides: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the tasks with different settings on the two sides, and the settings.

    A field that one side does not record counts as equal, because earlier results record few.

    Args:
      lines: the result of `frame.make`.
      sides: row of `lines` -> its words in messages: "A" -> "in A".

    Returns:
      Pairs such as ("RTE, WNLI", "epochs 1 in A, 6 in B").
    """
    found: dict[str, list[str]] = {}
    for task, own in lines.groupby("task", sort=False):
        texts = []
        for row in sides:
            runs = own.loc[own["row"] == row, "tuning"].unique()
            values = pd.DataFrame([_settings(run.result) for run in runs if run.result])
            texts.append({x: " and ".join(sorted(set(values[x].dropna()))) for x in values})
        apart = differing(texts, texts[0].keys() ^ texts[1].keys())
        fields = [
            f"{x} " + ", ".join(f"{v} {s}" for v, s in zip(pair, sides.values(), strict=True))
            for x, pair in apart.items()
        ]
        if fields:
            found.setdefault("; ".join(fields), []).append(score_names.title_of(str(task)))
    return [(", ".join(titles), fields) for fields, titles in found.items()]


def _settings(result: TaskResult) -> dict[str, str]:
    own = {"recipe": result.recipe, "mnli_first": result.mnli_first}
    if digest := (result.data or {}).get("train"):
        own["training set"] = digest[:8]
    return {k: "off" if x is None else str(x) for k, x in (own | (result.settings or {})).items()}


def _describe_baselines(
    runs: Mapping[str, TaskRuns], baselines: Mapping[str, TaskRuns], lines: pd.DataFrame,
    scratch: pathlib.Path, only: str | None,
) -> list[str]:  # fmt: skip
    """Returns notes on the column "from scratch", or the command that fills it."""
    done = [run for task in runs.values() for run in task.finished]
    if done and all(run.from_scratch for run in done):
        return ["These runs themselves start from random weights."]
    if not baselines:
        init = done[0].result.init if done and done[0].result else None
        command = f"--init=none --like={init} --workdir={scratch}"
        how = f"No baseline: the same command with {command} trains the model from random weights"
        return [f"{how}, and the table then shows it."] if only and done else []
    found = ["From scratch: the same model from random weights, mean and 95% interval."]
    for titles, fields in differing_settings(lines, {"": "here", "scratch_": "from scratch"}):
        found.append(
            f"From scratch was fine-tuned with other settings in {titles}, so the difference"
            f" includes their effect: {fields}."
        )
    states = describe_runs(baselines)[1:]
    return found + [f"From scratch: {note}" for note in states if ": seed " in note]
