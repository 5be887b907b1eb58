"""BART's noises on one encoder-decoder: which one helps to translate with few pairs?

  python -m scalelab.study run --config=configs/studies/bart_noises.py:seeds=3 --workdir=DIR

The noises are masking, deletion, infilling, permutation, rotation, and infilling with permutation,
BART's own choice (Lewis et al. 2020, 2.2). In their Table 1 infilling is the most consistent, and
permutation and rotation alone are poor. Scales, text, pairs, recipe and scores are those of
t5_objectives.py.
"""

import ml_collections

from scalelab.config import files

NOISES = ("masking", "deletion", "infilling", "permutation", "rotation")


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    config, shape = files.load(files.FOLDER / "studies/t5_objectives.py").settings(arguments)
    config.name = "bart_noises"
    config.title = "BART's noises"
    config.question = "Which noise helps an encoder-decoder most to translate with few pairs?"
    for noise in NOISES:
        config.variants[noise] = (f"format_options.noise={noise}",)
    config.stages.main = dict(
        systems=("bart",), shapes=(shape,), variants=("default", *NOISES), finetune="all"
    )
    config.stage_order = ("main",)
    others = [noise for noise in NOISES if noise != "infilling"]
    config.hypotheses = tuple((f"infilling > {noise}", config.primary) for noise in others)
    return config
