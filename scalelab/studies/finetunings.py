"""The fine-tunings of a study: their fields, planned for every task, and the data of its tasks."""

import dataclasses
import fcntl
import pathlib
from collections.abc import Sequence
from typing import Any

from scalelab.config import files
from scalelab.config import finetuning as finetune_config
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import parse_fields
from scalelab.config.pretraining import Config
from scalelab.helpers.names import prefix_errors
from scalelab.lab.compare.comparability import PREFIX
from scalelab.records.study_file import Finetune
from scalelab.tasks import recipes
from scalelab.tasks import task as task_lib

PROBES = "probes"  # `finetune.data` of tasks that are made from the study's own corpus


def base_values(recipe: str) -> dict[str, Any]:
    """Returns the nested fields of configs/finetune.py for a recipe."""
    return files.load(files.FOLDER / "finetune.py").get_config(f"recipe={recipe}").to_dict()


def task_fields(lines: Sequence[str], task: str) -> dict[str, Any]:
    """Returns the fields that lines set for a task: "epochs=1" for all, "sst2.epochs=1" for one."""
    names = set(task_lib.task_names())
    found, own = {}, {}
    for field, value in parse_fields(lines).items():
        first, _, rest = field.partition(".")
        if first not in names:
            found[field] = value
        elif first == task:
            own[rest] = value
    return found | own


def load_task(finetune: Finetune, name: str) -> task_lib.Task:
    """Returns a task of a study; its answers are words if its fields have head.kind=words."""
    task = task_lib.load_task(name)
    is_text = task_fields(finetune.fields, name).get("head.kind") == "words"
    return task_lib.as_text(task) if is_text else task


def split_lines(lines: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns a variant's fields of pre-training, and those of fine-tuning without "finetune."."""
    own = tuple(line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX))
    return tuple(line for line in lines if not line.startswith(PREFIX)), own


def tune_variant(finetune: Finetune, lines: Sequence[str]) -> Finetune:
    """Returns the fine-tuning of a variant with these fields."""
    return dataclasses.replace(finetune, fields=(*finetune.fields, *split_lines(lines)[1]))


def config_values(finetune: Finetune, task: str) -> dict[str, Any]:
    """Returns the nested fields of configs/finetune.py, as set by recipe, study and task.

    Raises:
      ValueError: the study sets a field that does not exist.
    """
    own = dict(recipes.get(finetune.recipe).tasks.get(task, {}))
    own |= task_fields(finetune.fields, task)
    with prefix_errors("config.finetune.fields"):
        return finetune_config.override(base_values(finetune.recipe), own)


def plan_fields(finetune: Finetune) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Returns the fields of every fine-tuning of a study.

    Returns:
      Task -> science field -> value; and, apart from these, the fields that each fine-tuning
      chooses on dev from its recipe's grid.

    Raises:
      ValueError: an unknown field, or a value that is not allowed.
    """
    chosen = list(recipes.get(finetune.recipe).grid)
    found = {}
    for task in finetune.tasks:
        with prefix_errors(f"fine-tuning on {task}"):
            values = config_values(finetune, task)
            resolved = finetune_config.resolve(values)
        fields = config_lib.science(dataclasses.asdict(resolved))
        left = [*chosen]
        if values["head"]["kind"] is None and task_lib.load_task(task).kind != task_lib.Task.kind:
            left.append("head.kind")  # the kind of task decides it
        found[task] = {field: value for field, value in fields.items() if field not in left}
    return found, chosen


def data_folder(data: str | None, workdir: pathlib.Path) -> str | None:
    """Returns the folder of the tasks' data, from `finetune.data`; None is TensorFlow Datasets."""
    return str(workdir / "probes") if data == PROBES else data


def load(name: str, data: str | None, workdir: pathlib.Path) -> task_lib.Splits:
    """Loads the training and dev examples of a task from the study's `finetune.data`.

    Raises:
      ValueError: there are none, or they are damaged.
    """
    try:
        return task_lib.load(task_lib.load_task(name), data_folder(data, workdir), tests=False)
    except ValueError as error:
        if data is not None:
            raise
        raise ValueError(
            "the study's tasks need data: name the folder that holds CoLA/, SST-2/, ... with"
            " --config=FILE.py:data=DIR, or do without tasks with --config.finetune.tasks=();"
            f" TensorFlow Datasets does not have them here: {error}"
        ) from error


def prepare(data: str | None, config: Config, workdir: pathlib.Path) -> None:
    """Makes the self-supervised tasks of a study's corpus, if its `finetune.data` wants them.

    Processes that start together make them once.

    Raises:
      ValueError: the corpus is too small for them.
    """
    if data != PROBES:
        return
    from scalelab.tasks import self_supervised

    arguments = [
        f"--corpus={config.data.corpus}", f"--to={workdir / 'probes'}",
        f"--cache_dir={config.machine.cache_dir}", f"--errors={config.data.errors}",
    ]  # fmt: skip
    if config.data.valid_rate is not None:
        arguments.append(f"--valid_rate={config.data.valid_rate}")
    given = self_supervised.parser().parse_args(arguments)
    (workdir / "locks").mkdir(parents=True, exist_ok=True)
    with (workdir / "locks" / "probes").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        self_supervised.run(given)
