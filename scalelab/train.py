"""Pre-trains one system.

  python -m scalelab.train --config=pretrain:system=bert,steps=500 --workdir=DIR

The run folder holds everything the run leaves. Start the same command again to continue a stopped
run; a finished one says so and does nothing.

`pretraining` says what happens around the loop: setup, restore and end. `train` is the loop, also
of fine-tuning (`finetune.py`); the step is in `step.py`.
"""

import argparse
import collections
import contextlib
import functools
import importlib
import pathlib
import time
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from scalelab.config import cli, exits
from scalelab.config.pretraining import Config
from scalelab.helpers.progress import Eta, Progress
from scalelab.resources import host

if TYPE_CHECKING:
    from scalelab.records.metrics import Pairs
    from scalelab.step import BlockParts, Blocks

BLOCK_SECS = 1.0  # the longest time of a block, about: an interrupt waits for its end
# What the loop reads of a training without any step left.
FINISHED = {"over": True, "settle": None, "blocks_ahead": 0, "steps_per_sec": 0.0}


class Training(Protocol):
    """A training that `train.train` drives.

    Such are `pretraining.Pretraining` and `finetuning.joint.Joint`.
    """

    interrupt: exits.Interrupt  # whether the user has stopped the training
    say: Callable[[str], object]  # prints a line
    config: Any
    state: Any  # the training state; a block changes it
    step: int  # the number of steps that were started
    over: bool  # whether no more steps are to be taken
    done: float  # the share of the budget that is used
    most_steps: int | None  # of a block; None: about BLOCK_SECS
    blocks_ahead: int  # how many blocks may be started before one is waited for
    steps_per_sec: float  # of the last blocks; 0 before the first
    blocks: "Blocks"  # the program that was compiled last
    result: Any  # what `train` returns, set when the training ends

    # Described where they are made.
    def next_program(self) -> "tuple[Blocks, Any] | None": ...  # noqa: D102
    def compiling(self) -> contextlib.AbstractContextManager["BlockParts"]: ...  # noqa: D102
    def plan_block(self, most: int) -> tuple[Sequence[Any], Sequence[Any]]: ...  # noqa: D102
    def settle(self, steps: "Sequence[Pairs]", secs: float) -> None: ...  # noqa: D102
    def is_anything_due(self) -> bool: ...  # noqa: D102
    def validate_and_save(self, say: Callable[[str], object]) -> None: ...  # noqa: D102
    def is_due(self, num_steps: int) -> bool: ...  # noqa: D102
    def describe_progress(self, time_left: str) -> str: ...  # noqa: D102


def train(opened: contextlib.AbstractContextManager[Training]) -> Any:
    """Takes the steps that are left, in blocks, until the training is over or interrupted.

    While the device works on a block the host makes the next one, and reads the metrics of the one
    before. The clock of training stands still while programs compile and in whatever is due.

    Args:
      opened: opens what is trained, and ends it: `pretraining`, `finetune.finetuning`.

    Returns:
      The result of the training; of a pre-training the content of result.json.

    Raises:
      ValueError: config, data or folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      exits.Stopped: interrupted, or loss or gradient were not finite.
    """
    # Imported here, once the flags are known to be right, so that --help and typos answer at once.
    import jax
    import numpy as np

    from scalelab import sharding, step

    progress, time_left, alive, stopped = Progress(), Eta(0.0), np.True_, False
    with opened as training:
        in_flight = InFlight(training.settle, training.blocks_ahead)
        while not stopped:
            if training.over:
                in_flight.wait()  # on the clock of seconds, time may be left
                if training.over:
                    break
            program = training.next_program()
            if program is None:
                in_flight.wait()
                with training.compiling() as parts:
                    training.blocks = step.compile_blocks(parts)
                in_flight.restart()
                time_left = Eta(training.done)  # the pace since the last program was compiled
                continue
            blocks, arrays = program
            most = training.most_steps or int(BLOCK_SECS * training.steps_per_sec)
            most = min(blocks.size, max(1, most))
            rows, rates = training.plan_block(most)
            training.state, found, alive = blocks(training.state, arrays, rows, rates, alive)
            in_flight.add(found, len(rows))
            host.release_if_low()
            if training.is_anything_due():
                in_flight.wait()
                training.validate_and_save(lambda text: training.say(f"\n{text}"))
                in_flight.restart()
            if progress.due():
                in_flight.wait()
                progress.show(training.describe_progress(time_left.text(training.done)))
            # Several processes must stop after the same step, so they ask each other, rarely.
            if jax.process_count() == 1 or training.is_due(training.config.machine.log_every_steps):
                stopped = sharding.any_process(training.interrupt.received is not None)
        in_flight.wait()
        if training.steps_per_sec:  # a step was made
            progress.show(training.describe_progress(time_left.text(training.done)), final=True)
    return training.result


class InFlight:
    """The blocks of steps that were started and not yet waited for, and their time.

    Args:
      settle: called with the metrics of each step of a block, on the host, and the seconds since
        the block before.
      ahead: blocks that may be on the device while the host makes the next.
    """

    def __init__(self, settle: "Callable[[Sequence[Pairs], float], None]", ahead: int) -> None:
        self._settle, self._ahead = settle, ahead
        self._pending: collections.deque[tuple[Pairs, int]] = collections.deque()
        self.restart()

    def restart(self) -> None:
        """Restarts the timer after validation or a checkpoint; no step may be in flight."""
        assert not self._pending
        self._begun = time.perf_counter()

    def add(self, found: "Pairs", count: int) -> None:
        """Adds a block of steps that was started; waits for the block `ahead` before it.

        Args:
          found: (sum, weight) pairs of each step, on the device.
          count: steps of the block.
        """
        self._pending.append((found, count))
        self.wait(self._ahead)

    def wait(self, left: int = 0) -> None:
        """Waits until only the last `left` blocks are in flight."""
        import jax

        while len(self._pending) > left:
            found, count = self._pending.popleft()
            values = {n: [x.tolist() for x in pair] for n, pair in jax.device_get(found).items()}
            now = time.perf_counter()
            secs, self._begun = now - self._begun, now
            steps = [{n: (s[k], w[k]) for n, (s, w) in values.items()} for k in range(count)]
            self._settle(steps, secs)


@contextlib.contextmanager
def pretraining(
    config: Config, workdir: pathlib.Path, asked: Collection[str] = ()
) -> Iterator[Any]:
    """Opens a pre-training, new or stopped, for the loop; saves and ends it after the loop.

    `asked` has the names of the fields that the user set by flags. Errors are those of `train`.

    Yields:
      The `Pretraining`; if the run is finished, FINISHED with its result.
    """
    import jax

    from scalelab import sharding
    from scalelab.records import plots, run_folder
    from scalelab.training import beginning, opening

    # --- Setup: folder, devices ----------------
    started, machine = time.perf_counter(), config.machine
    config, start, nets = beginning.begin(config, workdir, asked)
    if (result := run_folder.claim(workdir, config)) is not None:
        steps = result["steps"]
        print(f"{workdir} is already finished ({steps} steps). Results: {workdir}/result.json")
        yield types.SimpleNamespace(**FINISHED, result=result)
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
            raise exits.Interrupted(training.interrupt.received, saved)
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
    with exits.one_of_several() if config.machine.distributed else contextlib.nullcontext():
        train(pretraining(config, cli.workdir(given), given.fields))


if __name__ == "__main__":
    cli.run(main, parser())
