r"""Pre-trains one system: the base config with the system's own declared differences.

  python -m scalelab.train --workdir=runs/bert \
    --config=configs/pretrain.py:system=bert,shape=2x128x2,corpus=builtin,steps=500

Arguments, all optional, joined by commas:
  system   a file of scalelab/systems, such as bert
  shape    AxHxL: attention heads, width, layers
  corpus   builtin, wikitext:DIR, text:GLOB, jsonl:GLOB, parquet:DIR, hf:NAME, tfds:NAME;
           corpus=builtin gets 20,000 pieces, because its text is too small for 30,000
  seed     of parameters, data order, masks and dropout
  steps    the budget over both phases; or epochs, tokens, flops, secs;
           without one, the protocol's epochs.
A budget in steps or tokens below the protocol's, 100,000 steps of 8,192 tokens, sets more fields:
  optim.learning_rate  1e-3 for all systems below 400 M tokens, 4e-3 below 0.5 M
  the warm-up          a tenth of the budget, at most 1,000 steps
  machine.log_every_steps    at least 50 lines
  eval.every_steps, eval.num_examples    all validations take at most 15% of the training
Of a budget in flops or secs the warm-up is 1%; the rest is the protocol's, as with epochs.
Every other field: --config.<field>=<value>. A comma inside a path is written twice where a word and
"=" follow it: text:/a/year=1,,month=2/*.txt.
"""

import ml_collections
from ml_collections import config_dict

from scalelab import systems
from scalelab.config import files, pretraining

BUILTIN_VOCAB = 20_000  # the several MB of the built-in corpus support some 22,000 pieces
BUDGETS = {"steps": int, "epochs": float, "tokens": float, "flops": float, "secs": float}
PROTOCOL_STEPS, STEP_TOKENS = 100_000, 64 * 128  # the base config
RATES = {0.5e6: 4e-3, 400e6: 1e-3}  # tokens of the budget below which a learning rate holds
ARGUMENTS = ("system", "shape", "corpus", "seed", *BUDGETS)


def _number(name: str, text: str, kind: type) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"config argument {name}={text!r}: expected {kind.__name__}") from None


def _set_budget(config: ml_collections.ConfigDict, clock: str, total: float) -> None:
    """Replaces the budget, and what depends on it."""
    optim = config.optim
    optim.total_epochs = config_dict.placeholder(float)
    optim[f"total_{clock}"] = total
    if clock == "steps":
        optim.warmup_steps = min(1000, int(total) // 10)
    elif clock != "epochs":
        optim.warmup_steps = config_dict.placeholder(int)
        most = 0.1 * total if clock == "tokens" else 0
        optim[f"warmup_{clock}"] = max(0.01 * total, min(most, 1000 * STEP_TOKENS))
    steps = int({"steps": total, "tokens": total / STEP_TOKENS}.get(clock, PROTOCOL_STEPS))
    if steps >= PROTOCOL_STEPS:
        return
    given = total if clock == "tokens" else steps * STEP_TOKENS
    if rates := [rate for most, rate in RATES.items() if given < most]:
        optim.learning_rate = rates[0]
    config.eval.every_steps = config_dict.placeholder(int)
    config.eval.num_examples = config_dict.placeholder(int)
    config.machine.log_every_steps = max(1, min(config.machine.log_every_steps, steps // 50))


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the base config with the system's declared differences and the arguments applied."""
    given = files.arguments(arguments, ARGUMENTS, "system=bert")
    config = files.load(files.FOLDER / "base.py").get_config()
    config.system = given.get("system", config.system)
    for departure in systems.load(config.system).DEPARTURES:
        config.update_from_flattened_dict({departure.field: departure.value})
    if "shape" in given:
        shape = pretraining.Shape.parse(given["shape"])
        config.model.num_heads, config.model.width, config.model.num_layers = shape
    config.data.corpus = given.get("corpus", config.data.corpus)
    if given.get("corpus") == "builtin":
        config.tokenizer.vocab_size = BUILTIN_VOCAB
    config.seed = _number("seed", given["seed"], int) if "seed" in given else config.seed
    budgets = [name for name in BUDGETS if name in given]
    if len(budgets) > 1:
        raise ValueError(f"one budget at a time, got {' and '.join(budgets)}")
    for clock in budgets:
        _set_budget(config, clock, _number(clock, given[clock], BUDGETS[clock]))
    return config
