"""Every run below some folders, pre-trainings and fine-tunings, in whatever state: a pandas frame.

A run is a folder with metrics.jsonl, or with a config.json that names a system; before it has
either, one that a process holds locked. Reading changes nothing and may go on while runs write. A
run whose files cannot be read has the status "damaged", and its note says which file and why.
"""

# The stubs of pandas and altair are narrower than what they accept.
# pyright: reportArgumentType=false

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from scalelab.config.fields import flatten
from scalelab.lab.load import archive
from scalelab.runs import json_files, records
from scalelab.runs.records import RunRecord, RunResult, TaskResult, Unreadable

Value = str | int | float | None
Row = dict[str, Value]

# What every row has; besides, each config field by its dotted name, and a task's score by its name.
COLUMNS = (
    "run", "system", "shape", "heads", "width", "layers", "n_model", "params", "seed", "task",
    "recipe", "init", "objective", "corpus", "status", "note", "steps", "tokens", "flops",
    "seconds", "loss", "score", "scores", "data", "numerics", "commit", "started",
)  # fmt: skip
CLOCKS = {"steps": "step", "tokens": "tokens", "flops": "flops", "seconds": "seconds"}
SEED = re.compile(r"seed\d+")
INSIDE = {"checkpoints", "tensorboard", "tokenizer", "imported"}  # of a run: no runs in them
RECENT_SECS = 600  # what wrote so lately on another host runs: its lock may not show on this one


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run: its row of the table, and its record; None if its files cannot be read."""

    row: Row
    record: RunRecord | None

    @property
    def place(self) -> pathlib.Path:
        """The resolved folder."""
        return pathlib.Path(str(self.row["run"])).resolve()


def load_runs(folders: Sequence[pathlib.Path]) -> list[LoadedRun]:
    """Loads all runs below some folders, these themselves included, by folder.

    Symbolic links are not followed, hidden folders left out; packed runs (archive.py) are read.

    Raises:
      ValueError: one is no folder.
    """
    found: dict[pathlib.Path, LoadedRun] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"no such folder: {folder}")
        for run in _walk(folder):
            found.setdefault(run.place, run)
    _gather_scores(found)
    return list(found.values())


def as_frame(runs: Sequence[LoadedRun]) -> pd.DataFrame:
    """Returns the table of runs: COLUMNS, then tasks, then config fields; unknown cells are NA."""
    rows = [run.row for run in runs]
    others = sorted({name for row in rows for name in row} - {*COLUMNS})
    columns = [*COLUMNS, *sorted(others, key=lambda name: ("." in name, name))]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return frame.astype({name: _dtype(frame[name]) for name in columns})


def _dtype(values: pd.Series) -> str:
    """Returns the type of a column in which any cell may be unknown."""
    kinds = {type(value) for value in values if not pd.isna(value)}
    if kinds and kinds <= {int, float}:
        return "Int64" if kinds == {int} else "Float64"
    return "string" if kinds == {str} else "object"


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Returns a key by which texts are sorted with the numbers in them as numbers."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p)


def is_locked(folder: pathlib.Path) -> bool:
    """Returns True if a process trains there now: a seed is locked with its task's folder.

    A shared lock is tried, for as long as it takes to give it back, which `run_folder.locked`
    outwaits; where files cannot be locked, nobody does.
    """
    places = [folder, folder.parent] if SEED.fullmatch(folder.name) else [folder]
    for place in places:
        try:
            with (place / ".lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


# --- Folders --------------------------------------------------------------------------------------


def _walk(top: pathlib.Path) -> Iterator[LoadedRun]:
    refused: list[OSError] = []
    for path, names, files in os.walk(top, onerror=refused.append):
        folder = pathlib.Path(path)
        run = None
        if {"config.json", "metrics.jsonl"} & set(files) or (
            ".lock" in files and not any(SEED.fullmatch(name) for name in names)
        ):
            run = load_run(folder)
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
        name = pathlib.Path(str(run.row["run"])).relative_to(unpacked)
        if not (folder / "runs" / name).exists():
            yield LoadedRun(run.row | {"run": str(folder / "runs" / name)}, run.record)


def load_run(folder: pathlib.Path) -> LoadedRun | None:
    """Loads one run; None if the folder holds none, or is gone."""
    locked = is_locked(folder)  # asked first: a run that ends meanwhile has its result
    logged = (folder / "metrics.jsonl").exists()
    config: dict[str, Any] | None = None
    try:
        config = json_files.read_object(folder / "config.json")
        if not logged and (not locked if config is None else "system" not in config):
            return None
        if config is None and locked:
            row = dict.fromkeys(COLUMNS) | {"status": "running", "note": "starting"}
            return LoadedRun(row | {"run": str(folder)}, None)
        record = records.read_run(folder)
    except Unreadable as error:
        if not folder.is_dir():
            return None
        return _damaged(folder, f"{error.path.name} {error.reason}", config or {})
    row = dict.fromkeys(COLUMNS) | {"run": str(folder)} | _describe_config(record.config)
    row |= _describe_progress(record) | _describe_origin(record)
    row["status"], row["note"] = _status(record, locked or _wrote_lately(record))
    return LoadedRun(row, record)


def _damaged(folder: pathlib.Path, why: str, config: Mapping[str, Any]) -> LoadedRun:
    """Returns the row of a run of which only the config, if anything, can be read."""
    row = dict.fromkeys(COLUMNS) | {"run": str(folder)} | _describe_config(config)
    return LoadedRun(row | {"status": "damaged", "note": why}, None)


def _gather_scores(runs: Mapping[pathlib.Path, LoadedRun]) -> None:
    """Gives a pre-training the mean main scores of the finished fine-tunings in its tasks/."""
    gathered: dict[pathlib.Path, dict[str, list[float]]] = {}
    for run in runs.values():
        row = run.row
        task, score = row["task"], row["score"] if row["status"] == "completed" else None
        if isinstance(task, str) and isinstance(score, int | float):
            row[task] = score
            folder = pathlib.Path(str(row["run"]))
            if SEED.fullmatch(folder.name) and folder.parent.parent.name == "tasks":
                tasks = gathered.setdefault(run.place.parent.parent.parent, {})
                tasks.setdefault(task, []).append(score)
    for path, tasks in gathered.items():
        if path in runs and runs[path].row["status"] != "damaged":
            means = {task: sum(scores) / len(scores) for task, scores in tasks.items()}
            row = runs[path].row
            row |= means
            row["scores"] = " ".join(f"{t} {100 * mean:.1f}" for t, mean in means.items())


def _wrote_lately(record: RunRecord) -> bool:
    """Returns True if a run of another host has written within RECENT_SECS."""
    if record.environment.host in (None, platform.node()):
        return False
    with contextlib.suppress(OSError):
        return time.time() - (record.folder / "metrics.jsonl").stat().st_mtime < RECENT_SECS
    return False


# --- Columns --------------------------------------------------------------------------------------


def _describe_config(config: Mapping[str, Any]) -> Row:
    flat = {name: _plain(value) for name, value in flatten(config).items()}
    sizes = [flat.get(f"net.{name}") for name in ("num_heads", "width", "num_layers")]
    whole = all(type(size) is int for size in sizes)
    shape = records.Shape(*sizes) if whole else None  # type: ignore
    return flat | {
        "system": flat.get("system"),
        "shape": str(shape) if shape else None,
        **dict(zip(("heads", "width", "layers"), sizes, strict=True)),
        "n_model": shape.n_model if shape else None,
        "seed": flat.get("seed"),
        "task": flat.get("task"),
        "recipe": flat.get("recipe"),
        "init": flat.get("machine.init"),
        "objective": flat.get("objective"),
        "corpus": flat.get("data.corpus"),
    }


def _describe_progress(record: RunRecord) -> Row:
    """Returns clocks, loss and scores: those of the result, or as far as metrics.jsonl goes."""
    result, last = record.result, record.lines[-1] if record.lines else {}
    row: Row = {
        clock: getattr(result, clock) if result else last.get(name)
        for clock, name in CLOCKS.items()
    }
    row["params"] = result.params if result else None
    if isinstance(result, RunResult):
        row["loss"] = result.loss
    elif isinstance(result, TaskResult):
        split = next(iter(result.eval.values()), {})
        scores = {name: value for name, value in split.items() if value is not None}
        row["score"] = next(iter(scores.values()), None)
        row["scores"] = " ".join(f"{n} {100 * value:.1f}" for n, value in scores.items()) or None
    else:
        losses = [line["eval/loss"] for line in record.lines if "eval/loss" in line]
        row["loss"] = losses[-1] if losses else None
    return row


def _describe_origin(record: RunRecord) -> Row:
    environment = record.environment
    commit, dirty = environment.git_commit, "+" if environment.git_dirty else ""
    return {
        "data": record.data_hash,
        "numerics": environment.numerics,
        "commit": f"{commit[:12]}{dirty}" if commit else None,
        "started": environment.started,
    }


def _status(record: RunRecord, running: bool) -> tuple[str, str | None]:
    result = record.result
    if result is not None:
        degenerate = result.degenerate if isinstance(result, TaskResult) else None
        if result.status == records.FAILED:
            return "failed", degenerate
        return "completed", f"degenerate: {degenerate}" if degenerate else None
    step = record.lines[-1]["step"] if record.lines else 0
    return ("running", None) if running else ("stopped", f"at step {step}")


def _plain(value: Any) -> Value:
    """Returns a value as cells have it: numbers and text; others as JSON writes them."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value)
