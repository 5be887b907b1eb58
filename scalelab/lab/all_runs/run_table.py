"""Every run below some folders, pre-trainings and fine-tunings, in whatever state: a row each.

A run is a folder with metrics.jsonl, or with a config.json that names a system; before it has
either, one that a process holds locked. Reading changes nothing, may go on while runs write, and
never fails for what a folder holds: a file that is missing or damaged makes the run's status
"damaged" and says why in its note, beside what could be read. A run that has ended is held to its
own files (reading/run_held.py); one whose files say different things is damaged too, and no number
that it measured is shown.
"""

import contextlib
import json
import os
import pathlib
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalelab.config.fields import flatten
from scalelab.lab.reading import run_held
from scalelab.lab.reading.run_files import (
    SEED,
    data_hash,
    is_locked,
    is_number,
    loss_of,
    read_json,
    read_metrics,
)  # fmt: skip

Value = str | int | float | None
Row = dict[str, Value]

# What every row has; besides, each config field by its dotted name, and a task's score by its name.
COLUMNS = (
    "run", "system", "shape", "heads", "width", "layers", "n_model", "params", "seed", "task",
    "recipe", "init", "objective", "corpus", "status", "note", "steps", "tokens", "flops",
    "seconds", "loss", "score", "scores", "data", "numerics", "commit", "started",
)  # fmt: skip
MEASURED = ("steps", "tokens", "flops", "seconds", "loss", "score", "scores")
INSIDE = {"checkpoints", "tensorboard", "tokenizer", "imported"}  # of a run: no runs in them
RECENT_SECS = 600  # what wrote so lately on another host runs: its lock may not show on this one


def read(folders: Sequence[pathlib.Path]) -> list[Row]:
    """Reads all runs below some folders, these themselves included.

    Returns:
      Their rows, by folder; symbolic links are not followed, hidden folders left out.

    Raises:
      ValueError: one is no folder.
    """
    found: dict[pathlib.Path, Row] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"no such folder: {folder}")
        for row in _walk(folder):
            found.setdefault(pathlib.Path(str(row["run"])).resolve(), row)
    rows = list(found.values())
    _gather_scores(found)
    return rows


def read_run(folder: pathlib.Path) -> Row | None:
    """Reads one run; None if the folder holds none, or is gone."""
    locked = is_locked(folder)  # asked first: a run that ends meanwhile has its result
    problems: list[str] = []
    config, config_there = read_json(folder / "config.json", problems)
    result, _ = read_json(folder / "result.json", problems)
    environment, _ = read_json(folder / "environment.json", problems)
    metrics_there = (folder / "metrics.jsonl").exists()
    foreign = config_there and not problems and "system" not in config
    if not metrics_there and (foreign or not config_there and not locked):
        return None
    lines = read_metrics(folder / "metrics.jsonl", problems)
    if not config_there and not locked:
        problems.append("config.json is missing")
    if foreign:
        problems.append("config.json names no system")
    row: Row = dict.fromkeys(COLUMNS)
    flat = {name: _plain(value) for name, value in flatten(config).items()}
    row |= {"run": str(folder)} | _of_config(flat, result)
    row |= _of_progress(result, lines) | _of_origin(folder, environment, result)
    row |= {name: value for name, value in flat.items() if name not in row}
    if result.get("status") in ("completed", "failed"):
        if not problems:
            said = run_held.of_run(folder, config, result, environment, lines)
            problems += [problem.replace(f"{folder}/", "") for problem in said]
        row |= dict.fromkeys(MEASURED) if problems else {}
    running = locked or _wrote_lately(folder, environment)
    row["status"], row["note"] = _status(row, result, running, config_there, problems)
    return row if folder.is_dir() else None


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which texts are sorted with the numbers in them as numbers."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p)


# --- Folders --------------------------------------------------------------------------------------


def _walk(top: pathlib.Path) -> Iterator[Row]:
    refused: list[OSError] = []
    for path, names, files in os.walk(top, onerror=refused.append):
        folder = pathlib.Path(path)
        row = None
        if {"config.json", "metrics.jsonl"} & set(files):
            row = read_run(folder)
        elif ".lock" in files and not any(SEED.fullmatch(name) for name in names):
            row = read_run(folder)
        if row is not None:
            yield row
        inside = INSIDE if row is not None else set()
        names[:] = sorted((n for n in names if n[0] != "." and n not in inside), key=natural)
    for error in refused:
        if not isinstance(error, FileNotFoundError):
            note = f"cannot be read: {error.strerror}"
            damaged = {"run": str(error.filename), "status": "damaged", "note": note}
            yield dict.fromkeys(COLUMNS) | damaged


