"""Pre-trains runs of one shape in one program, which differ in seed or learning rate.

  python -m scalelab.population --config=FILE.py:ARGUMENTS --workdir=DIR --seeds=0,1,2,3
  python -m scalelab.population ... --seeds=0,1 --learning_rates=1e-3,2e-3

DIR/seed0, DIR/seed1, ... (DIR/seed0-rate0.001, ...) are run folders as `scalelab.train` leaves them
with the same numbers; it also continues one of them alone. Start the same command again to continue
what was stopped. A run whose loss is not finite ends by itself, the others go on.

With several rates every seed is trained at each. `seconds` of a run are its share of the time.
"""

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from scalelab import cli, environment
from scalelab import config as config_lib
from scalelab.config import Config

flags.adopt_module_key_flags(cli)
SEEDS = flags.DEFINE_list("seeds", [], "Seeds that train together; by default that of the config.")
RATES = flags.DEFINE_list(
    "learning_rates", [], "Peak learning rates, for each seed; by default that of the config."
)
VARYING = ("seed", "optim.learning_rate")  # with the seed: parameters, data order, masks, dropout


def train(runs: Sequence[tuple[Config, pathlib.Path]]) -> list[dict[str, Any]]:
    """Runs, or continues, pre-trainings as one program.

    Args:
      runs: config and folder of each.

    Returns:
      The content of the result.json of each.

    Raises:
      ValueError: one program cannot do them, or a config, its data or a folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or some ended early because loss or gradient were not finite.
    """
    check([config for config, _ in runs])
    from scalelab import train_loop

    return train_loop.train(runs)


def check(configs: Sequence[Config]) -> None:
    """Refuses runs that one program cannot do.

    Raises:
      ValueError: with the fields in which they must not differ.
    """
    flat = [config_lib.flatten(dataclasses.asdict(config)) for config in configs]
    found = {name: list(dict.fromkeys(one[name] for one in flat)) for name in flat[0]}
    differing = [
        f"{name}: {', '.join(map(repr, values))}"
        for name, values in found.items()
        if len(values) > 1 and name not in VARYING
    ]
    if differing:
        raise ValueError(
            f"runs that train together may differ in {' and '.join(VARYING)} alone; train these one"
            " by one, they differ in\n  " + "\n  ".join(differing)
        )
    if len(configs) > 1 and configs[0].optim.total_secs is not None:
        raise ValueError(
            "a budget in seconds is a run's alone, which those beside it would slow down: set"
            " another of optim.total_*, or train one by one"
        )
    if len(configs) > 1 and configs[0].machine.distributed:
        raise ValueError(
            "runs train together in one process: leave --config.machine.distributed off, or train"
            " one by one"
        )


def members(
    config: Config, workdir: pathlib.Path, seeds: Sequence[str], rates: Sequence[str]
) -> list[tuple[Config, pathlib.Path]]:
    """Config and folder of each run.

    Args:
      config: what they have in common.
      workdir: holds the folders.
      seeds: as given; empty: the config's.
      rates: learning rates as given; empty: the config's.

    Raises:
      ValueError: they are no numbers, or name a run twice.
    """
    runs = []
    for seed in _numbers(int, "seeds", seeds) or [config.seed]:
        for rate in _numbers(float, "learning_rates", rates) or [config.optim.learning_rate]:
            values = dataclasses.asdict(config) | {"seed": seed}
            values["optim"] |= {"learning_rate": rate}
            folder = f"seed{seed}" + (f"-rate{rate:g}" if rates else "")
            runs.append((config_lib.resolve(values), workdir / folder))
    folders = [folder.name for _, folder in runs]
    if len(set(folders)) < len(folders):
        raise ValueError(f"each run once, please; got {', '.join(folders)}")
    return runs


def _numbers(kind: type, flag: str, texts: Sequence[str]) -> list[Any]:
    try:
        found = [kind(text) for text in texts]
    except ValueError:
        found = [math.nan]
    if not all(math.isfinite(number) for number in found):
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"--{flag}={','.join(texts)}: expected {what} with commas between")
    return found


def main(argv: list[str]) -> None:
    """Reads the flags and trains."""
    del argv
    environment.keep_freed_memory()
    workdir = pathlib.Path(cli.required(cli.WORKDIR.value, "workdir"))
    train(members(cli.read_config(), workdir, SEEDS.value, RATES.value))


if __name__ == "__main__":
    cli.run(main)
