"""A BERT-style system on the built-in corpus: no download, minutes on two cores.

  python -m scalelab.train --config=configs/quickstart.py --workdir=runs/quickstart

The vocabulary is smaller and the learning rate higher than the protocol's, so that the loss falls
within 600 steps, whatever the budget.
"""

import ml_collections

from scalelab.config import files


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns configs/pretrain.py's BERT with a vocabulary and a budget for a laptop."""
    pretrain = files.load(files.FOLDER / "pretrain.py")
    defaults = "system=bert,shape=2x128x2,corpus=builtin" + (",steps=600" if not arguments else "")
    config = pretrain.get_config(f"{defaults},{arguments}")
    config.tokenizer.vocab_size = 8000
    config.tokenizer.lowercase = True
    config.short.batch_size, config.long.batch_size = 32, 8
    config.optim.learning_rate = 1e-3
    config.eval.num_examples = 500
    config.machine.checkpoint_every_steps = 200
    return config