def _gather_scores(rows: Mapping[pathlib.Path, Row]) -> None:
    """Gives a pre-training the mean main scores of the finished fine-tunings in its tasks/."""
    gathered: dict[pathlib.Path, dict[str, list[float]]] = {}
    for path, row in rows.items():
        task, score = row["task"], row["score"] if row["status"] == "completed" else None
        if isinstance(task, str) and isinstance(score, int | float):
            row[task] = score
            if SEED.fullmatch(path.name) and path.parent.parent.name == "tasks":
                tasks = gathered.setdefault(path.parent.parent.parent, {})
                tasks.setdefault(task, []).append(score)
    for path, tasks in gathered.items():
        if path in rows and rows[path]["status"] != "damaged":
            means = {task: sum(scores) / len(scores) for task, scores in tasks.items()}
            rows[path].update(means)
            rows[path]["scores"] = " ".join(f"{t} {100 * mean:.1f}" for t, mean in means.items())


def _wrote_lately(folder: pathlib.Path, environment: Mapping[str, Any]) -> bool:
    """Whether a run of another host has written within RECENT_SECS."""
    if environment.get("host") in (None, platform.node()):
        return False
    with contextlib.suppress(OSError):
        return time.time() - (folder / "metrics.jsonl").stat().st_mtime < RECENT_SECS
    return False


# --- Columns --------------------------------------------------------------------------------------


def _of_config(flat: Row, result: Mapping[str, Any]) -> Row:
    heads, width, layers = (flat.get(f"net.{n}") for n in ("num_heads", "width", "num_layers"))
    n_model = None
    if isinstance(width, int) and isinstance(layers, int):
        n_model = 12 * layers * width**2
    shape = None if None in (heads, width, layers) else f"{heads}x{width}x{layers}"
    return {
        "system": flat.get("system") or _plain(result.get("system")),
        "shape": shape,
        "heads": heads,
        "width": width,
        "layers": layers,
        "n_model": n_model,
        "params": _plain(result.get("params")),
        "seed": flat.get("seed"),
        "task": flat.get("task"),
        "recipe": flat.get("recipe"),
        "init": flat.get("machine.init"),
        "objective": flat.get("objective"),
        "corpus": flat.get("data.corpus"),
    }


def _of_progress(result: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> Row:
    """Clocks, loss and scores: those of the result, or as far as metrics.jsonl tells."""
    row: Row = {}
    last = lines[-1] if lines else {}
    for clock, name in zip(("steps", "tokens", "flops", "seconds"),
                           ("step", "tokens", "flops", "seconds"), strict=True):  # fmt: skip
        value = result.get(clock, last.get(name))
        row[clock] = value if is_number(value) else None
    evals = result.get("eval")
    if isinstance(evals, Mapping) and result.get("task") is None:
        row["loss"] = loss_of(evals)
    elif isinstance(evals, Mapping):
        scores = [
            (name, value)
            for split in list(evals.values())[:1] if isinstance(split, Mapping)
            for name, value in split.items() if is_number(value)
        ]  # fmt: skip
        row["score"] = scores[0][1] if scores else None
        row["scores"] = " ".join(f"{name} {100 * value:.1f}" for name, value in scores) or None
    validated = [line["eval/loss"] for line in lines if is_number(line.get("eval/loss"))]
    if not result and validated:
        row["loss"] = validated[-1]
    return row


def _of_origin(
    folder: pathlib.Path, environment: Mapping[str, Any], result: Mapping[str, Any]
) -> Row:
    commit = _plain(environment.get("git_commit"))
    dirty = "+" if environment.get("git_dirty") else ""
    return {
        "data": _plain(data_hash(folder, result)),
        "numerics": _plain(environment.get("numerics")),
        "commit": f"{str(commit)[:12]}{dirty}" if commit else None,
        "started": _plain(environment.get("started")),
    }


def _status(
    row: Row, result: Mapping[str, Any], running: bool, config_there: bool, problems: Sequence[str]
) -> tuple[str, str | None]:
    status = result.get("status")
    if not problems and result and status not in ("completed", "failed"):
        problems = [f"result.json has status {status!r}"]
    if problems:
        return "damaged", "; ".join(problems)
    if status == "completed":
        return "completed", _plain_text(result.get("degenerate"), "degenerate: ")
    if status == "failed":
        return "failed", _plain_text(result.get("degenerate"))
    if running:
        return "running", None if config_there else "starting"
    return "stopped", f"at step {row['steps'] or 0}"


def _plain_text(value: Any, before: str = "") -> str | None:
    return f"{before}{value}" if value else None


def _plain(value: Any) -> Value:
    """A value as cells have it: numbers and text; true, false and lists as json writes them."""
    if value is None or isinstance(value, str) or is_number(value):
        return value
    return json.dumps(value)
