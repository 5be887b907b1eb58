"""Invented run folders, as `scalelab.train` leaves them in whatever state; and task_folders."""

import json
from pathlib import Path
from typing import Any

import task_folders
import tiny


def config_of(system: str = "bert", shape: str = "2x128x2", **fields: Any) -> dict[str, Any]:
    """The config of a pre-training."""
    return tiny.values(f"system={system},shape={shape},steps=400", **fields)


def line_of(step: int, loss: float, **values: float) -> str:
    """A line of metrics.jsonl: 100 tokens, 1e9 FLOPs and half a second a step."""
    clocks = {"step": step, "tokens": 100 * step, "flops": 1e9 * step, "seconds": 0.5 * step}
    return json.dumps(clocks | {"train/loss": loss, "train/learning_rate": 1e-3} | values) + "\n"


def eval_line(step: int, loss: float, length: int = 128) -> str:
    """An evaluation's line."""
    line = json.loads(line_of(step, 0.0))
    clocks = {name: value for name, value in line.items() if not name.startswith("train/")}
    return json.dumps(clocks | {"eval/loss": loss, "eval/max_len": length}) + "\n"


def loss_at(step: int, offset: float = 0.0) -> float:
    """Straight from 10 at the start, 0.01 a step."""
    return 10 + offset - 0.01 * step


def write(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    steps: int = 400,
    finished: bool = True,
    offset: float = 0.0,
    **fields: Any,
) -> Path:
    """Writes a pre-training's folder: a line each 10 steps, an evaluation each 100.

    Args:
      folder: the run folder.
      config: the content of config.json.
      steps: taken so far.
      finished: whether there is a result.json.
      offset: of all losses.
      **fields: of result.json, on top.
    """
    config = config or config_of()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    environment = {"host": "elsewhere", "command": "python -m scalelab.train --x|y"}
    environment |= {"git_commit": "c0ffee", "git_dirty": False, "numerics": 1, "packages": {}}
    environment |= {"earlier_starts": []}
    (folder / "environment.json").write_text(json.dumps(environment, indent=1))
    lines = []
    for step in range(10, steps + 1, 10):
        lines.append(line_of(step, loss_at(step, offset)))
        if step % 100 == 0:
            lines.append(eval_line(step, loss_at(step, offset) + 0.5))
    net = config["net"]
    result = {
        "status": "completed",
        "task": None,
        "system": config["system"],
        "shape": {"A": net["num_heads"], "H": net["width"], "L": net["num_layers"]},
        "n_model": 12 * net["num_layers"] * net["width"] ** 2,
        "params": 4321,
        "seed": config["seed"],
        "steps": steps,
        "tokens": 100 * steps,
        "flops": 1e9 * steps,
        "seconds": 0.5 * steps,
        "eval": {"128": {"loss": loss_at(steps, offset) + 0.5, "step": steps}},
        "data_hash": "ab" * 32,
    }
    if finished:
        (folder / "result.json").write_text(json.dumps(result | fields))
    (folder / "metrics.jsonl").write_text("".join(lines))
    for large in ("checkpoints/0", "tensorboard", "tokenizer"):
        (folder / large).mkdir(parents=True)
        (folder / large / "large").write_bytes(bytes(10_000))
    (folder / ".lock").touch()
    return folder


def add_tasks(run: Path, tasks: tuple[str, ...], num_wrong: int = 10, num_seeds: int = 3) -> Path:
    """Adds fine-tunings in tasks/ below a run; returns that folder."""
    task_folders.write_all(run / "tasks", num_wrong, tasks, num_seeds)
    for seed in (run / "tasks").glob("*/seed*"):
        complete(seed)
    return run / "tasks"


def complete(seed: Path, num_lines: int = 40) -> None:
    """Adds to a folder of `task_folders.write_run` what it lacks of a fine-tuning's."""
    result = json.loads((seed / "result.json").read_text())
    config = {
        "task": result["task"],
        "seed": result["seed"],
        "system": "bert",
        "init": "0123abcd",
        "mnli_first": result["mnli_first"],
        "net": config_of()["net"],
        "recipe": "thesis",
        "machine": {"init": "runs/bert"},
    }
    (seed / "config.json").write_text(json.dumps(config))
    (seed / "environment.json").write_text("{}")
    share = 60.5 / num_lines
    lines = [line_of(50 * k, 1.0, seconds=share * k) for k in range(1, num_lines + 1)]
    lines.insert(20, eval_line(1000, 0.5).replace("eval/loss", "eval/dev/accuracy"))
    (seed / "metrics.jsonl").write_text("".join(lines))
    steps = 50 * num_lines
    clocks = {"steps": steps, "tokens": 100 * steps, "flops": 1e9 * steps, "seconds": 60.5}
    (seed / "result.json").write_text(json.dumps(result | clocks))
