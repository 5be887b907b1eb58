"""Depth or width: shapes of one size at equal FLOPs, early and late in training.

  python -m scalelab.study run --config=configs/studies/depth_or_width.py:seeds=5 --workdir=DIR

GPT-2 on the language of the quickstart, in three shapes whose layers have 98,304 to 101,568
parameters (12 L H^2): deep, middle and wide. Kaplan et al. 2020, "Scaling Laws for Neural Language
Models", 3.1, find that the shape hardly matters at one size; the thesis asks it for GLUE (7.5.1).
Runs take 20 to 70 seconds on a core. The losses of all runs are comparable. No data are needed.
"""

import ml_collections

from scalelab.config import files

DEEP, MIDDLE, WIDE = "2x32x8", "2x46x4", "2x64x2"
BUDGETS = {"early": 4e11, "late": 2.3e12}  # FLOPs


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family = files.load(files.FOLDER / "studies/family.py")
    config, _, _ = family.at_synthetic(arguments)
    config.name = "depth_or_width"
    config.title = "Depth or width at equal FLOPs"
    config.question = "Is a deep or a wide model of one size better, and does the budget matter?"
    config.matched = "flops"
    config.allow = ("matched",)
    config.evaluations, config.evaluation_data = (), None
    for name, flops in BUDGETS.items():
        config.variants[name] = family.equal_flops(config, flops)
    config.stages.main = dict(
        systems=("gpt2",), shapes=(DEEP, MIDDLE, WIDE), variants=tuple(BUDGETS), finetune="all"
    )
    config.stage_order = ("main",)
    config.tables, config.figures = ("loss",), ("loss_by_flops",)
    config.hypotheses = (
        (f"{WIDE} early < {DEEP} early", "loss"),
        (f"{WIDE} late > {DEEP} late", "loss"),
        (f"{MIDDLE} late ~ {DEEP} late", "loss", 0.02),
    )
    return config
