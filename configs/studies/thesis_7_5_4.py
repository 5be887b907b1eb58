"""Thesis 7.5.4: half the steps against half the batch (Tables 7.5, B.4).

Half the steps with the same batch have half the tokens. Half the batch with the same steps has half
the tokens too.
"""

import ml_collections

from scalelab.config import files

SHAPES = {"full": ("2x256x9",), "small": ("2x128x2",), "tiny": ("2x32x2",)}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    study = files.load(files.FOLDER / "study.py")
    config = study.get_config(arguments)
    config.name = "thesis_7_5_4"
    config.title = "Number of steps and batch size"
    config.question = "What do half the steps and half the batch cost, and which time do they save?"
    config.protocol = "7.5.4"
    config.comparison = "scalelab.thesis.comparison"
    budget = "total_epochs" if config.scale == "full" else "total_tokens"
    half = [f"optim.{budget}=x0.5"]
    half += [] if config.scale == "full" else ["optim.warmup_tokens=x0.5"]
    config.variants.half_steps = tuple(half)
    config.variants.half_batch = (*half, "short.batch_size=x0.5", "long.batch_size=x0.5")
    config.stages.main = dict(
        systems=("bert", "roberta"), shapes=study.of_scale(SHAPES, config.scale),
        variants=("default", "half_steps", "half_batch"), finetune="all",
    )  # fmt: skip
    if config.scale == "full":
        config.finetune.tasks = study.GLUE
    config.tables = ("strategies", "strategies_small")
    config.figures = ("loss_by_time", "loss_by_tokens")
    config.hypotheses = ("7a", "7b") if config.seeds > 1 else ()
    return config
