"""Thesis 7.5.2: several dimensions of the shape grow together (Tables 7.4, B.3).

Each model that grew in both dimensions is compared with one of equal size that grew in width alone
and one that grew in depth alone (Figure 7.2). The protocol takes these from its Tables 7.2 and 7.3;
here thesis_7_5_1 has runs of the same names. At scales medium and small the larger models have four
times the size of 2x64x2 (protocol: nine and eighteen times that of 2x128x2), and 1x256x2 is
compared with 2x256x2, as 2x544x2 with 8x544x2. At scale tiny they have four times the size of
2x16x2, and no model is wide enough for hypothesis 4b. Hypothesis 5 needs several pre-trainings of
each model: scale full has it with seeds=2.
"""

import ml_collections

from scalelab.config import files

SHAPES = {
    "full": ("2x204x7", "2x256x9", "8x544x2") + ("2x384x2", "2x128x18", "2x544x2", "2x128x36"),
    "small": ("2x64x2", "2x128x2", "2x64x8", "2x90x4", "2x256x2", "1x256x2"),
    "tiny": ("2x16x2", "2x32x2", "2x16x8", "2x22x4"),
}
# The models that have grown in both dimensions, or in heads and width: Tables 7.4 and B.3.
SEVERAL = {"full": SHAPES["full"][:3], "small": ("2x90x4", "2x256x2"), "tiny": ("2x22x4",)}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    study = files.load(files.FOLDER / "study.py")
    config = study.get_config(arguments)
    config.name = "thesis_7_5_2"
    config.title = "Scaling several shape dimensions"
    config.question = "Does growing several dimensions beat growing one, at equal size?"
    config.protocol = "7.5.2"
    config.comparison = "scalelab.thesis.comparison"
    config.stages.main = dict(
        systems=("bert", "gpt2", "roberta"), shapes=study.of_scale(SHAPES, config.scale),
        variants=("default",), finetune="all",
    )  # fmt: skip
    if config.scale == "full":
        config.finetune.tasks = study.GLUE
    several = study.of_scale(SEVERAL, config.scale)
    beside = tuple(x for x in study.of_scale(SHAPES, config.scale) if x not in several)
    config.rows.several = study.rows("Several dimensions", shapes=several)
    config.rows.beside = study.rows("One dimension alone, to stand beside", shapes=beside)
    config.tables = ("large:several", "small:several", "large:beside", "small:beside")
    config.figures = ("score_by_size", "loss_by_time")
    if config.seeds > 1:
        config.hypotheses = ("3", "4a", "5") if config.scale == "tiny" else ("3", "4a", "4b", "5")
    return config
