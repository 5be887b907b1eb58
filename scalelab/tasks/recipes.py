"""Recipes: how a system is adapted to tasks, as values of `configs/finetune.py`'s fields.

A recipe lists the fields that differ from `configs/finetune.py`, further differences of single
tasks, and optionally a grid. With a grid each task runs every point with the first seed; the best
point on dev is trained with all seeds.

The recipe `thesis` is the benchmark protocol (thesis, 7.4). Where the protocol sets no value, it
refers to the systems' papers:

| field | value | source |
|---|---|---|
| epochs, batch_size, learning_rate | 3, 16, 2e-5 | 7.4 |
| head.kind, head.dropout_rate | two layers, 0.1 before each | 7.4 |
| max_len | 512 | 7.3: length 512 is pre-trained for the long inputs of some GLUE tasks |
| lm_weight | 0.5, causal systems only | 7.4, as GPT: Radford et al. 2018, 4.1 |
| dropout_rate | 0.1 | the systems' papers |
| clip_norm, weight_decay, betas | 1.0, 0.01, (0.9, 0.999) | ours, as in BERT's code |
| eps | 1e-6 | ours, as in pre-training |
| schedule, warmup_rate | linear decay, no warm-up | ours; BERT: 10% of the steps, GPT: 0.2% |
| group_batches | 50 | ours: batches of about equal lengths |
| patience | off | ours: the last step's parameters are scored |
| head.pretrained | BERT's pooler | ours, as in Devlin et al. 2019 |
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.helpers.names import check_names


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One recipe.

    Attributes:
      source: its paper or code.
      fields: dotted field -> value, the differences from `configs/finetune.py`.
      tasks: task -> dotted field -> value, further differences.
      grid: dotted field -> values to choose from on dev, for each task.
    """

    source: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)


RECIPES = {
    "thesis": Recipe("the benchmark protocol, see above", {"max_len": 512, "lm_weight": 0.5}),
    "turc": Recipe(
        "Turc et al. 2019 as in their release of small BERTs (google-research/bert, README, March"
        " 2020): 4 epochs, rate and batch size by a grid; of theirs (rates 3e-4, 1e-4, 5e-5, 3e-5,"
        " batches 8 to 128) a quarter: the two largest rates, two batches",
        {"epochs": 4.0},
        grid={"optim.learning_rate": (3e-4, 1e-4), "batch_size": (8, 32)},
    ),
    "small": Recipe(
        "ours, for models of a few million parameters: the largest rate of Turc et al.'s grid",
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
    "babylm": Recipe(
        "the BabyLM Challenge 2025, eval_finetuning.sh of babylm/evaluation-pipeline-2025 and the"
        " defaults behind it. Its rate falls to a tenth, ours to zero; its head has GELU and two"
        " norms, ours tanh; it scores the epoch that is best on dev, ours the last",
        {
            "optim.learning_rate": 3e-5,
            "optim.schedule": "cosine",
            "optim.warmup_rate": 0.06,
            "optim.eps": 1e-8,
            "optim.clip_norm": None,
            "batch_size": 32,
            "epochs": 10.0,
            "max_len": 512,
            "head.pretrained": False,
        },
        tasks={
            "superglue_boolq": {"batch_size": 16},
            "superglue_multirc": {"batch_size": 16},
            "superglue_wsc": {"epochs": 30.0},
        },
    ),
    "features": Recipe(
        "Devlin et al. 2019, 5.3: frozen encoder, its top four layers concatenated",
        {"feature_layers": 4, "optim.learning_rate": 1e-3, "epochs": 10.0},
    ),
}


def own_fields(system: object, recipe: Recipe, task: str) -> dict[str, Any]:
    """Returns the fields that the system's RECIPE and the recipe's `task` change."""
    return {**getattr(system, "RECIPE", {}), **recipe.tasks.get(task, {})}


def get(name: str) -> Recipe:
    """Finds a recipe by name.

    Raises:
      ValueError: no such recipe.
    """
    check_names([name], RECIPES, "unknown recipe")
    return RECIPES[name]
