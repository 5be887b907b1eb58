"""Invented fine-tunings: run folders as `scalelab.finetune` leaves them, for tests."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import predicted

from scalelab.records import predictions, run_files
from scalelab.tasks import metrics
from scalelab.tasks.glue import GLUE

METRICS = {task.name: task.metrics for task in GLUE}
SIZE = 60


def write_files(folder: Path, lines: Iterable[Any] | None = None, **files: Any) -> None:
    """Writes NAME.json for each of `files`, and metrics.jsonl if `lines` are given."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    if lines is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def result_of(config: Any, steps: int, clocks: Any, reached: Any, **fields: Any) -> dict[str, Any]:
    """The result.json of a finished pre-training; `reached` is its evaluation by length."""
    net = config["model"]
    return {
        "status": "completed", "task": None, "system": config["system"], "seed": config["seed"],
        "shape": {"A": net["num_heads"], "H": net["width"], "L": net["num_layers"]},
        "n_model": 12 * net["num_layers"] * net["width"] ** 2, "steps": steps, "eval": reached,
        "data_hash": "ab" * 32,
    } | clocks | fields  # fmt: skip


def dev_set(task: str, split: str = "dev", size: int = SIZE):
    """Texts and gold of a dev set, always the same; every second of a class, or scores 0 to 5."""
    texts = [f"{task} {split} {i}" for i in range(size)]
    if task == "stsb":
        return texts, (np.arange(size) % 11 / 2).astype(np.float32)
    return texts, (np.arange(size) + len(split)) % (3 if task == "mnli" else 2)


def outputs_of(task: str, gold: np.ndarray, num_wrong: int) -> np.ndarray:
    """Outputs whose first `num_wrong` predictions are wrong, in regression far off."""
    wrong = np.arange(len(gold)) < num_wrong
    if task == "stsb":
        return np.where(wrong, 5 - gold, gold + 0.1)[:, None].astype(np.float32)
    num = 3 if task == "mnli" else 2
    return 2 * np.eye(num, dtype=np.float32)[np.where(wrong, (gold + 1) % num, gold)]


def write_text(path: Path, text: str, encoding: str = "utf-8") -> Path:
    """Writes a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)
    return path


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    """Writes lines of JSON."""
    return write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_seed(workdir: Path) -> tuple[run_files.TaskResult, predictions.Predictions]:
    """The result of seed 0 and its predictions."""
    result = run_files.read_result(workdir / "seed0")
    assert isinstance(result, run_files.TaskResult)
    return result, predictions.read(workdir / "seed0/predictions.tsv")


def write_run(folder: Path, task: str, seed: int, num_wrong: int | dict[str, int], **fields):
    """Writes the run folder of one seed, and returns the scores in its result.json.

    `num_wrong` predictions are wrong, of the dev set or of each dev split; `fields` are of
    result.json, on top.
    """
    run = folder / f"seed{seed}"
    run.mkdir(parents=True)
    dev = {}
    by_split = num_wrong if isinstance(num_wrong, dict) else {"dev": num_wrong}
    for place, (split, wrong) in enumerate(by_split.items()):
        texts, gold = dev_set(task, split)
        labels = None if task == "stsb" else [str(c) for c in range(gold.max() + 1)]
        path = run / f"predictions{f'-{split}' if place else ''}.tsv"
        outputs = outputs_of(task, gold, wrong)
        predicted.write(path, texts=[texts], gold=gold, outputs=outputs, labels=labels)
        made = predictions.read(path)
        dev[split] = {m: metrics.METRICS[m](made.gold, made.predicted) for m in METRICS[task]}
    result = {
        "status": "completed", "task": task, "system": "bert", "n_model": 393216, "seed": seed,
        "shape": {"A": 2, "H": 128, "L": 2}, "recipe": "thesis", "init": "runs/bert",
        "init_digest": "0123abcd", "mnli_first": False, "eval": dev, "best": None,
        "train_loss": 0.3, "degenerate": None, "remarks": [],
    } | fields  # fmt: skip
    net = {"num_heads": 2, "width": 128, "num_layers": 2}
    config = {"system": result["system"], "task": task, "seed": seed, "model": net}
    write_files(run, config=config, result=result)
    return dev


def write_all(workdir: Path, num_wrong=10, tasks=tuple(METRICS), num_seeds: int = 3, **fields):
    """Writes folders of several tasks; seed k has k more examples wrong."""
    for task in tasks:
        splits = ("matched", "mismatched") if task == "mnli" else ("dev",)
        for seed in range(num_seeds):
            wrong = {split: num_wrong + seed for split in splits}
            write_run(workdir / task, task, seed, wrong, **fields)
    return workdir
