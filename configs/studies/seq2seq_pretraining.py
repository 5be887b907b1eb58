"""Six ways to pre-train an encoder-decoder, and none: which one helps to translate?

  python -m scalelab.study run --config=configs/studies/seq2seq_pretraining.py:seeds=3 --workdir=DIR

The Transformer, T5, BART, MASS, PEGASUS and PALM, each with its own model and format, at equal
tokens, and each from random weights. Scales, text, pairs, recipe and scores are those of
t5_objectives.py. At nano each is fine-tuned three times: on 1,000 examples, on 5,000, and on all.
"""

import ml_collections

from scalelab.config import files

SYSTEMS = ("transformer", "t5", "bart", "mass", "pegasus", "palm")
FEWER = (1000, 5000)  # examples


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    config, shape = files.load(files.FOLDER / "studies/t5_objectives.py").settings(arguments)
    config.name = "seq2seq_pretraining"
    config.title = "Pre-training for translation"
    config.question = "Which pre-trained encoder-decoder translates best after few pairs?"
    config.finetune.scratch, config.tables = True, ("tasks", "scratch", "loss")
    arms, ends = ("default",), ("",)
    if config.scale == "nano":  # the synthetic text has 1,000 pairs
        for examples in FEWER:
            config.variants[f"few_{examples}"] = (f"finetune.max_train_examples={examples}",)
        arms += tuple(f"few_{examples}" for examples in FEWER)
        ends = tuple(f" {arm}" for arm in arms)
    config.stages.main = dict(systems=SYSTEMS, shapes=(shape,), variants=arms, finetune="all")
    config.stage_order = ("main",)
    others = [system for system in SYSTEMS if system != "bart"]
    config.hypotheses = tuple(
        (f"bart{end} > {system}{end}", config.primary) for end in ends for system in others
    )
    return config
