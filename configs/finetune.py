"""Fine-tunes on a labelled task: the protocol's recipe, or another of scalelab/tasks/recipes.py.

  python -m scalelab.eval.rte --init=runs/bert --workdir=runs/bert-rte --data=GLUE_DIR \
    --config=configs/finetune.py:recipe=turc --config.epochs=5

Arguments, all optional, joined by commas:
  recipe   thesis (3 epochs, batch 16, rate 2e-5), turc, small, gpt, layerwise, features
  task     whose overrides of the recipe are taken: cola, sst2, ...; the binaries do this themselves
"""

import functools

import ml_collections
from ml_collections import config_dict

from scalelab.config import files
from scalelab.tasks import recipes


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns every field of a fine-tuning, with the recipe's values."""
    given = files.arguments(arguments, ("recipe", "task"), "recipe=turc")
    config = ml_collections.ConfigDict()
    config.recipe = given.get("recipe", "thesis")
    config.epochs = 3.0
    config.batch_size = 16
    config.max_len = 128  # tokens of a row; longer texts are cut, the longest first
    config.max_train_examples = config_dict.placeholder(int)  # the first so many; None: all
    config.group_batches = (
        50  # so many batches are drawn, sorted by length, shuffled; 0: not sorted
    )
    config.dropout_rate = 0.1
    config.lm_weight = 0.0  # lambda of the auxiliary language-model loss; causal systems alone
    config.feature_layers = config_dict.placeholder(int)  # so many, net frozen; None: off
    config.eval_every_epochs = 1.0
    config.patience = config_dict.placeholder(int)  # evaluations without a better score; None: off
    # One seed for all runs, of the order of the examples, or of the new head and dropout; None:
    # each run's own. With one of them fixed, runs differ in the other alone.
    config.order_seed = config_dict.placeholder(int)
    config.weights_seed = config_dict.placeholder(int)

    config.head = ml_collections.ConfigDict()
    # "double": H -> H, tanh, H -> classes, or "single"; None: as an import has it, else double
    config.head.kind = config_dict.placeholder(str)
    config.head.dropout_rate = 0.1
    config.head.pretrained = True  # the first layer starts from the pooler that NSP has trained

    optim = config.optim = ml_collections.ConfigDict()
    optim.learning_rate = 2e-5
    optim.beta1, optim.beta2, optim.eps = 0.9, 0.999, 1e-6
    optim.weight_decay = 0.01
    optim.clip_norm = 1.0
    optim.schedule = "linear"
    optim.warmup_rate = 0.0  # share of all steps
    optim.layer_decay = config_dict.placeholder(float)  # factor of the rate from layer to layer

    machine = config.machine = ml_collections.ConfigDict()
    machine.cache_dir = "~/.cache/scalelab"
    machine.compile_cache_dir = "~/.cache/scalelab/xla"
    machine.checkpoint_every_steps = 1000
    machine.log_every_steps = 50
    machine.eval_batch_size = 64

    recipe = recipes.get(config.recipe)
    for field, value in (dict(recipe.fields) | recipe.tasks.get(given.get("task"), {})).items():
        *groups, name = field.split(".")
        functools.reduce(getattr, groups, config)[name] = value
    return config
