"""The tokenizer as a factor: characters, bytes, word pieces and words, at equal bytes of text.

  python -m scalelab.study run --config=configs/studies/tokenizers.py:seeds=3 --workdir=DIR

GPT-2 and an LSTM read the quickstart's language in segments of 64 tokens. A step reads about 4.6 kB
of text with every tokenizer: equal steps are equal bytes, and tokens and FLOPs differ. The LSTM
carries its state from segment to segment, so that it sees a document from its beginning with every
tokenizer. GPT-2 sees a segment, so that shorter tokens have a shorter context.

| tokenizer | pieces | bytes a token | bytes a segment | segments a step |
|---|--:|--:|--:|--:|
| char | 26 | 1.00 | 58 | 80 |
| bytebpe | 400 | 2.65 | 133 | 35 |
| wordpiece | 300 | 3.30 | 157 | 30 |
| word | 405 | 4.86 | 220 | 21 |

`word` has all 403 words and punctuation marks of the language, so no token is unknown. Scored by
bits per byte of validation (Gao et al. 2020, 3.1), which compare between tokenizers. Segments have
equal tokens, not equal bytes, so a difference contains that of the context.
"""

import ml_collections
from ml_collections import config_dict

from scalelab.config import files

STEPS = 300
ARMS = {"char": (26, 80), "bytebpe": (400, 35), "wordpiece": (300, 30), "word": (405, 21)}
# The longer unit first: it needs no spelling, and a segment of it holds more text.
PAIRS = (("wordpiece", "char"), ("wordpiece", "bytebpe"), ("word", "wordpiece"), ("word", "char"))


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`, `tokens`."""
    if "tokens=" in arguments:
        raise ValueError("tokenizers has one budget, in bytes of text: leave tokens= out")
    config, shape, _ = files.load(files.FOLDER / "studies/family.py").at_synthetic(arguments)
    config.name = "tokenizers"
    config.title = "Characters, bytes, word pieces or words"
    config.question = "Which tokenizer predicts a text best after equal bytes of it?"
    config.primary, config.matched = "bits_per_byte", "steps"
    pretrain, optim = config.pretrain, config.pretrain.optim
    optim.total_tokens = config_dict.placeholder(float)
    optim.warmup_tokens = config_dict.placeholder(float)
    optim.total_steps, optim.warmup_steps = STEPS, STEPS // 10
    pretrain.eval.every_steps, pretrain.eval.num_examples = STEPS // 2, 1000
    pretrain.short.max_len, pretrain.long.example_rate = 64, 0.0
    config.fields += ("data.format=segments",)
    config.system_fields.lstm = ("optim.learning_rate=1e-2",)  # at 3e-3 it stays near the unigrams
    for kind, (size, rows) in ARMS.items():
        tokenizer = f"tokenizer.kind={kind}", f"tokenizer.vocab_size={size}"
        config.variants[kind] = (*tokenizer, f"short.batch_size={rows}")
    config.stages.main = dict(
        systems=("gpt2", "lstm"), shapes=(shape,), variants=tuple(ARMS), finetune="all"
    )
    config.stage_order, config.evaluations = ("main",), ()
    config.tables, config.figures = ("loss",), ("loss_by_flops",)
    config.hypotheses = tuple(
        (f"{system} {a} < {system} {b}", "bits_per_byte")
        for system in ("gpt2", "lstm")
        for a, b in PAIRS
    )
    return config
