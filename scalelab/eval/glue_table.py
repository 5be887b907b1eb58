"""The table of a benchmark: every task's scores over seeds, with intervals and notes.

`write(WORKDIR)` reads WORKDIR/<task>/seed<k> and, as the baseline, WORKDIR/scratch/<task>/seed<k>,
leaves WORKDIR/glue.md and glue.csv, and returns the same for a terminal. Scores are of dev sets, in
percent; in glue.csv they are fractions with all digits.
"""

import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalelab.helpers import files
from scalelab.lab import tables
from scalelab.lab.compare import bootstrap, scores
from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import DEV_SIZES, SHORT, TITLES, SeedRun, TaskRuns
from scalelab.lab.scores.predictions import stack_runs
from scalelab.runs.records import TaskResult

Row = dict[str, Any]  # a line of the table; a column scratch_* is of the net from random weights

NO_BASELINE = "no baseline run"
NUMBERS = ("median", "mean", "sd", "low", "high", "seeds", "failed", "unfinished", "degenerate")
HIDDEN = ("estimate", "examples")  # columns of a row that glue.csv leaves out
SCORES = (
    "Scores x 100 on dev sets, of the last step; the mean is over all finished seeds, degenerate"
    " ones included. 95% interval of the mean: Multi-Bootstrap over fine-tuning seeds and dev"
    " examples together; pre-training was not repeated, so its variation is not included."
)


def write(workdir: pathlib.Path, *, only: str | None = None) -> str:
    """Writes glue.md and glue.csv and returns the table for a terminal.

    Args:
      workdir: the folder of all tasks, or of the seeds of one.
      only: shows this task alone, without averages, and writes no file.

    Raises:
      ValueError: the folder holds no fine-tuning, or files that do not go together.
    """
    rows, notes = read(workdir, only=only)
    texts = _texts(rows)
    cells: list[list[str]] = texts.to_numpy().tolist()
    if only is None:
        sides = ["left"] * 2 + ["right"] * (len(texts.columns) - 2)
        markdown = texts.to_markdown(index=False, colalign=sides, disable_numparse=True)
        bullets = "".join(f"- {note}\n" for note in notes)
        files.write_text(workdir / "glue.md", f"{markdown}\n\n{bullets}")
        hidden = [f"{prefix}{name}" for prefix in ("", "scratch_") for name in HIDDEN]
        numbers = pd.DataFrame(rows, dtype=object).drop(columns=hidden)
        numbers = numbers.assign(footnotes=" ".join(notes))
        files.write_text(workdir / "glue.csv", numbers.to_csv(index=False))
    return tables.plain(list(texts), cells, 2) + "".join(f"* {note}\n" for note in notes)


def read(workdir: pathlib.Path, *, only: str | None = None) -> tuple[list[Row], list[str]]:
    """Returns the rows of a table, and the notes below; arguments and errors as for `write`."""
    runs = task_runs.read(workdir)
    scratch = workdir / "scratch"
    begun = any(scratch.glob("seed*")) or any(scratch.glob("*/seed*"))
    baselines = task_runs.read(scratch) if begun else {}
    if only is not None:
        if only not in runs:
            raise ValueError(f"{workdir} holds no fine-tuning on {only}; on {', '.join(runs)}")
        runs = {only: runs[only]}
    baselines = {name: task for name, task in baselines.items() if name in runs}
    missing: list[str] = []
    rows = [row for name, task in runs.items()
            for row in _task_rows(task, baselines.get(name), missing)]  # fmt: skip
    notes = [SCORES, *describe_runs(runs)]
    if only is None:
        absent, differing = _find_gaps(rows)
        averages = _averages(rows, whole=not absent + differing)
        rows += averages
        if averages:
            notes.append("Averages: means over tasks of the mean of a task's metrics and splits.")
            if absent:
                notes.append(f"Not the GLUE average of nine: without {', '.join(absent)}.")
            if differing:
                notes.append(f"Averages over dev sets that are not GLUE's: {'; '.join(differing)}.")
    return rows, notes + _describe_baselines(runs, baselines, scratch, only) + missing


# --- Rows -----------------------------------------------------------------------------------------


def _task_rows(task: TaskRuns, baseline: TaskRuns | None, missing: list[str]) -> list[Row]:
    """Returns a row for every metric on every split; one without scores if no run is finished."""
    rows = []
    for key in task.keys or (baseline.keys if baseline else [])[:1] or [("", "")]:
        label = (
            f"{task.title} {key[0]}" if len({split for split, _ in task.keys}) > 1 else task.title
        )
        label = SHORT.get(key[0], label)
        split, metric = key if task.keys else ("", "")
        row = {"name": label, "task": task.name, "split": split, "metric": metric}
        row |= _score(task, key, "", missing) | _score(baseline, key, "scratch_", missing)
        rows.append(row)
    return rows


