"""Seven sizes of GPT-2 at equal tokens, for a law of the loss in the size.

  python -m scalelab.study run --config=configs/studies/sizes.py:seeds=3 --workdir=DIR
  python -m scalelab.lab.laws DIR --x=n_model

Width alone grows, from 16 to 128. `laws` fits E + A N^-a to the smaller sizes and predicts the
largest, which it holds out (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", 3.2).
The language of the quickstart, 3 M tokens; no data are needed.
"""

import ml_collections

from scalelab.config import files

SHAPES = tuple(f"2x{width}x2" for width in (16, 24, 32, 48, 64, 96, 128))


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family = files.load(files.FOLDER / "studies/family.py")
    config, _, _ = family.at_synthetic(arguments)
    config.name = "sizes"
    config.title = "A law of the loss in the size"
    config.question = "Does a law fitted to small models predict the loss of a larger one?"
    config.evaluations, config.evaluation_data = (), None
    config.stages.main = dict(
        systems=("gpt2",), shapes=SHAPES, variants=("default",), finetune="all"
    )
    config.stage_order = ("main",)
    config.tables, config.figures = ("loss",), ("loss_by_tokens",)
    config.hypotheses = (("2x128x2 < 2x64x2", "loss"), ("2x64x2 < 2x32x2", "loss"))
    return config
