"""Every system at its best learning rate: the family at equal tokens, tuned alike.

  python -m scalelab.study run --workdir=runs/tuned_family \
    --config=configs/studies/tuned_family.py:seeds=5

`family` gives all systems one learning rate, which may suit one of them better. Here each system
trains at three rates, and a hypothesis compares two systems at their best rates. The rate is chosen
by validation loss, anew in every resample of the bootstrap. Minimal pairs alone are scored. The
language is that of family.py at scale=synthetic, 1.5 M tokens; no data are needed.
"""

import ml_collections

from scalelab.config import files

RATES = (1.5e-3, 3e-3, 6e-3)


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family, study = (files.load(files.FOLDER / name) for name in ("studies/family.py", "study.py"))
    config, shape, _ = family.at_synthetic(arguments, tokens="1.5e6")
    config.name = "tuned_family"
    config.title = "Every system at its best learning rate"
    config.question = "Which system knows the language best, if each has its best learning rate?"
    config.primary = "pairs"
    names = study.grid(config, learning_rate=RATES)
    systems = family.SYSTEMS
    config.stages.main = dict(systems=systems, shapes=(shape,), variants=names, finetune="all")
    config.stage_order = ("main",)
    config.figures = ("loss_by_tokens",)
    best = " best(learning_rate)"
    config.hypotheses = tuple(
        (f"{system}{best} > bert{best}", "pairs") for system in systems if system != "bert"
    )
    config.tables = ("evaluations", "loss")
    return config
