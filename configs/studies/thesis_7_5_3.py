"""Thesis 7.5.3: validation loss against seconds, BERT-style (Figures 7.3, B.1).

All shapes get the same time. This budget is a variant, because other studies have runs of the same
shapes with a budget of tokens. At scale full the protocol trains every shape for its epochs and
reads the losses at common times.
"""

import ml_collections

from scalelab.config import files

SHAPES = {
    "full": ("2x128x2", "2x384x2", "2x544x2", "2x128x10", "2x128x18", "2x128x36")
    + ("2x204x7", "2x256x9"),
    "small": ("2x64x2", "2x128x2", "2x256x2", "2x128x5", "2x128x10"),
    "tiny": ("2x16x2", "2x32x2"),
}
SECS = {"medium": 20.0, "small": 150.0, "tiny": 5.0}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    study = files.load(files.FOLDER / "study.py")
    config = study.get_config(arguments)
    config.name = "thesis_7_5_3"
    config.title = "Validation loss against seconds"
    config.question = "At a fixed time, does a larger model that takes fewer steps win?"
    config.protocol = "7.5.3"
    config.comparison = "scalelab.thesis.comparison"
    variant, after = "default", "the protocol's epochs"
    if config.scale != "full":
        variant, secs = "equal_seconds", SECS[config.scale]
        after = f"{secs:g} seconds each"
        config.variants.equal_seconds = (
            "optim.total_tokens=None", "optim.warmup_tokens=None",
            f"optim.total_secs={secs}", f"optim.warmup_secs={secs / 10}",
        )  # fmt: skip
        config.matched = "secs"
    config.stages.main = dict(
        systems=("bert",),
        shapes=study.of_scale(SHAPES, config.scale),
        variants=(variant,),
        finetune="none",
    )
    config.finetune.tasks = ()
    config.rows.sizes = study.rows(f"Models of several sizes after {after}")
    config.tables = ("loss:sizes",)
    config.figures = ("loss_by_time", "loss_by_tokens")
    config.hypotheses = ("6",) if config.seeds > 1 else ()
    return config
