"""Every system at its best learning rate: the family at equal tokens, tuned alike.

  python -m scalelab.study run --workdir=runs/tuned_family \
    --config=configs/studies/tuned_family.py:scale=synthetic,seeds=5

`family` gives all systems one learning rate, which may suit one of them better. Here each system
trains at three rates, and a hypothesis compares two systems at their best rates. The rate is chosen
by validation loss, anew in every resample of the bootstrap. Minimal pairs alone are scored.
Arguments are those of configs/studies/family.py.
"""

import ml_collections

from scalelab.config import files

RATES = (1.5e-3, 3e-3, 6e-3)


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    family, study = (files.load(files.FOLDER / name) for name in ("studies/family.py", "study.py"))
    config, shape, _ = family.settings(arguments)
    config.name = "tuned_family"
    config.title = "Every system at its best learning rate"
    config.question = "Which system knows the language best, if each has its best learning rate?"
    config.finetune.tasks = ()
    config.finetune.scratch = False
    config.primary = config.evaluations[0]
    names = study.grid(config, learning_rate=RATES)
    config.stages.main = dict(systems=family.SYSTEMS, shapes=(shape,), variants=names, finetune="all")
    config.stage_order = ("main",)
    config.figures = ("loss_by_tokens",)
    best = " best(learning_rate)"
    config.claims = tuple(
        (f"{system}{best} > bert{best}", config.primary)
        for system in family.SYSTEMS
        if system != "bert"
    )
    config.tables = ("evaluations", "loss")
    return config
