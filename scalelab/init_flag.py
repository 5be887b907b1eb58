"""The flag --init, which trainings and fine-tunings share: a process defines a flag once."""

from absl import flags

from scalelab import cli
from scalelab.config import Config, resolve

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
    if INIT.value is not None:
        values["machine"]["init"] = cli.required(INIT.value, "init")
    return resolve(values)
