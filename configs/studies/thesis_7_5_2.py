"""Thesis 7.5.2: several shape dimensions grow together, and heads follow width (Tables 7.4, B.3).

At scale small the wide nets have half, the deep one a seventh of the protocol's size.
"""

import importlib.util
import pathlib

import ml_collections

SHAPES = {
    "full": ("2x204x7", "2x256x9", "8x544x2"),
    "small": ("2x128x7", "2x192x3", "4x256x2", "2x256x2", "2x128x10"),
    "tiny": ("2x16x3", "2x24x4", "4x32x2"),
}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    path = pathlib.Path(__file__).parents[1] / "study.py"
    spec = importlib.util.spec_from_file_location("study", path)
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    config = study.get_config(arguments)
    config.name = "thesis_7_5_2"
    config.title = "Scaling several shape dimensions"
    config.question = "Does growing several dimensions beat growing one, at equal size?"
    config.protocol = "7.5.2"
    config.stages.main = dict(
        systems=("bert", "gpt2", "roberta"), shapes=SHAPES[config.scale],
        variants=("baseline",), finetune="all",
    )  # fmt: skip
    if config.scale == "full":
        config.finetune.tasks = study.GLUE_LARGE + study.GLUE_SMALL
    config.tables = ("large", "small")
    config.figures = ("score_by_size", "loss_by_time")
    config.hypotheses = ("3", "4", "5")
    return config
