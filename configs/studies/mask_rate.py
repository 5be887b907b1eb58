"""How much of a text to mask, for single tokens and for spans, at equal tokens.

  python -m scalelab.study run --workdir=runs/mask_rate \
    --config=configs/studies/mask_rate.py:corpus=wikitext:DIR,data=GLUE,evaluations=EVALUATIONS

BERT's model on sentences, without NSP: 15, 20, 30, 40 and 50% of the tokens are hidden, one by one
(`mlm`) or in spans of whole words (`span_mlm`). Wettig et al. 2023, "Should You Mask 15% in Masked
Language Modeling?", find 40% better than 15% for large models and less so for smaller ones.

Losses at two rates are losses of two tasks, so hypotheses are about scores. Scale, budget, recipe
and arguments are those of configs/studies/family.py.
"""

import ml_collections

from scalelab.config import files

RATES = (0.15, 0.2, 0.3, 0.4, 0.5)


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    family, study = (files.load(files.FOLDER / name) for name in ("studies/family.py", "study.py"))
    config, shape, _ = family.ladder(arguments)
    config.name = "mask_rate"
    config.title = "How much to mask"
    config.question = "Which mask rate is best, and is it another one for spans?"
    config.fields += ("objective=mlm", "data.format=doc_sentences")
    config.figures = ("loss_by_tokens",)
    names = study.grid(config, objective=("mlm", "span_mlm"), mask_rate=RATES)
    config.stages.main = dict(systems=("bert",), shapes=(shape,), variants=names, finetune="all")
    config.stage_order = ("main",)
    lines = [f"objective={x} mask_rate={rate} > mask_rate={RATES[0]}"
             for x in ("mlm", "span_mlm") for rate in RATES[1:]]  # fmt: skip
    lines += [f"objective=span_mlm mask_rate={rate} > objective=mlm" for rate in RATES]
    config.hypotheses = family.hypotheses(config, *lines)
    return config
