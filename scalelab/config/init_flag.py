"""The flag --init, which trainings and fine-tunings share: a process defines a flag once."""

from absl import flags

from scalelab.config import cli
from scalelab.config.pretraining import Config, resolve

INIT = flags.DEFINE_string(
    "init",
    None,
    "Run folder, of a training or an import, to begin with: its parameters and its tokenizer. A"
    " training's clocks, schedule and optimizer begin at zero. A fine-tuning also takes none: from"
    " random weights.",
)


def read_config() -> Config:
    """The resolved config of a training, as the flags ask for it.

    Raises:
      ValueError: it is missing, or cannot be resolved.
    """
    values = cli.config_values()
    if INIT.value == "none":
        raise ValueError(
            "--init=none is for fine-tunings; a training begins with random parameters where --init"
            " is left out"
        )
    if INIT.value is not None:
        given = values["machine"]["init"]
        values["machine"]["init"] = cli.required(INIT.value, "init")
        if given not in (None, INIT.value):
            raise ValueError(
                f"--init={INIT.value} and --config.machine.init={given} say the same of different"
                " runs: give one of them"
            )
    return resolve(values)
