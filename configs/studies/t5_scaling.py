"""Four times the compute for a small T5: more steps, larger batches, or a larger model?

  python -m scalelab.study run --config=configs/studies/t5_scaling.py:seeds=3 --workdir=DIR

| arm | shape | FLOPs | what has grown |
|---|---|---|---|
| 2x48x2 base | 2x48x2 | 1 | |
| 2x48x2 steps | 2x48x2 | 4 | steps |
| 2x48x2 batch | 2x48x2 | 4 | examples of a step |
| 2x48x4 steps | 2x48x4 | 4 | layers by 2, steps by about 2 |
| 2x96x2 steps | 2x96x2 | 4 | width by 2, so the layers have four times the parameters |

Raffel et al. 2020, 3.6 and table 13, find that each helps, and a larger model slightly more than
more steps. Their ensembles are not part of this study; `scalelab.eval.ensemble` makes an ensemble
of fine-tunings whose checkpoints are kept. The objective is bert_style of t5_objectives.py, which
learns to translate at this budget; scales, text, pairs, recipe and scores are those of that study.
At nano the shapes are 2x96x2, 2x96x4 and 2x192x2.
"""

import ml_collections

from scalelab.config import files

SHARE = 0.4  # the FLOPs of `base` over those of t5_architectures.py
SHAPES = {"synthetic": ("2x48x2", "2x48x4", "2x96x2"), "nano": ("2x96x2", "2x96x4", "2x192x2")}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    family, objectives, architectures = (
        files.load(files.FOLDER / f"studies/{name}.py")
        for name in ("family", "t5_objectives", "t5_architectures")
    )
    config, _ = objectives.settings(arguments)
    small, deep, wide = SHAPES[config.scale]
    flops = SHARE * architectures.FLOPS[config.scale]
    config.name = "t5_scaling"
    config.title = "Four times the compute for T5"
    config.question = "Should four times the compute go into steps, batches or the model?"
    config.matched, config.allow = "flops", ("matched",)
    config.fields += ("data.format=denoising", "format_options.style=bert_style")
    phases = config.pretrain.short, config.pretrain.long
    batch = tuple(
        f"{name}.batch_size={4 * phase.batch_size}"
        for name, phase in zip(("short", "long"), phases, strict=True)
    )
    four = family.equal_flops(config, 4 * flops)
    config.variants.base = family.equal_flops(config, flops)
    config.variants.steps, config.variants.batch = four, (*four, *batch)
    stages = {"base": (small,), "batch": (small,), "steps": (small, deep, wide)}
    for variant, shapes in stages.items():
        config.stages[variant] = dict(
            systems=("t5",), shapes=shapes, variants=(variant,), finetune="all"
        )
    config.stage_order = tuple(stages)
    grown = f"{small} steps", f"{small} batch", f"{deep} steps", f"{wide} steps"
    lines = [f"{arm} > {small} base" for arm in grown]
    lines += [f"{wide} steps > {small} steps", f"{small} steps > {small} batch"]
    config.hypotheses = tuple((line, config.primary) for line in lines)
    return config
