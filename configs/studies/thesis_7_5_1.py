"""Thesis 7.5.1: one dimension of the shape grows, width or depth (Tables 7.2, 7.3, B.1, B.2).

Takes the arguments of configs/study.py. Each scale has at least three widths and three depths, so
that the first step can be compared with the last. Hypotheses need two pre-training seeds. Scale
full has one seed, as the protocol does; it tests the hypotheses with seeds=2.
"""

import ml_collections

from scalelab.config import files

SHAPES = {
    "full": tuple(f"2x{h}x2" for h in (128, 192, 288, 384, 544))
    + tuple(f"2x128x{n}" for n in (5, 10, 18, 36)),
    "small": ("2x64x2", "2x128x2", "2x256x2", "2x128x5", "2x128x10"),
    "tiny": ("2x16x2", "2x24x2", "2x32x2", "2x16x4", "2x16x8"),
}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    study = files.load(files.FOLDER / "study.py")
    config = study.get_config(arguments)
    config.name = "thesis_7_5_1"
    config.title = "Scaling single shape dimensions"
    config.question = "How do three pre-training styles respond to width alone and depth alone?"
    config.protocol = "7.5.1"
    config.comparison = "scalelab.thesis.comparison"
    config.stages.main = dict(
        systems=("bert", "gpt2", "roberta"), shapes=study.of_scale(SHAPES, config.scale),
        variants=("default",), finetune="all",
    )  # fmt: skip
    if config.scale == "full":
        config.finetune.tasks = study.GLUE
    base = "16" if config.scale == "tiny" else "128"
    config.rows.width = study.rows("Width alone", shapes=("2x*x2",))
    config.rows.depth = study.rows("Depth alone", shapes=(f"2x{base}x*",))
    config.tables = ("data", "large:width", "large:depth", "small:width", "small:depth")
    config.figures = ("score_by_size", "loss_by_time")
    if config.seeds > 1:
        config.hypotheses = ("1a", "1b", "2a", "2b", "2c", "2d", "5", "6")
    return config
