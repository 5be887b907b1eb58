"""T5's architectures at equal FLOPs: two objectives, five ways to read a source and a target.

  python -m scalelab.study run --config=configs/studies/t5_architectures.py:seeds=3 --workdir=DIR

| arm | layers | parameters of layers | what a token of the source sees |
|---|---|---|---|
| t5 2x64x2 | 2 + 2 | 7/3 | the source |
| t5 2x64x2, shared | 2 + 2, each twice | 4/3 | the source |
| t5 2x64x1 | 1 + 1 | 7/6 | the source |
| prefix_lm | 2 | 1 | the source |
| prefix_lm, causal | 2 | 1 | its left |

Each arm has the objective `denoise`, bert_style of t5_objectives.py, and `lm`, left to right
without a source. Raffel et al. 2020, 3.2.4 and table 2, find that denoising is always better, that
the encoder-decoder is best and hardly loses by shared layers, and that language models are worse.
Text, pairs, recipe and scores are those of t5_objectives.py; 1.5e12 FLOPs are its 1.5 M tokens.

In the paper the models with a source predict the end of a text from its beginning. Here that style,
`prefix`, would spend half of its FLOPs on padding, and t5_objectives.py finds it below `lm`. The
paper's half model has half the FLOPs, this one more steps.
"""

import ml_collections

from scalelab.config import files

FLOPS = 1.5e12
OBJECTIVES = {"denoise": "bert_style", "lm": "lm"}
MORE = {"shared": "system_options.layers=shared", "causal": "system_options.mask=causal"}
T5, SHARED, HALF = "t5 2x64x2 {}", "t5 2x64x2 shared_{}", "t5 2x64x1 {}"
PREFIX, CAUSAL = "prefix_lm 2x64x2 {}", "prefix_lm 2x64x2 causal_{}"


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family, objectives = (
        files.load(files.FOLDER / f"studies/{name}.py") for name in ("family", "t5_objectives")
    )
    config, shape = objectives.settings(arguments)
    config.name = "t5_architectures"
    config.title = "T5's architectures"
    config.question = "Which architecture learns to translate at equal FLOPs, by which objective?"
    config.matched, config.allow = "flops", ("matched",)
    config.fields += ("data.format=denoising", *family.equal_flops(config, FLOPS))
    for name, style in OBJECTIVES.items():
        fields = (f"format_options.style={style}",)
        config.variants[name] = fields
        for more, field in MORE.items():
            config.variants[f"{more}_{name}"] = (*fields, field)
    own = tuple(OBJECTIVES)
    stages = {
        "t5": ("t5", shape, (*own, *(f"shared_{name}" for name in own))),
        "half": ("t5", HALF.split()[1], own),
        "decoder_only": ("prefix_lm", shape, (*own, *(f"causal_{name}" for name in own))),
    }
    for name, (system, size, variants) in stages.items():
        config.stages[name] = dict(
            systems=(system,), shapes=(size,), variants=variants, finetune="all"
        )
    config.stage_order = tuple(stages)
    arms = T5, SHARED, HALF, PREFIX, CAUSAL
    lines = [f"{arm.format('denoise')} > {arm.format('lm')}" for arm in arms]
    lines += [f"{T5} > {arm}".replace("{}", "denoise") for arm in (HALF, PREFIX, CAUSAL)]
    lines += [f"{PREFIX} > {CAUSAL}".replace("{}", "denoise")]
    alike = f"{T5} ~ {SHARED}".replace("{}", "denoise")
    config.hypotheses = (*((line, "cipher") for line in lines), (alike, "cipher", 5))
    return config
