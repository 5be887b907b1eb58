"""Fine-tunes on a labeled task with the protocol's recipe or another of scalelab/tasks/recipes.py.

  python -m scalelab.eval.rte --init=runs/bert --workdir=runs/bert-rte --data=GLUE_DIR \
    --config=configs/finetune.py:recipe=turc --config.epochs=5

Arguments, all optional, joined by commas:
  recipe   thesis (the default), turc, small, gpt, layerwise, babylm, features
  task     adds the recipe's fields for this task: cola, sst2, ...; the task programs set it
Fields and defaults: scalelab/config/finetuning.py.
"""

import functools

import ml_collections

from scalelab.config import files, finetuning
from scalelab.tasks import recipes


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns every field of a fine-tuning, with the recipe's values."""
    given = files.arguments(arguments, ("recipe", "task"), "recipe=turc")
    config = files.defaults(finetuning.FinetuneConfig)
    config.recipe = given.get("recipe", "thesis")
    recipe = recipes.get(config.recipe)
    for field, value in (dict(recipe.fields) | recipe.tasks.get(given.get("task"), {})).items():
        *groups, name = field.split(".")
        functools.reduce(getattr, groups, config)[name] = value
    return config
