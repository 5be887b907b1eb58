"""The auxiliary language-model loss in fine-tuning, with few examples and with many.

  python -m scalelab.study run --config=configs/studies/auxiliary_lm.py:seeds=5 --workdir=DIR

| arm | fine-tuning |
|---|---|
| few | 500 training examples, no auxiliary loss |
| few_lm | the same, with half the loss of the next word (`lm_weight` 0.5) |
| many | 10,000 training examples, no auxiliary loss |
| many_lm | the same, with the auxiliary loss |

Radford et al. 2018, 5 ("Ablation studies") find that the auxiliary loss helps on larger data sets
and not on smaller ones. Here GPT reads a synthetic language (`scalelab.worlds`, kind grammar), 1.5
M tokens, and is fine-tuned on two tasks made of it: SST-2, which 500 examples teach to some seeds,
and MNLI, which they do not. Arms of one seed begin with the same weights, because they differ in
fine-tuning alone. No data are needed.
"""

import ml_collections

from scalelab.config import files

SIZES = {"few": (500, 20), "many": (10_000, 6)}  # examples, epochs
WEIGHT = 0.5  # lambda of the paper


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family = files.load(files.FOLDER / "studies/family.py")
    config, shape, _ = family.at_synthetic(arguments, tokens="1.5e6")
    config.evaluations, config.evaluation_data = (), None
    config.name = "auxiliary_lm"
    config.title = "The auxiliary language-model loss in fine-tuning"
    config.question = "Does the loss of the next word help fine-tuning, with few examples or many?"
    config.finetune.tasks = ("sst2", "mnli")
    config.finetune.fields = ("max_len=64", "batch_size=16", "optim.learning_rate=1e-3")
    arms = []
    for size, (examples, epochs) in SIZES.items():
        for end, weight in (("", 0.0), ("_lm", WEIGHT)):
            arms.append(f"{size}{end}")
            config.variants[arms[-1]] = (
                f"finetune.max_train_examples={examples}", f"finetune.epochs={epochs}",
                f"finetune.eval_every_epochs={epochs}", f"finetune.lm_weight={weight}",
            )  # fmt: skip
    config.stages.main = dict(
        systems=("gpt",), shapes=(shape,), variants=tuple(arms), finetune="all"
    )
    config.stage_order = ("main",)
    config.tables, config.figures = ("tasks", "loss"), ("loss_by_tokens",)
    config.primary = "sst2"
    config.claims = (
        ("few_lm < few", "sst2"),
        ("many_lm > many", "sst2"),
        ("many_lm > many", "mnli_m"),
    )
    return config
