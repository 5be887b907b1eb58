"""The tokenizer as a factor: characters, bytes, word pieces and words, at equal bytes of text.

  python -m scalelab.study run --config=configs/studies/tokenizers.py:seeds=3 --workdir=DIR

GPT-2 and an LSTM read the quickstart's language. A step reads 32 examples of about 160 bytes for
every tokenizer, so equal steps are equal bytes; tokens and FLOPs differ, and a table of N pieces
has other parameters. Scored by bits per byte of the validation text, which compare across
tokenizers (Gao et al. 2020, 3.1).

| kind | pieces | bytes a token | unknown | length |
|---|--:|--:|--:|--:|
| char | 26 | 1.00 | 0 | 160 |
| bytebpe | 400 | 2.66 | 0 | 60 |
| wordpiece | 300 | 3.31 | 0 | 48 |
| word | 405 | 4.86 | 0 | 33 |
| word | 300 | 4.86 | 4.8% | 33 |

The language has 403 words and punctuation marks. The last arm shows what unknown words do: their
letters are not predicted, so its bits per byte are a lower bound, and no hypothesis is about it.
"""

import ml_collections
from ml_collections import config_dict

from scalelab.config import files

STEPS = 300
LENGTHS = {"char": 160, "bytebpe": 60, "wordpiece": 48, "word": 33}  # tokens of about 160 bytes
ARMS = (("char", 26), ("bytebpe", 400), ("wordpiece", 300), ("word", 405), ("word", 300))
# Longer units need no spelling, and make the context of a prediction longer in bytes.
PAIRS = (("wordpiece", "char"), ("wordpiece", "bytebpe"), ("word", "wordpiece"), ("word", "char"))


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`, `tokens`."""
    if "tokens=" in arguments:
        raise ValueError("tokenizers has one budget, in bytes of text: leave tokens= out")
    family = files.load(files.FOLDER / "studies/family.py")
    config, shape, _ = family.at_synthetic(arguments)
    config.name = "tokenizers"
    config.title = "Characters, bytes, word pieces or words"
    config.question = "Which tokenizer predicts a text best after equal bytes of it?"
    config.primary, config.matched = "bits_per_byte", "steps"
    pretrain, optim = config.pretrain, config.pretrain.optim
    optim.total_tokens = config_dict.placeholder(float)
    optim.warmup_tokens = config_dict.placeholder(float)
    optim.total_steps, optim.warmup_steps = STEPS, STEPS // 10
    pretrain.eval.every_steps, pretrain.eval.num_examples = STEPS // 3, 1000
    pretrain.model.max_len, pretrain.long.example_rate = max(LENGTHS.values()), 0.0
    names = [f"{kind}_{size}" for kind, size in ARMS]
    for name, (kind, size) in zip(names, ARMS, strict=True):
        tokenizer = f"tokenizer.kind={kind}", f"tokenizer.vocab_size={size}"
        config.variants[name] = (*tokenizer, f"short.max_len={LENGTHS[kind]}")
    config.stages.main = dict(
        systems=("gpt2", "lstm"), shapes=(shape,), variants=tuple(names), finetune="all"
    )
    config.stage_order, config.evaluations = ("main",), ()
    config.tables, config.figures = ("loss",), ("loss_by_flops",)
    arm = dict(zip(LENGTHS, names, strict=False))
    config.hypotheses = tuple(
        (f"{system} {arm[a]} < {system} {arm[b]}", "bits_per_byte")
        for system in ("gpt2", "lstm")
        for a, b in PAIRS
    )
    return config
