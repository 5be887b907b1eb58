"""Language models before the Transformer, and two Transformers, at three widths.

  python -m scalelab.study run --workdir=runs/language_model_sizes \
    --config=configs/studies/language_model_sizes.py:seeds=3

Text, budget and scores are those of before_transformers.py, which has one width, and so are the
systems but for ELMo. Each has its best learning rate of that study and the next lower one; n-grams
have none, and one width. A hypothesis compares two systems at one width, each at the better rate.
The figure `loss_by_parameters` draws bits per byte against the parameters.
"""

import ml_collections

from scalelab.config import files

SHAPES = ("2x32x2", "2x64x2", "2x128x2")
RATES = (3e-3, 1e-2, 3e-2)
STAGES = {  # name -> systems and their two rates
    "before": (("ffnn", "lstm", "gcnn"), slice(1, 3)),
    "attention": (("gpt2", "transformer_xl"), slice(0, 2)),
}
PAIRS = (("gpt2", "lstm"), ("gpt2", "gcnn"), ("transformer_xl", "lstm"))


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    before = files.load(files.FOLDER / "studies/before_transformers.py")
    config = before.get_config(arguments)
    config.name = "language_model_sizes"
    config.title = "Language models before the Transformer, at three widths"
    config.question = "Does attention gain more from parameters than states and convolutions do?"
    config.variants, config.stages = {"default": ()}, {}
    names = files.load(files.FOLDER / "study.py").grid(config, learning_rate=RATES)
    config.stages.counts = dict(
        systems=("ngram",), shapes=SHAPES[1:2], variants=("default",), finetune="all"
    )
    for name, (systems, rates) in STAGES.items():
        config.stages[name] = dict(
            systems=systems, shapes=SHAPES, variants=names[rates], finetune="all"
        )
    config.stage_order = tuple(config.stages)
    config.figures = ("loss_by_parameters", "loss_by_time")
    config.hypotheses = tuple(
        (f"{a} {shape} best(learning_rate) < {b} {shape} best(learning_rate)", "bits_per_byte")
        for shape in SHAPES
        for a, b in PAIRS
    )
    return config
