"""A recipe's grid: every point runs with the first seed, and the best on dev is taken."""

import itertools
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.helpers.files import write_json
from scalelab.runs import run_folder

Axes = Mapping[str, tuple[Any, ...]]  # dotted field -> values to choose from


def points(axes: Axes) -> dict[str, dict[str, Any]]:
    """Returns the fields of each point by its name, such as "learning_rate=0.001_batch_size=8"."""
    named = {}
    for point in itertools.product(*axes.values()):
        fields = dict(zip(axes, point, strict=True))
        name = "_".join(f"{field.rpartition('.')[2]}={value:g}" for field, value in fields.items())
        named[name] = fields
    return named


def vmappable(axes: Axes, most: int) -> list[list[str]]:
    """Groups the points that differ only in learning rate, at most `most` a group, by name."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, fields in points(axes).items():
        rest = tuple((field, v) for field, v in fields.items() if field != "optim.learning_rate")
        groups.setdefault(rest, []).append(name)
    return [names[i : i + most] for names in groups.values() for i in range(0, len(names), most)]


def write_choice(
    workdir: pathlib.Path, axes: Axes, scores: Mapping[str, float], seed: int
) -> dict[str, Any]:
    """Writes grid.json and returns the fields of the point with the best score.

    Args:
      workdir: the task's folder.
      axes: the grid.
      scores: dev score of each point by name; -inf where it failed.
      seed: the seed that all points ran with.
    """
    named = points(axes)
    best = max(named, key=lambda name: scores[name])
    made = [
        {"fields": fields, "score": scores[name] if math.isfinite(scores[name]) else None}
        for name, fields in named.items()
    ]
    content = {"points": made, "chosen": named[best], "seed": seed}
    write_json(workdir / "grid.json", content)
    return named[best]


def read_choice(workdir: pathlib.Path, axes: Axes) -> dict[str, Any]:
    """Returns the fields that an earlier start chose, of those that are still open.

    Raises:
      ValueError: there was none.
    """
    made = run_folder.read_json(workdir / "grid.json")
    if made is None:
        raise ValueError(
            f"{workdir} has no grid.json: the grid has not been run; leave out --eval_only"
        )
    return {field: value for field, value in made["chosen"].items() if field in axes}
