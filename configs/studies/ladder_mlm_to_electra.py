"""From MLM to ELECTRA, one change a step, at equal FLOPs.

  python -m scalelab.study run --workdir=runs/ladder_mlm_to_electra \
    --config=configs/studies/ladder_mlm_to_electra.py:corpus=wikitext:DIR,data=GLUE,evaluations=EVALUATIONS

| step | input of the model | predicts | at |
|---|---|---|---|
| bert, mlm | [MASK] | tokens | hidden positions |
| electra, replace_mlm | a generator's tokens | tokens | hidden positions |
| electra, all_tokens | a generator's tokens | tokens, or copies | all positions |
| electra, masked_only | a generator's tokens | replaced or not | hidden positions |
| electra | a generator's tokens | replaced or not | all positions |

These are the steps of Clark et al. 2020, "ELECTRA", 3.4, who call masked_only "ELECTRA 15%".
Minimal pairs and BLiMP score replace_mlm by its generator, because the model itself never reads
[MASK]. So no hypothesis compares replace_mlm on these two scores. Scale, budget, recipe and
arguments are those of configs/studies/family.py.
"""

import ml_collections

from scalelab.config import files


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    family = files.load(files.FOLDER / "studies/family.py")
    config, shape, flops = family.ladder(arguments)
    config.name = "ladder_mlm_to_electra"
    config.title = "From MLM to ELECTRA"
    config.question = "Where does ELECTRA's advantage come from?"
    config.matched = "flops"
    config.fields += ("data.format=doc_sentences", *family.equal_flops(config, flops))
    tokens = "objective=mlm+rtd", "objective_options.target=token"  # needs no weight of 50
    masked = "objective_options.positions=masked"
    config.variants.mlm = ("objective=mlm",)
    config.variants.replace_mlm = (*tokens, masked)
    config.variants.all_tokens = tokens
    config.variants.masked_only = (masked,)
    arms = {
        "bert": ("mlm",), "electra": ("replace_mlm", "all_tokens", "masked_only", "default"),
    }  # fmt: skip
    family.add_stages(config, shape, arms)
    config.figures = ("loss_by_tokens",)
    lines = family.hypotheses(
        config,
        "electra replace_mlm > bert mlm",
        "electra all_tokens > electra replace_mlm",
        "electra default > electra all_tokens",
        "electra default > electra masked_only",
        "electra default > bert mlm",
    )
    of_sentences = ("pairs", "blimp")
    config.hypotheses = tuple(
        c for c in lines if "replace_mlm" not in c[0] or c[1] not in of_sentences
    )
    return config
