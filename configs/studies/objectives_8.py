"""Eight objectives on BERT's model, at equal tokens and at equal FLOPs.

  python -m scalelab.study run --workdir=runs/objectives_8 \
    --config=configs/studies/objectives_8.py:corpus=wikitext:DIR,data=GLUE,evaluations=EVALUATIONS

| run | objective | format |
|---|---|---|
| bert | MLM + NSP | segment pairs |
| bert, sop | MLM + SOP | sentence order |
| bert, mlm | MLM | sentences of one document |
| bert, span | MLM of spans | sentences |
| spanbert | MLM of spans + span boundary objective | sentences |
| electra | replaced-token detection, with its generator's MLM | sentences |
| unilm | MLM under four attention masks | sentences |
| bert_ltr | CLM: each token sees its left | sentences |

All have BERT's layers and word pieces. Equal FLOPs are those of bert. Objectives whose FLOPs a
token differ by more than 5% from bert's run again at equal FLOPs. Scale, budget, recipe and
arguments are those of configs/studies/family.py.
"""

import ml_collections

from scalelab.config import files


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    family = files.load(files.FOLDER / "studies/family.py")
    config, shape, flops = family.ladder(arguments)
    config.name = "objectives_8"
    config.title = "Eight objectives on one model"
    config.question = "Which objective is best at what, at equal tokens and at equal FLOPs?"
    config.system_fields.bert_ltr = ("data.format=doc_sentences",)
    config.variants.sop = ("objective=mlm+sop", "data.format=sentence_order")
    config.variants.mlm = ("objective=mlm", "data.format=doc_sentences")
    config.variants.span = ("objective=span_mlm", "data.format=doc_sentences")
    config.variants.equal_flops = family.equal_flops(config, flops)
    others = "electra", "bert_ltr"
    others += ("spanbert",) * (config.scale in ("nano", "synthetic"))
    arms = {
        "bert": (("bert",), ("default", "sop", "mlm", "span")),
        "others": (("spanbert", "electra", "unilm", "bert_ltr"), ("default",)),
        "flops": (others, ("equal_flops",)),
    }
    for name, (systems, variants) in arms.items():
        config.stages[name] = dict(
            systems=systems, shapes=(shape,), variants=variants, finetune="all"
        )
    config.stage_order = tuple(arms)
    config.allow = ("matched",)
    config.figures = ("loss_by_tokens", "loss_by_flops")
    lines = [f"bert {variant} > bert mlm" for variant in ("default", "sop", "span")]
    lines += [f"{other} default > bert mlm" for other in arms["others"][0]]
    lines += [f"{other} equal_flops > bert mlm" for other in others]
    config.hypotheses = family.hypotheses(config, *lines, "spanbert default > bert span")
    return config
