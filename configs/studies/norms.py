"""Pre-norm or post-norm in a deep, narrow model, at three learning rates.

  python -m scalelab.study run --config=configs/studies/norms.py:seeds=5 --workdir=DIR

GPT (post-norm) and GPT-2 (pre-norm, a last norm, residual weights scaled at initialization) with
twelve layers of width 64, both with GPT's tokenizer rules for equal vocabularies. Radford et al.
2019, 2.3, moved the norms; Xiong et al. 2020, "On Layer Normalization in the Transformer
Architecture", 3, show why post-norm needs low rates or a long warm-up. Scored by minimal pairs of
the quickstart's language, 0.6 M tokens; no data are needed.
"""

import ml_collections

from scalelab.config import files

RATES = (1e-3, 3e-3, 1e-2)


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family, study = (files.load(files.FOLDER / name) for name in ("studies/family.py", "study.py"))
    config, _, _ = family.at_synthetic(arguments, tokens="6e5")
    config.name = "norms"
    config.title = "Pre-norm or post-norm in twelve layers"
    config.question = "Which of both still learns at a high learning rate?"
    config.fields += ("tokenizer.kind=bytebpe", "tokenizer.lowercase=True")
    names = study.grid(config, learning_rate=RATES)
    config.stages.main = dict(
        systems=("gpt", "gpt2"), shapes=("2x64x12",), variants=names, finetune="all"
    )
    config.stage_order = ("main",)
    config.tables, config.figures = ("evaluations", "loss"), ("loss_by_tokens",)
    config.hypotheses = tuple(
        (f"gpt2 learning_rate={rate:g} > gpt learning_rate={rate:g}", "pairs") for rate in RATES
    ) + (("gpt2 best(learning_rate) > gpt best(learning_rate)", "pairs"),)
    return config
