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
Scales, text, pairs, recipe and scores are those of t5_objectives.py; the FLOPs are those of t5
2x64x2, at nano of 2x128x2, on `denoise` with the tokens of that study.

In the paper the models with a source predict the end of a text from its beginning. Here that style,
`prefix`, would spend half of its FLOPs on padding, and t5_objectives.py finds it below `lm`. The
paper's half model has half the FLOPs, this one more steps.
"""

import ml_collections

from scalelab.config import files

FLOPS = {"synthetic": 1.5e12, "nano": 2e14}
OBJECTIVES = {"denoise": "bert_style", "lm": "lm"}
MORE = {"shared": "system_options.layers=shared", "causal": "system_options.mask=causal"}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    family, objectives = (
        files.load(files.FOLDER / f"studies/{name}.py") for name in ("family", "t5_objectives")
    )
    config, shape = objectives.settings(arguments)
    config.name = "t5_architectures"
    config.title = "T5's architectures"
    config.question = "Which architecture learns to translate at equal FLOPs, by which objective?"
    config.matched, config.allow = "flops", ("matched",)
    config.fields += ("data.format=denoising", *family.equal_flops(config, FLOPS[config.scale]))
    for name, style in OBJECTIVES.items():
        fields = (f"format_options.style={style}",)
        config.variants[name] = fields
        for more, field in MORE.items():
            config.variants[f"{more}_{name}"] = (*fields, field)
    own, half_shape = tuple(OBJECTIVES), f"{shape.rpartition('x')[0]}x1"
    stages = {
        "t5": ("t5", shape, (*own, *(f"shared_{name}" for name in own))),
        "half": ("t5", half_shape, own),
        "decoder_only": ("prefix_lm", shape, (*own, *(f"causal_{name}" for name in own))),
    }
    for name, (system, size, variants) in stages.items():
        config.stages[name] = dict(
            systems=(system,), shapes=(size,), variants=variants, finetune="all"
        )
    config.stage_order = tuple(stages)
    t5, half, prefix = f"t5 {shape} ", f"t5 {half_shape} ", f"prefix_lm {shape} "
    shared, causal = f"{t5}shared_", f"{prefix}causal_"
    lines = [f"{arm}denoise > {arm}lm" for arm in (t5, shared, half, prefix, causal)]
    lines += [f"{t5}denoise > {arm}denoise" for arm in (half, prefix, causal)]
    lines += [f"{prefix}denoise > {causal}denoise"]
    alike = f"{t5}denoise ~ {shared}denoise"
    primary = config.primary
    config.hypotheses = (*((line, primary) for line in lines), (alike, primary, 5))
    return config
