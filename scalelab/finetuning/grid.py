"""A recipe's grid: every point runs with the first seed, and the best on dev is taken."""

import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.config.finetuning import override, resolve
from scalelab.finetuning import loop, outcome
from scalelab.helpers.files import write_json
from scalelab.runs import run_folder

Axes = Mapping[str, tuple[Any, ...]]  # dotted field -> values to choose from


def best(request: Any, values: dict[str, Any], axes: Axes) -> dict[str, Any]:
    """Runs the points that are not finished yet.

    Args:
      request: a finetune.Request.
      values: fields of `configs/finetune.py`.
      axes: of the grid.

    Returns:
      The values with the fields of the point that is best on dev; the choice is kept in grid.json.
    """
    task, seed = request.task, request.options.seeds[0]
    named: dict[str, dict[str, Any]] = {}
    scores: dict[str, float] = {}
    for point in itertools.product(*axes.values()):
        fields = dict(zip(axes, point, strict=True))
        name = "_".join(f"{field.rpartition('.')[2]}={value:g}" for field, value in fields.items())
        named[name] = fields
    for names in _alike(named, request.options.together):
        runs = {
            name: request.prepare(resolve(override(values, named[name])), f"grid/{name}")
            for name in names
        }
        left = [run for run in runs.values() if run.claim(seed) is None]
        if left:
            loop.train_together(left, [seed] * len(left))
        for name, run in runs.items():
            scores[name] = outcome.main_score(task, run.result(seed)["eval"])
            print(f"{task.name}: {name} has {task.metrics[0]} {scores[name]:.4f} on dev")
    points = [{"fields": fields, "score": scores[name]} for name, fields in named.items()]
    found = max(points, key=lambda point: point["score"])["fields"]
    write_json(request.workdir / "grid.json", {"points": points, "chosen": found, "seed": seed})
    return override(values, found)


def _alike(named: dict[str, dict[str, Any]], together: int) -> list[list[str]]:
    """Points that train as one program, at most so many: they differ in the learning rate alone."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, fields in named.items():
        rest = tuple((field, v) for field, v in fields.items() if field != "optim.learning_rate")
        groups.setdefault(rest, []).append(name)
    return [
        names[i : i + together] for names in groups.values() for i in range(0, len(names), together)
    ]


def chosen(workdir: pathlib.Path, axes: Axes) -> dict[str, Any]:
    """The fields that an earlier start chose, as far as they are still to be chosen.

    Raises:
      ValueError: none did.
    """
    made = run_folder.read_json(workdir / "grid.json")
    if made is None:
        raise ValueError(
            f"{workdir} has no grid.json: the grid has not been run; leave out --eval_only"
        )
    return {field: value for field, value in made["chosen"].items() if field in axes}
