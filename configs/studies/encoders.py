"""Compares BERT's, ALBERT's and ELECTRA's ideas at equal FLOPs: one change at a time.

  python -m scalelab.study run --workdir=runs/encoders \
    --config=configs/studies/encoders.py:corpus=wikitext:DIR,data=GLUE,evaluations=EVALUATIONS

| run | objective | format | what differs |
|---|---|---|---|
| bert | MLM + NSP | segment pairs | the base config of this study: 20 M tokens |
| bert, sop | MLM + SOP | sentence order | the second text: next or other, in order or swapped |
| albert 2x128x2 | MLM + SOP | sentence order | layers share parameters; 3% more FLOPs a token |
| albert 2x172x2 | MLM + SOP | sentence order | as many parameters as bert; fewer tokens |
| electra | MLM + 50 RTD | sentences | a generator of a quarter of the width |
| electra, masked_only | MLM + 50 RTD | sentences | "ELECTRA 15%": loss at the masked positions |
| electra, replace_mlm | MLM + RTD | sentences | predicts tokens at the masked positions |
| electra, all_tokens | MLM + RTD | sentences | predicts tokens at all positions |

All have BERT's tokenizer, no dropout, one learning rate, and as many FLOPs as bert; what all_tokens
computes again in its backward pass does not count. A run takes 26 to 28 minutes of a core, and its
scores up to ten more.

Lengths are a quarter of the protocol's: 32 tokens, then 128. With 128 tokens from the start, masked
models of this size stay near the unigrams for 20 M tokens, and fine-tuned they are no better than
models from scratch (LOG.md).
"""

import ml_collections
from ml_collections import config_dict

from scalelab.config import files

FLOPS = 7.44e13  # BERT 2x128x2 with 20 M tokens, V = 8,192
SHAPES = ("2x128x2",)
TOKENS = "objective=mlm+rtd"  # a loss over tokens needs no weight of 50


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/study.py but `scale`."""
    study = files.load(files.FOLDER / "study.py")
    if "scale" in study.parse(arguments):
        raise ValueError("this study has one scale; --config.pretrain.optim.total_flops sets it")
    config = study.get_config(",".join(filter(None, ["scale=medium", arguments])))
    config.name = "encoders"
    config.title = "BERT, ALBERT and ELECTRA at equal FLOPs"
    config.question = "Which of ALBERT's and ELECTRA's changes help a small encoder?"
    config.scale = "encoders"
    config.matched = "flops"
    pretrain, optim = config.pretrain, config.pretrain.optim
    pretrain.short.max_len, pretrain.long.max_len, pretrain.model.max_len = 32, 128, 128
    pretrain.eval.every_steps = 2000
    optim.total_tokens = config_dict.placeholder(float)
    optim.warmup_tokens = config_dict.placeholder(float)
    optim.total_flops, optim.warmup_flops = FLOPS, FLOPS / 20
    config.fields += ("model.dropout_rate=0.0", "tokenizer.kind=wordpiece")
    config.variants.sop = ("objective=mlm+sop", "data.format=sentence_order")
    config.variants.masked_only = ("objective_options.positions=masked",)
    replace = "objective_options.target=token"
    config.variants.replace_mlm = (TOKENS, "objective_options.positions=masked", replace)
    config.variants.all_tokens = (TOKENS, replace)
    arms = {
        "bert": (("bert",), SHAPES, ("default", "sop")),
        "albert": (("albert",), (*SHAPES, "2x172x2"), ("default",)),
        "electra": (
            ("electra",), SHAPES, ("default", "masked_only", "replace_mlm", "all_tokens"),
        ),
    }  # fmt: skip
    for name, (systems, shapes, variants) in arms.items():
        config.stages[name] = dict(
            systems=systems, shapes=shapes, variants=variants, finetune="all"
        )
    config.stage_order = tuple(arms)
    config.finetune.tasks = ("sst2", "mrpc", "rte", "qnli", "cola")
    config.finetune.seeds = 1
    if config.evaluation_data is not None:
        config.evaluations, config.evaluation_fields = ("blimp",), ("blimp.per_group=200",)
    config.tables = ("scores", "loss")
    config.figures = ("loss_by_tokens",)
    return config
