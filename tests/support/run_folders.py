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
    folder: Path, *, config: dict[str, Any] | None = None, steps: int = 400, finished: bool = True,
    offset: float = 0.0, **fields: Any,
) -> Path:  # fmt: skip
    """Writes a pre-training's folder: a line each 10 steps, an evaluation each 100.

    `offset` is added to all losses; `fields` are of result.json, on top, which only a finished run
    has.
    """
    config = config or config_of()
    environment = {"host": "elsewhere", "command": "python -m scalelab.train --x|y", "packages": {}}
    environment |= {"git_commit": "c0ffee", "git_dirty": False, "numerics": 1, "earlier_starts": []}
    lines = []
    for step in range(10, steps + 1, 10):
        lines.append(line_of(step, loss_at(step, offset)))
        if step % 100 == 0:
            lines.append(eval_line(step, loss_at(step, offset) + 0.5))
    clocks = {"tokens": 100 * steps, "flops": 1e9 * steps, "seconds": 0.5 * steps}
    reached = {"128": {"loss": loss_at(steps, offset) + 0.5, "step": steps}}
    result = task_folders.result_of(config, steps, clocks, reached, params=4321) | fields
    files = {"config": config, "environment": environment}
    files |= {"result": result} if finished else {}
    task_folders.write_files(folder, map(json.loads, lines), **files)
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
    config = {name: result[name] for name in ("task", "seed", "mnli_first")}
    config |= {"system": "bert", "init": "0123abcd", "model": config_of()["model"]}
    config |= {"recipe": "thesis", "machine": {"init": "runs/bert"}}
    share = 60.5 / num_lines
    lines = [line_of(50 * k, 1.0, seconds=share * k) for k in range(1, num_lines + 1)]
    lines.insert(20, eval_line(1000, 0.5).replace("eval/loss", "eval/dev/accuracy"))
    steps = 50 * num_lines
    result |= {"steps": steps, "tokens": 100 * steps, "flops": 1e9 * steps, "seconds": 60.5}
    files = {"config": config, "environment": {}, "result": result}
    task_folders.write_files(seed, map(json.loads, lines), **files)
