"""The run table: all runs below some folders, in any state, as a pandas frame; and its queries.

A run is a folder with metrics.jsonl, or with a config.json that names a system, or with neither but
a lock that a process holds. Reading changes nothing, also while runs write. An unreadable run has
the status "damaged"; its note names the file and the reason.
"""

# The stubs of pandas are narrower than what it accepts.
# pyright: reportArgumentType=false
# pyright: reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false

import dataclasses
import fnmatch
import json
import operator
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from scalelab.config.durations import CLOCKS
from scalelab.config.fields import flatten
from scalelab.config.pretraining import Shape
from scalelab.eval.score_names import MAIN, TASK_SCORES
from scalelab.helpers.names import check_names, nearest, suggest_folder
from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import TaskRuns
from scalelab.records import archive, json_files, run_files, run_folder
from scalelab.records.run_files import RunRecord, RunResult, TaskResult, Unreadable

Row = dict[str, str | int | float | None]

# Columns of every row. A row also has each config field and each task's score, by name.
COLUMNS = (
    "run", "system", "shape", "heads", "width", "layers", "n_model", "params", "seed", "task",
    "recipe", "init", "objective", "corpus", "status", "note", "steps", "tokens", "flops",
    "seconds", "loss", "score", "scores", "data", "numerics", "commit", "started",
)  # fmt: skip
SEED = re.compile(r"seed\d+")
INSIDE = {"checkpoints", "tensorboard", "wandb", "tokenizer", "imported"}  # hold no runs
CONDITION = re.compile(r"\s*([\w.]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*")
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run: its row of the table, its record (None: unreadable), and its fine-tunings.

    Those are by their folder in the run, "tasks", "scratch" or "early/0.5", and by task.
    """

    row: Row
    record: RunRecord | None
    tuned: dict[str, dict[str, TaskRuns]] = dataclasses.field(default_factory=dict)

    @property
    def place(self) -> pathlib.Path:
        """The resolved folder."""
        return pathlib.Path(str(self.row["run"])).resolve()


def load_runs(folders: Sequence[pathlib.Path], words: Sequence[str] = ()) -> list[LoadedRun]:
    """Loads all runs in and below some folders, packed runs (archive.py) too.

    Symbolic links are not followed, and hidden folders are left out. A pre-training gets the mean
    main scores of the finished fine-tunings in its tasks/.

    Raises:
      ValueError: one of them is not a folder; the message may suggest one of `words`.
    """
    found: dict[pathlib.Path, LoadedRun] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"no such folder: {folder}{suggest_folder(folder, words)}")
        for run in _walk(folder):
            found.setdefault(run.place, run)
    by_task: dict[pathlib.Path, list[LoadedRun]] = {}
    for place, run in found.items():
        task, score = run.row["task"], run.row["score"]
        if run.row["status"] == "completed" and isinstance(task, str) and score is not None:
            run.row[task] = score
        if run.record and SEED.fullmatch(place.name):
            by_task.setdefault(place.parent, []).append(run)
    for place, seeds in by_task.items():
        base = next((p for p in place.parents[1:3] if p in found and found[p].record), None)
        if base is not None:
            _add_tuned(found[base], str(place.parent.relative_to(base)), place.name, seeds)
    return list(found.values())


def _add_tuned(run: LoadedRun, part: str, folder: str, seeds: Sequence[LoadedRun]) -> None:
    """Adds fine-tunings of one folder to their pre-training, and the mean score to its row."""
    runs = [task_runs.from_record(own.record, int(own.place.name[4:])) for own in seeds]
    task = task_runs.gather(folder, sorted(runs, key=lambda own: own.seed))
    run.tuned[part] = task_runs.in_order([*run.tuned.get(part, {}).values(), task])
    values = [float(own.row[task.name]) for own in seeds if task.name in own.row]  # the finished
    if part == "tasks" and values:
        run.row[task.name] = mean = sum(values) / len(values)
        before = f"{run.row['scores']} " if run.row["scores"] else ""
        run.row["scores"] = f"{before}{task.name} {100 * mean:.1f}"


def as_frame(runs: Sequence[LoadedRun]) -> pd.DataFrame:
    """Returns the table of runs: COLUMNS, then tasks, then config fields; unknown cells are NA."""
    rows = [run.row for run in runs]
    more = {name for row in rows for name in row} - {*COLUMNS}
    columns = [*COLUMNS, *sorted(more, key=lambda name: ("." in name, name))]
    return pd.DataFrame(rows, columns=columns, dtype=object).convert_dtypes()


# --- Folders --------------------------------------------------------------------------------------


def _walk(top: pathlib.Path) -> Iterator[LoadedRun]:
    refused: list[OSError] = []
    for path, names, files in os.walk(top, onerror=refused.append):
        folder, run = pathlib.Path(path), None
        if {"config.json", "metrics.jsonl"} & set(files) or (
            ".lock" in files and not any(SEED.fullmatch(name) for name in names)
        ):
            run = _load_run(folder)
        if run is not None:
            yield run
        if archive.NAME in files:
            yield from _walk_packed(folder)
        inside = INSIDE if run is not None else set()
        names[:] = sorted((n for n in names if n[0] != "." and n not in inside), key=natural)
    for error in refused:
        if not isinstance(error, FileNotFoundError):
            yield _damaged(pathlib.Path(error.filename), f"cannot be read: {error.strerror}", {})


def _walk_packed(folder: pathlib.Path) -> Iterator[LoadedRun]:
    """Yields the runs of an archive, under the names that they had unpacked."""
    try:
        unpacked = archive.unpacked(folder)
    except ValueError as error:
        yield _damaged(folder / archive.NAME, str(error), {})
        return
    for run in _walk(unpacked):
        place = folder / "runs" / pathlib.Path(str(run.row["run"])).relative_to(unpacked)
        if not place.exists():
            yield LoadedRun(run.row | {"run": str(place)}, run.record)


def _load_run(folder: pathlib.Path) -> LoadedRun | None:
    """Loads one run; None if the folder holds none, or is gone."""
    # Before the files: a run that ends meanwhile has its result. A seed shares its task's lock.
    places = [folder, folder.parent] if SEED.fullmatch(folder.name) else [folder]
    locked = any(run_folder.is_locked(place / ".lock") for place in places)
    logged = (folder / "metrics.jsonl").exists()
    config: dict[str, Any] | None = None
    try:
        config = json_files.read_object(folder / "config.json")
        if not logged and (not locked if config is None else "system" not in config):
            return None
        if config is None and locked:
            row = dict.fromkeys(COLUMNS) | {"status": "running", "note": "starting"}
            return LoadedRun(row | {"run": str(folder)}, None)
        record = run_files.read_run(folder)
    except Unreadable as error:
        if not folder.is_dir():
            return None
        return _damaged(folder, f"{error.path.name} {error.reason}", config or {})
    row = _describe_config(folder, record.config) | _describe_result(record)
    if record.result is None:
        step = record.lines[-1]["step"] if record.lines else 0
        state = ("running", None) if locked else ("stopped", f"at step {step}")
        row["status"], row["note"] = state
    return LoadedRun(row, record)


def _damaged(folder: pathlib.Path, why: str, config: Mapping[str, Any]) -> LoadedRun:
    """Returns the row of an unreadable run, from its config if the config is readable."""
    row = _describe_config(folder, config)
    return LoadedRun(row | {"status": "damaged", "note": why}, None)


def _describe_config(folder: pathlib.Path, config: Mapping[str, Any]) -> Row:
    flat: Row = {
        name: x if type(x) in (str, int, float) or x is None else json.dumps(x)
        for name, x in flatten(config).items()
    }
    sizes = {name: flat.get(f"model.{field}") for name, field in
             (("heads", "num_heads"), ("width", "width"), ("layers", "num_layers"))}  # fmt: skip
    whole = all(type(size) is int for size in sizes.values())
    shape = Shape(*sizes.values()) if whole else None
    return dict.fromkeys(COLUMNS) | flat | sizes | {
        "run": str(folder),
        "shape": str(shape) if shape else None,
        "init": flat.get("machine.init"),
        "corpus": flat.get("data.corpus"),
    }  # fmt: skip


def _describe_result(record: RunRecord) -> Row:
    """Returns clocks, loss, scores and origin, from result.json or else from metrics.jsonl."""
    result, environment = record.result, record.environment
    last = record.lines[-1] if record.lines else {}
    commit, dirty = environment.git_commit, "+" if environment.git_dirty else ""
    row: Row = {
        "data": record.data_hash,
        "numerics": environment.numerics,
        "commit": f"{commit[:12]}{dirty}" if commit else None,
        "started": environment.started,
    }
    for logged, name, _ in CLOCKS.values():
        row[name] = getattr(result, name) if result else last.get(logged)
    if result is not None:
        row |= {"params": result.params, "n_model": result.n_model, "status": result.status}
    if isinstance(result, TaskResult):
        split = next(iter(result.eval.values()), {})
        _, _, main = TASK_SCORES.get(MAIN.get(result.task, ""), ("", "", ""))
        scores = {name: value for name, value in split.items() if value is not None}
        row["score"] = scores.get(main, next(iter(scores.values()), None))
        shown = [f"{n} {100 * value:.1f}" for n, value in scores.items()]
        shown += [f"{n} undefined" for own in result.undefined.values() for n in own]
        row["scores"] = " ".join(shown) or None
        done = result.degenerate and result.status == run_files.COMPLETED
        row["note"] = f"degenerate: {result.degenerate}" if done else result.degenerate
    elif isinstance(result, RunResult):
        row["loss"] = result.loss
    else:
        losses = [line["eval/loss"] for line in record.lines if "eval/loss" in line]
        row["loss"] = losses[-1] if losses else None
    return row


# --- Queries --------------------------------------------------------------------------------------


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Returns a sort key that compares the numbers inside texts as numbers."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p)


def where(frame: pd.DataFrame, conditions: str) -> pd.DataFrame:
    """Returns the rows that satisfy conditions: "system=bert,width>=128,corpus=*wiki*,loss!=none".

    Numbers compare as numbers, texts match patterns with * and ?, "none" matches unknown cells.

    Raises:
      ValueError: a condition has another form, or names an unknown column.
    """
    for text in filter(str.strip, conditions.split(",")):
        found = CONDITION.fullmatch(text)
        if found is None:
            raise ValueError(
                f"condition {text!r}: expected column, one of = != < <= > >=, and a value"
            )
        check_names([found[1]], frame.columns, "unknown column")
        matches = _matches(frame[found[1]], *found.groups())
        if found[2] in ("=", "==") and not (matches.any() or frame.empty):
            values = sorted({str(x) for x in frame[found[1]].dropna()})
            raise ValueError(f"no run has {text.strip()}: {nearest(found[3], values)}")
        frame = frame[matches]
    return frame


def _matches(values: pd.Series, column: str, compare: str, wanted: str) -> pd.Series:
    """Returns a mask of cells that satisfy a condition; unknown cells satisfy only "=none"."""
    test, there = COMPARE[compare], values.notna()
    equality = compare in ("=", "==", "!=")
    if wanted.lower() == "none":
        if not equality:
            raise ValueError(f"condition {column}{compare}{wanted}: none has no order, use = or !=")
        return there if compare == "!=" else ~there
    if pd.api.types.is_numeric_dtype(values):
        try:
            return there & test(values.astype("Float64"), float(wanted)).fillna(False)
        except ValueError:
            raise ValueError(f"condition {column}{compare}{wanted}: expected a number") from None
    texts = values.astype(object).map(str)
    if equality:
        same = texts.map(lambda text: fnmatch.fnmatchcase(text, wanted))
        return there & same.eq(compare != "!=")
    return there & texts.map(lambda text: test(natural(text), natural(wanted)))