def _score(task: TaskRuns | None, key: task_runs.Key, prefix: str, missing: list[str]) -> Row:
    """Returns the columns of some runs; `missing` gets a note where there is no interval."""
    found: Row = dict.fromkeys((*NUMBERS, *HIDDEN))
    if task and (key in task.keys or not prefix):
        values = pd.Series(task.values(key) if task.finished else [], dtype=float)
        found |= {
            "median": values.median(), "mean": values.mean(), "sd": values.std(),
            "seeds": len(values),
            "failed": sum(run.failed is not None for run in task.runs),
            "unfinished": sum(run.unfinished for run in task.runs),
            "degenerate": sum(bool(run.degenerate) for run in task.finished),
        }  # fmt: skip
        try:
            if len(values):
                stack, seed = stack_runs([task], key[0]), zlib.crc32(task.name.encode())
                gold = stack.examples.gold
                e = bootstrap.multi_bootstrap(gold, stack.predicted, key[1], seed=seed)
                found |= {"estimate": e, "low": e.low, "high": e.high, "examples": len(gold)}
        except ValueError as error:
            note = f"{task.title}: no interval: {error}"
            missing += [] if note in missing else [note]
    return {prefix + name: value for name, value in found.items()}


def _find_gaps(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Returns the tasks and splits of GLUE without scores, and the dev sets that are not GLUE's."""
    absent, differing = [], []
    for name, sizes in DEV_SIZES.items():
        scored = {r["split"]: r["examples"] for r in rows if r["task"] == name and r["split"]}
        for split, size in sizes.items() if scored else ():
            label, found = SHORT.get(split, TITLES[name]), scored.get(split)
            if split not in scored:
                absent.append(label)
            elif found not in (None, size):
                how = " carved or cut" if found < size else ""
                differing.append(f"{label} {found:,}{how} (GLUE's {size:,})")
        absent += [] if scored else [TITLES[name]]
    return absent, differing


def _averages(rows: Sequence[Row], *, whole: bool) -> list[Row]:
    """Returns the average over tasks, and GLUE-Large by QQP's accuracy and by its F1.

    `whole`: the rows are of GLUE's nine tasks, on every one of GLUE's dev sets.
    """
    scored = {name: [r for r in rows if r["task"] == name and r["seeds"]] for name in TITLES}
    tasks = [own for own in scored.values() if own]
    found = {"GLUE average" if whole else f"mean of {len(tasks)} tasks": tasks * (len(tasks) > 1)}
    for name, parts in scores.MEANS.items():
        found[scores.TITLES[name]] = [
            [r for r in scored[task] if (r["split"], r["metric"]) == (split, metric)]
            for task, split, metric in (scores.TASK_SCORES[part] for part in parts)
        ]
    return [
        {"name": label, "task": None, "split": "", "metric": "", **_average(parts, ""),
         **_average(parts, "scratch_")}
        for label, parts in found.items() if parts and all(parts)
    ]  # fmt: skip


def _average(parts: Sequence[Sequence[Row]], prefix: str) -> Row:
    """Returns the mean over tasks of the mean of a task's rows; no column if one is missing.

    A median or sd over seeds would need the same seeds in every task.
    """
    found: Row = dict.fromkeys((*NUMBERS, *HIDDEN))
    tasks = [[{name: row[prefix + name] for name in found} for row in rows] for rows in parts]
    if all(row["seeds"] for rows in tasks for row in rows):
        found["mean"] = np.mean([np.mean([row["mean"] for row in rows]) for rows in tasks])
        found["seeds"] = min(row["seeds"] for rows in tasks for row in rows)
        for name in ("failed", "unfinished", "degenerate"):
            found[name] = sum(rows[0][name] for rows in tasks)
        if all(row["estimate"] for rows in tasks for row in rows):
            means = [bootstrap.mean([r["estimate"] for r in t], same_runs=True) for t in tasks]
            e = bootstrap.mean(means)
            found |= {"estimate": e, "low": e.low, "high": e.high}
    return {prefix + name: value for name, value in found.items()}


def _texts(rows: Sequence[Row]) -> pd.DataFrame:
    """Returns the table for people, in percent."""

    def percent(x: float | None) -> str:
        return "-" if x is None or x != x else f"{100 * x:.1f}"

    def interval(low: float | None, high: float | None) -> str:
        return "-" if low is None else f"[{percent(low)}, {percent(high)}]"

    lines = []
    for row in rows:
        scratch = f"{percent(row['scratch_mean'])} "
        scratch += interval(row["scratch_low"], row["scratch_high"])
        absent = NO_BASELINE if row["task"] else "-"
        lines.append(
            {"task": row["name"], "metric": row["metric"]}
            | {name: percent(row[name]) for name in ("median", "mean", "sd")}
            | {"95% interval": interval(row["low"], row["high"])}
            | {name: str(row[name]) for name in ("seeds", "failed", "unfinished", "degenerate")}
            | {"from scratch": absent if row["scratch_mean"] is None else scratch}
        )
    return pd.DataFrame(lines)


# --- Notes ----------------------------------------------------------------------------------------


def describe_runs(tasks: Mapping[str, TaskRuns]) -> list[str]:
    """Describes how runs were adapted, which failed or learnt nothing, which data is missing."""
    runs = [run.result for task in tasks.values() for run in task.finished if run.result]
    names = {"System": "system", "recipe": "recipe", "initial weights": "init"}
    parts = {label: dict.fromkeys(str(v) for r in runs if (v := getattr(r, field)) is not None)
             for label, field in names.items()}  # fmt: skip
    found = ["; ".join(f"{label} {' and '.join(x)}" for label, x in parts.items() if x) + "."]
    marks: dict[str, Callable[[TaskResult], object]] = {
        "mnli-first: started from weights fine-tuned on MNLI": lambda r: r.mnli_first,
        "Early stopping on dev: steps chosen by dev score, too high": lambda r: r.early_stopping,
        "Grid: settings chosen on dev with the first seed, which is among the scores shown, so they"
        " are too high": lambda r: r.chosen,
    }  # fmt: skip
    for note, marked in marks.items():
        titles = dict.fromkeys(TITLES.get(r.task, r.task) for r in runs if marked(r))
        found += [f"{note}: {', '.join(titles)}."] if titles else []
    for task in tasks.values():
        for run in task.runs:
            state = f"degenerate: {run.degenerate}" if run.degenerate else ""
            state = f"failed: {run.failed}" if run.failed is not None else state
            state = "unfinished" if run.unfinished else state
            found += [f"{task.title}: seed {run.seed} {state}"] if state else []
        sound = [run.scores[task.keys[0]] for run in task.finished if not run.degenerate]
        if 0 < len(sound) < len(task.finished):
            mean = f"{100 * sum(sound) / len(sound):.1f}"
            found.append(f"{task.title}: mean {task.keys[0][1]} of the other {len(sound)}: {mean}")
    if single := [task.title for task in tasks.values() if len(task.finished) == 1]:
        found.append(f"One seed, so the interval is over examples alone: {', '.join(single)}.")
    for task in tasks.values():
        for remark in (x for run in task.finished if run.result for x in run.result.remarks):
            found.append(remark if remark.startswith(task.title) else f"{task.title}: {remark}")
    return list(dict.fromkeys(found))


def differing_settings(
    pairs: Mapping[str, tuple[Sequence[SeedRun], Sequence[SeedRun]]], sides: tuple[str, str]
) -> list[tuple[str, str]]:
    """Returns titles of tasks that two sides were adapted to differently, and the fields.

    A field that one side does not record counts as equal, because earlier results record few.

    Returns:
      Pairs such as ("RTE, WNLI", "epochs 1 in A, 6 in B"), with the sides "in A" and "in B".
    """
    found: dict[str, list[str]] = {}
    for title, both in pairs.items():
        seen: list[dict[str, dict[str, None]]] = [{}, {}]
        for runs, values in zip(both, seen, strict=True):
            for result in (run.result for run in runs if run.result):
                own = {"recipe": result.recipe, "mnli_first": result.mnli_first}
                if digest := (result.data or {}).get("train"):
                    own["training set"] = digest[:8]
                for field, x in (own | (result.settings or {})).items():
                    values.setdefault(field, {})["off" if x is None else str(x)] = None
        fields = [
            f"{field} {' and '.join(sorted(in_a))} {sides[0]}, "
            f"{' and '.join(sorted(in_b))} {sides[1]}"
            for field, in_a in seen[0].items() if set(in_a) != set(in_b := seen[1].get(field, in_a))
        ]  # fmt: skip
        if fields:
            found.setdefault("; ".join(fields), []).append(title)
    return [(", ".join(titles), fields) for fields, titles in found.items()]


def _describe_baselines(
    runs: Mapping[str, TaskRuns],
    baselines: Mapping[str, TaskRuns],
    scratch: pathlib.Path,
    only: str | None,
) -> list[str]:
    """Returns notes on the column "from scratch", or the command that fills it."""
    done = [run for task in runs.values() for run in task.finished]
    if done and all(run.from_scratch for run in done):
        return ["These runs themselves start from random weights."]
    if not baselines:
        init = done[0].result.init if done and done[0].result else None
        command = f"--init=none --like={init} --workdir={scratch}"
        how = f"No baseline run: the same command with {command} trains the net from random weights"
        return [f"{how}, and the table then shows it."] if only and done else []
    found = ["From scratch: the same net from random weights, mean and 95% interval."]
    pairs = {task.title: (runs[name].finished, task.finished) for name, task in baselines.items()}
    for titles, fields in differing_settings(pairs, ("here", "from scratch")):
        found.append(
            f"From scratch was fine-tuned with other settings in {titles}, so the difference"
            f" includes their effect: {fields}."
        )
    states = describe_runs(baselines)[1:]
    return found + [f"From scratch: {note}" for note in states if ": seed " in note]
