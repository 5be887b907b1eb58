"""Six ways to pre-train an encoder-decoder, and none: which one helps to translate?

  python -m scalelab.study run --config=configs/studies/seq2seq_pretraining.py:seeds=3 --workdir=DIR

The Transformer, T5, BART, MASS, PEGASUS and PALM, each with its own model and format, at equal
tokens, and each from random weights. Text, pairs, recipe and score are those of t5_objectives.py.
"""

import ml_collections

from scalelab.config import files

SYSTEMS = ("transformer", "t5", "bart", "mass", "pegasus", "palm")


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    config, shape = files.load(files.FOLDER / "studies/t5_objectives.py").settings(arguments)
    config.name = "seq2seq_pretraining"
    config.title = "Pre-training for translation"
    config.question = "Which pre-trained encoder-decoder translates best after few pairs?"
    config.finetune.scratch, config.tables = True, ("tasks", "scratch", "loss")
    config.stages.main = dict(
        systems=SYSTEMS, shapes=(shape,), variants=("default",), finetune="all"
    )
    config.stage_order = ("main",)
    others = [system for system in SYSTEMS if system != "bart"]
    config.hypotheses = tuple((f"bart > {system}", "cipher") for system in others)
    return config
