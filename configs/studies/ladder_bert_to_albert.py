"""From BERT to ALBERT, one change a step, at equal tokens; then at equal parameters.

  python -m scalelab.study run --workdir=runs/ladder_bert_to_albert \
    --config=configs/studies/ladder_bert_to_albert.py:corpus=wikitext:DIR,data=GLUE,evaluations=EVALUATIONS

| step | second text is | token table | layers share |
|---|---|---|---|
| bert | next, or from another document | V x H | nothing |
| bert, sop | next, or before: sentence order | V x H | nothing |
| albert, factorized | as above | V x E, E x H | nothing |
| albert | as above | V x E, E x H | all parameters |
| albert, wider | as above | V x E, E x H | all; layers have as many parameters as bert's |

E is a quarter of H. Steps at one shape have equal tokens; the narrow token table saves a fifth of
the FLOPs at scale nano. The wider model has as many FLOPs in all as bert. All read BERT's word
pieces (ALBERT's own tokenizer is a unigram model) with ALBERT's model (Lan et al. 2020, "ALBERT",
3.1). Scale, budget, recipe and arguments are those of configs/studies/family.py.
"""

import ml_collections

from scalelab.config import files
from scalelab.config.pretraining import Shape


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    family = files.load(files.FOLDER / "studies/family.py")
    config, shape, flops = family.ladder(arguments)
    config.name = "ladder_bert_to_albert"
    config.title = "From BERT to ALBERT"
    config.question = "Which of ALBERT's changes help a small encoder?"
    config.fields += ("tokenizer.kind=wordpiece",)
    heads, width, layers = Shape.parse(shape)
    narrow = f"system_options.embed_width={width // 4}"
    config.system_fields.albert = (narrow,)
    config.variants.sop = ("objective=mlm+sop", "data.format=sentence_order")
    config.variants.factorized = ("system_options.shared=none",)
    config.variants.wider = family.equal_flops(config, flops)
    wide = f"{heads}x{round(width * layers**0.5 / heads) * heads}x{layers}"  # N grows as L H^2
    family.add_stages(
        config, shape, {"bert": ("default", "sop"), "albert": ("factorized", "default")}
    )
    config.stages.wider = dict(
        systems=("albert",), shapes=(wide,), variants=("wider",), finetune="all"
    )
    config.stage_order += ("wider",)
    config.allow = ("matched",)
    config.figures = ("loss_by_tokens",)
    config.claims = family.claims(
        config,
        "bert sop > bert default",
        "albert factorized > bert sop",
        f"albert {shape} default > albert {shape} factorized",
        f"albert {wide} wider > bert {shape} sop",
    )
    return config
