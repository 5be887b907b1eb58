"""Recipes: how a system is adapted to tasks, as values of `configs/finetune.py`'s fields.

A recipe gives the fields in which it differs from `thesis`, those in which a task of its own
differs again, and a grid: with one, each task first runs every point of it with the first seed, and
the point that is best on dev is trained with all seeds.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.helpers.names import nearest


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One recipe.

    Attributes:
      source: where it comes from.
      fields: dotted field -> value, where it differs from `thesis`.
      tasks: task -> dotted field -> value, on top.
      grid: dotted field -> values to choose from on dev, for each task.
    """

    source: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)


RECIPES = {
    "thesis": Recipe("protocol, 'Fine-tuning': 3 epochs, batch 16, 2e-5, every task"),
    "turc": Recipe(
        "Turc et al. 2019 as in their release of small BERTs (google-research/bert, README, March"
        " 2020): 4 epochs, rate and batch size by a grid; of theirs (rates 3e-4, 1e-4, 5e-5, 3e-5,"
        " batches 8 to 128) a quarter: the two largest rates, two batches",
        {"epochs": 4.0},
        grid={"optim.learning_rate": (3e-4, 1e-4), "batch_size": (8, 32)},
    ),
    "small": Recipe(
        "ours, for nets of a few million parameters: the largest rate of Turc et al.'s grid",
        {"optim.learning_rate": 3e-4, "batch_size": 32, "optim.warmup_rate": 0.1},
    ),
    "gpt": Recipe(
        "Radford et al. 2018, 4.1: one layer, auxiliary language-model loss",
        {
            "optim.learning_rate": 6.25e-5,
            "batch_size": 32,
            "optim.warmup_rate": 0.002,
            "lm_weight": 0.5,
            "head.kind": "single",
        },
    ),
    "layerwise": Recipe(
        "Clark et al. 2020, appendix B: the rate falls by 0.8 with each layer towards the input",
        {"optim.layer_decay": 0.8, "optim.learning_rate": 3e-4, "optim.warmup_rate": 0.1},
        tasks={"rte": {"epochs": 10.0}, "stsb": {"epochs": 10.0}},
    ),
    "features": Recipe(
        "Devlin et al. 2019, 5.3: frozen encoder, its top four layers concatenated",
        {"feature_layers": 4, "optim.learning_rate": 1e-3, "epochs": 10.0},
    ),
}


def get(name: str) -> Recipe:
    """Finds a recipe by name.

    Raises:
      ValueError: no such recipe.
    """
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]
