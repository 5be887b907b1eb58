"""Pre-trains one system.

  python -m scalelab.train --config=pretrain:system=bert,steps=500 --workdir=DIR

The run folder holds everything the run leaves. Start the same command again to continue a stopped
run; a finished one says so and does nothing.

`pretraining` says what happens around the loop: setup, restore and end. The loop is `train` in
`training/loop.py`, the step is in `step.py`.
"""

import argparse
import contextlib
import functools
import importlib
import pathlib
import time
from collections.abc import Collection, Iterator
from typing import Any

from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.resources import host
from scalelab.training.loop import train as train


@contextlib.contextmanager
def pretraining(
    config: Config, workdir: pathlib.Path, asked: Collection[str] = ()
) -> Iterator[Any]:
    """Opens a pre-training, new or stopped, for the loop; saves and ends it after the loop.

    `asked` has the names of the fields that the user set by flags. Errors are those of `train`.

    Yields:
      The `Pretraining`; if the run is finished, `opening.Finished`.
    """
    import jax

    from scalelab import sharding
    from scalelab.records import plots, run_folder
    from scalelab.training import beginning, opening

    # --- Setup: folder, devices ----------------
    started, machine = time.perf_counter(), config.machine
    config, start, nets = beginning.begin(config, workdir, asked)
    if (result := run_folder.claim(workdir, config)) is not None:
        print(run_folder.describe_finished(workdir, result))
        yield opening.Finished(result)
        return
    if machine.distributed:
        sharding.join_processes()
    if config.optim.total_secs is not None and jax.process_count() > 1:
        raise ValueError("a budget in seconds needs one process: clocks of several differ")
    chief = jax.process_index() == 0
    say = functools.partial(print, flush=True) if chief else (lambda _: None)

    with contextlib.ExitStack() as stack:
        if chief:
            stack.enter_context(run_folder.locked(workdir))  # a refused run leaves no folder
        mesh = opening.set_up(config, nets)

        # --- Data, model, state: from the newest sound checkpoint of the folder, else from the run
        #     that --init names, else from the seed. ----------------
        training = opening.open_run(config, start, nets, workdir, mesh, say)
        del start  # frees the parameters of the run that --init names
        if config.eval.pairs is not None:
            # By name: no other training needs an evaluation.
            importlib.import_module("scalelab.eval.pairs").watch(training)
        training.timers["setup_secs"] = time.perf_counter() - started
        stack.enter_context(training.interrupt)

        yield training

        # --- The end ----------------
        training.save()
        training.close()
        if chief:
            plots.draw_curves(workdir, training.name)
        if not training.over:
            saved = f"step {training.step} is saved in {workdir}"
            raise cli.Interrupted(training.interrupt.received, saved)
        training.result = opening.finish(training)
        for remark in training.result.get("remarks", ()):
            say(f"warning: {remark}")
        say(f"finished {training.name}. Results: {workdir}/result.json, curves.png, metrics.jsonl")


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.train", __doc__, config=Config, setup=host.keep_freed)
    made.add_argument("--workdir", metavar="DIR", help=cli.WORKDIR)
    made.add_argument("--init", metavar="RUN", help=cli.INIT)
    return made


def main(given: argparse.Namespace) -> None:
    """Trains."""
    config = cli.read_config(given)
    with cli.one_of_several() if config.machine.distributed else contextlib.nullcontext():
        train(pretraining(config, cli.workdir(given), given.fields))


if __name__ == "__main__":
    cli.run(main, parser())
