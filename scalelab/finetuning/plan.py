"""The plan of a fine-tuning: options, the fields of a task, and the recipe's grid.

Every point of a grid runs with the first seed; the point with the best score on dev is taken.
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config.finetuning import override, resolve, with_head_kind
from scalelab.finetuning import kinds
from scalelab.finetuning.warm_start import WarmStart, check_fits
from scalelab.helpers.files import write_json
from scalelab.records import json_files
from scalelab.tasks import recipes, text_counts
from scalelab.tasks import task as task_lib
from scalelab.tasks.task import Task

Axes = Mapping[str, tuple[Any, ...]]  # dotted field -> values to choose from


@dataclasses.dataclass(frozen=True)
class Request:
    """A fine-tuning as it is asked for: the model, the config, and options that are no fields."""

    start: WarmStart  # the pre-trained or imported model
    values: Mapping[str, Any]  # fields of `configs/finetune.py`
    # Name of a task -> dotted fields that differ from `values` and from the recipe's own.
    overrides: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    data: str | None = None  # folder of the tasks' data; None: TensorFlow Datasets
    eval_only: bool = False  # evaluate finished runs again
    submit: bool = False  # predict the test sets too
    fixed: tuple[str, ...] = ()  # dotted fields set by the user; a recipe leaves them as set


def plan(task: Task, asked: Request) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Returns a task's values, and the axes of the recipe's grid that the user has left open.

    Fields of the system (RECIPE) and of the task change the recipe's. A recipe's max_len is lowered
    to the model's positions, and its lm_weight to 0 on a frozen model, on one with a source, and
    where labels are words.

    Raises:
      ValueError: a field cannot be set so, or does not fit the model; or a library is missing.
    """
    for name in task.metrics:  # a missing library is named before the training
        text_counts.signature(name)
    start, overrides = asked.start, asked.overrides.get(task.name, {})
    fixed = {*asked.fixed, *overrides}
    if "recipe" in fixed:
        raise ValueError("`config.recipe` is only a label; to change the recipe use --recipe=NAME")
    classifier = start.classifier
    same = classifier is not None and classifier.task_kind == task.kind
    values = with_head_kind(asked.values, classifier.kind if same else kinds.load(task.kind).HEAD)
    recipe, opened = recipes.get(values["recipe"]), start.opened
    own = recipes.own_fields(opened.system, recipe, task.name)
    own = {name: value for name, value in own.items() if name not in asked.fixed}
    planned = override(dict(values), own | dict(overrides))
    if "max_len" not in fixed:
        planned["max_len"] = min(planned["max_len"], opened.config.model.max_len)
    if task.kind in kinds.GENERATED and "head.kind" not in fixed:  # a recipe's has no use
        planned = override(planned, {"head.kind": kinds.WORDS})
    alone = not planned["feature_layers"] and task.kind not in kinds.GENERATED
    if not (alone and not opened.system.HAS_SOURCE) and "lm_weight" not in fixed:
        planned["lm_weight"] = 0.0
    if "lm_weight" in fixed and planned["lm_weight"] and opened.predicts != "next":
        raise ValueError(
            f"{task.title}: config.lm_weight = {planned['lm_weight']} needs a model trained on"
            f" the next token, and this {opened.config.system} is none; set --config.lm_weight=0"
        )
    return planned, {k: points for k, points in recipe.grid.items() if k not in fixed}


def check(task: Task, asked: Request) -> None:
    """Refuses what `fine_tune` would refuse, before any task of several is trained.

    Raises:
      ValueError: a field or the task's data is wrong, or does not fit the model.
    """
    splits = task_lib.load(task, asked.data, tests=asked.submit)
    values, axes = plan(task, asked)
    for fields in grid_points(axes).values():
        config = resolve(override(values, fields))
        check_fits(asked.start.opened, config, task.title, num_examples=len(splits.train))


# --- The grid ----------------


def grid_points(axes: Axes) -> dict[str, dict[str, Any]]:
    """Returns the fields of each point by its name, such as "learning_rate=0.001_batch_size=8"."""
    named = {}
    for point in itertools.product(*axes.values()):
        fields = dict(zip(axes, point, strict=True))
        name = "_".join(f"{field.rpartition('.')[2]}={value:g}" for field, value in fields.items())
        named[name] = fields
    return named


def write_choice(
    workdir: pathlib.Path, points: Sequence[tuple[dict[str, Any], float]], seed: int
) -> dict[str, Any]:
    """Writes grid.json of points with their scores on dev; returns the fields of the best.

    The score of a point that failed is -inf.
    """
    chosen, _ = max(points, key=lambda point: point[1])
    made = [{"fields": x, "score": y if math.isfinite(y) else None} for x, y in points]
    write_json(workdir / "grid.json", {"points": made, "chosen": chosen, "seed": seed})
    return chosen


def read_choice(workdir: pathlib.Path, axes: Axes) -> dict[str, Any]:
    """Returns the fields that an earlier start chose, of those that are still open.

    Raises:
      ValueError: there was none.
    """
    chosen = read_grid(workdir).chosen
    if chosen is None:
        raise ValueError(f"{workdir} has no grid.json: run the grid first, without --eval_only")
    return {field: value for field, value in chosen.items() if field in axes}


@dataclasses.dataclass(frozen=True)
class Grid:
    """The fields of grid.json that are read again."""

    chosen: dict[str, Any] | None = None  # field -> value; None: there was no grid


def read_grid(workdir: pathlib.Path) -> Grid:
    """Reads grid.json; raises Unreadable if it is damaged."""
    path = workdir / "grid.json"
    return json_files.fill(Grid, json_files.read_object(path) or {}, path)
