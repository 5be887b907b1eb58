"""Thesis 7.5.3: validation loss against seconds, BERT-style (Figures 7.3, B.1).

The budget is a time, the same for all shapes, at scale small and tiny; at scale full the protocol
trains every shape for its epochs and reads the losses at common times.
"""

import importlib.util
import pathlib

import ml_collections

SHAPES = {
    "full": ("2x128x2", "2x384x2", "2x544x2", "2x128x10", "2x128x18", "2x128x36")
    + ("2x204x7", "2x256x9"),
    "small": ("2x64x2", "2x128x2", "2x256x2", "2x128x5", "2x128x10"),
    "tiny": ("2x16x2", "2x32x2"),
}
SECS = {"small": 300.0, "tiny": 5.0}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    path = pathlib.Path(__file__).parents[1] / "study.py"
    spec = importlib.util.spec_from_file_location("study", path)
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    config = study.get_config(arguments)
    config.name = "thesis_7_5_3"
    config.title = "Validation loss against seconds"
    config.question = "At a fixed time, does a larger net that takes fewer steps win?"
    config.protocol = "7.5.3"
    config.stages.main = dict(
        systems=("bert",), shapes=SHAPES[config.scale], variants=("baseline",), finetune="none"
    )
    config.finetune.tasks = ()
    if config.scale != "full":
        optim = config.pretrain.optim
        optim.total_tokens, optim.warmup_tokens = None, None
        optim.total_secs, optim.warmup_secs = SECS[config.scale], SECS[config.scale] / 10
        config.matched = "secs"
    config.tables = ("grid",)
    config.figures = ("loss_by_time", "loss_by_tokens")
    config.hypotheses = ("6",)
    return config
