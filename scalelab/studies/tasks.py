"""Where a study's tasks have their data: a folder of the user's, or probes made from the corpus."""

import pathlib
from typing import Any

from scalelab.config.pretraining import Config
from scalelab.tasks import task as task_lib

PROBES = "probes"  # what `finetune.data` says for tasks made out of the study's own corpus


def folder(data: str | None, workdir: pathlib.Path) -> str | None:
    """The folder of the tasks' data; None: TensorFlow Datasets."""
    return str(workdir / "probes") if data == PROBES else data


def load(name: str, data: str | None, workdir: pathlib.Path) -> task_lib.Splits:
    """The training and dev examples of a task.

    Args:
      name: of the task.
      data: what `finetune.data` says.
      workdir: the study's folder.

    Raises:
      ValueError: there are none, or they are damaged.
    """
    try:
        return task_lib.load(task_lib.load_task(name), folder(data, workdir), tests=False)
    except ValueError as error:
        if data is not None:
            raise
        raise ValueError(
            f"the study's tasks need data: --config=FILE.py:data=DIR names the folder that holds"
            f" CoLA/, SST-2/, ..., --config.finetune.tasks=() does without tasks; TensorFlow"
            f" Datasets, which is asked otherwise, does not have them here: {error}"
        ) from error


def prepare(data: str | None, config: Config, workdir: pathlib.Path) -> None:
    """Makes the probe tasks, where a study wants them and they are not there yet.

    Args:
      data: what `finetune.data` says.
      config: of any run; its corpus is taken.
      workdir: the study's folder.

    Raises:
      ValueError: the corpus is too small for them.
    """
    if data != PROBES:
        return
    from scalelab.data import probes

    arguments: dict[str, Any] = {
        "corpus": config.data.corpus,
        "to": workdir / "probes",
        "cache_dir": config.machine.cache_dir,
        "valid_rate": config.data.valid_rate,
        "errors": config.data.errors,
    }
    given = probes.parser().parse_args([f"--{name}={value}" for name, value in arguments.items()])
    given.to.parent.mkdir(parents=True, exist_ok=True)
    probes.run(given)
