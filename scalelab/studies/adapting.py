"""How a study adapts its nets to a task: every field of a fine-tuning, as planned."""

import dataclasses
from typing import Any

from scalelab.config import finetuning as finetune_config
from scalelab.config import pretraining as config_lib
from scalelab.studies import job
from scalelab.studies.spec import Finetune
from scalelab.tasks import recipes

NO_MACHINE = {"cache_dir": "", "compile_cache_dir": None}


def values(finetune: Finetune, task: str) -> dict[str, Any]:
    """The nested fields of configs/finetune.py for a task, as `job.finetune` takes them.

    Raises:
      ValueError: the study sets a field that there is not.
    """
    own = dict(recipes.get(finetune.recipe).tasks.get(task, {}))
    own |= job.task_fields(list(finetune.fields), task)
    try:
        return finetune_config.override(job.finetune_values(finetune.recipe, NO_MACHINE), own)
    except ValueError as error:
        raise ValueError(f"config.finetune.fields: {error}") from None


def planned(finetune: Finetune) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What every fine-tuning of a study will be.

    Returns:
      Task -> science field -> value; and the fields that each of them chooses on dev, out of its
      recipe's grid, which are not among those.

    Raises:
      ValueError: a field that there is not, or a value that cannot be.
    """
    chosen = list(recipes.get(finetune.recipe).grid)
    found = {}
    for task in finetune.tasks:
        try:
            resolved = finetune_config.resolve(values(finetune, task))
        except ValueError as error:
            raise ValueError(f"fine-tuning on {task}: {error}") from None
        fields = config_lib.science(dataclasses.asdict(resolved))
        found[task] = {field: value for field, value in fields.items() if field not in chosen}
    return found, chosen
