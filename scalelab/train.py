"""Pre-trains one system: python -m scalelab.train --config=FILE.py:ARGUMENTS --workdir=DIR.

The run folder holds everything the run leaves. Start the same command again to continue a stopped
run; a finished one says so and does nothing. Restored is, in this order: the newest sound
checkpoint of the folder, else the parameters of --init=RUN, else a fresh initialisation from the
seed.
"""

import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from absl import flags

from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.resources import malloc

flags.adopt_module_key_flags(cli)


def train(
    config: Config,
    workdir: pathlib.Path,
    *,
    before_step: Callable[[int, dict[str, Any]], None] | None = None,
    every: Iterable[tuple[int, Callable[[Any], None]]] = (),
) -> dict[str, Any]:
    """Runs, or continues, one pre-training.

    Args:
      config: the resolved config.
      workdir: the run folder.
      before_step: called on the host with (step, batch) before each step.
      every: (n, fn) pairs: fn(run) is called after every n-th step, and when a phase ends.

    Returns:
      The content of result.json.

    Raises:
      ValueError: config, data or folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or loss or gradient were not finite.
    """
    # Imported here, once the flags are known to be right, so that --help and typos answer at once.
    from scalelab.training import loop as train_loop

    return train_loop.train([(config, workdir)], before_step=before_step, every=every)[0]


def main(argv: list[str]) -> None:
    """Reads the flags and trains."""
    del argv
    malloc.keep()
    train(cli.read_config(), cli.workdir())


if __name__ == "__main__":
    cli.run(main)
