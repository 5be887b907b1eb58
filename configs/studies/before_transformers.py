"""Language models before the Transformer, and two Transformers, each at its best learning rate.

  python -m scalelab.study run --workdir=runs/before_transformers \
    --config=configs/studies/before_transformers.py:seeds=5

N-grams with Kneser-Ney smoothing, a feed-forward model of the last four tokens, an LSTM that
carries its state from segment to segment, ELMo's two LSTMs, of which the forward one is scored,
gated convolutions, GPT-2, and Transformer-XL with its memory. N-grams count the whole text. The
others have equal tokens, one width and two layers. Parameters per layer differ: 8 D^2 (LSTM,
convolutions), 16 D^2 (ELMo), 12 D^2 (GPT-2), 13 D^2 (Transformer-XL). The feed-forward model has
6 D^2 in all.
A hypothesis compares two arms, each at the rate with its lowest validation loss, as in
tuned_family.py; counts have no rate. Scored by bits per byte and minimal pairs of the quickstart's
language, 1.5 M tokens; no data are needed. All train in one phase, on examples of at most 64
tokens, so that their bits per byte compare. The LSTM and Transformer-XL also remember earlier
segments. They are validated on other parts of the validation text, which no interval contains.
ELMo's loss is that of both directions, so it is compared by minimal pairs alone.
Real text may need larger tables of n-grams:

  --config.system_fields.ngram="('system_options.max_ngrams=2000000',)"
"""

import ml_collections

from scalelab.config import files

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
HIGH = ("ffnn", "lstm", "elmo", "gcnn", "gpt2")  # without the lowest rate: an LSTM learns slowly
BEST = " best(learning_rate)"
PAIRS = (
    ("lstm", "ffnn"),
    ("gpt2", "lstm"),
    ("gpt2", "gcnn"),
    ("transformer_xl", "lstm"),
    ("lstm", "elmo"),
    ("ffnn", "ngram"),
    ("gpt2", "ngram"),
    ("transformer_xl", "gpt2"),
)


def side(system: str) -> str:
    """Returns the arm of a system in a hypothesis: at its best rate, but counts have none."""
    return system + BEST * (system != "ngram")


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family, study = (files.load(files.FOLDER / name) for name in ("studies/family.py", "study.py"))
    config, shape, _ = family.at_synthetic(arguments, tokens="1.5e6")
    config.name = "before_transformers"
    config.title = "Language models before the Transformer"
    config.question = "Does attention learn a small language better than states and convolutions?"
    config.primary = "bits_per_byte"
    config.fields += ("short.max_len=64", "short.batch_size=16", "long.example_rate=0.0")
    config.system_fields.ngram = ()  # so that a flag can set them
    names = study.grid(config, learning_rate=RATES)
    stages = {
        "counts": (("ngram",), ("default",)),
        "main": (HIGH, names[1:]),
        "memory": (("transformer_xl",), names[:-1]),
    }
    for name, (systems, variants) in stages.items():
        config.stages[name] = dict(
            systems=systems, shapes=(shape,), variants=variants, finetune="all"
        )
    config.stage_order = tuple(stages)
    config.tables = ("evaluations", "loss")
    config.figures = ("loss_by_tokens", "loss_by_time", "loss_by_flops")
    lines = [(f"{side(a)} > {side(b)}", "pairs") for a, b in PAIRS]
    bits = [pair for pair in PAIRS if "elmo" not in pair]
    lines += [(f"{side(a)} < {side(b)}", "bits_per_byte") for a, b in bits]
    config.hypotheses = tuple(lines)
    return config
