"""Trains: the loop of pre-training and of fine-tuning; as a program, pre-trains one system.

  python -m scalelab.train --config=pretrain:system=bert,steps=500 --workdir=DIR

The run folder holds everything the run leaves. Start the same command again to continue a stopped
run; a finished one says so and does nothing.

`run_blocks` is the loop: it sends blocks of steps to the device until the budget is used, and does
what is due between them. `train` is a pre-training, from top to bottom: setup, restore, loop, end.
A fine-tuning (`scalelab.finetune`) is another run of the same loop. The step is in `step.py`.
"""

import argparse
import collections
import contextlib
import functools
import importlib
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.records.metrics import Pairs
from scalelab.resources import host

if TYPE_CHECKING:
    from scalelab.step import Blocks
    from scalelab.training.opening import Run
    from scalelab.training.pretraining import BeforeStep

BLOCK_SECS = 1.0  # a block takes about so long at most: an interrupt waits for its end
Say = Callable[[str], object]


class Training(Protocol):
    """What `run_blocks` drives.

    Such are `pretraining.Pretraining`, `finetuning.training.Finetuning`, `finetuning.joint.Joint`.

    Attributes:
      state: the training state; a block changes it.
      step: the number of steps that were started.
      over: whether no more steps are to be taken.
      done: the share of the budget that is used.
      most_steps: of a block; None: about BLOCK_SECS.
      blocks_ahead: how many blocks may be started before one is waited for.
      steps_per_sec: of the last blocks; 0 before the first.
    """

    config: Any
    run: Any
    state: Any
    step: int
    over: bool
    done: float
    most_steps: int | None
    blocks_ahead: int
    steps_per_sec: float

    def next_program(self) -> "tuple[Blocks, Any] | None":
        """Returns the program of the next steps and its arrays; None: it is not compiled."""
        ...

    def compile_next(self, say: Say) -> None:
        """Compiles the program of the next steps."""
        ...

    def plan_block(self, most: int) -> tuple[Sequence[Any], Sequence[Any]]:
        """Advances the clocks by up to `most` steps; returns the row and the rate of each."""
        ...

    def settle(self, steps: Sequence[Pairs], secs: float) -> None:
        """Adds the metrics and the time of a block that is done."""
        ...

    def is_anything_due(self) -> bool:
        """Whether something is due after the last planned step."""
        ...

    def validate_and_save(self, say: Say) -> None:
        """Does what is due; no step is in flight."""
        ...

    def is_due(self, num_steps: int) -> bool:
        """Whether an event is due that happens every `num_steps`, or at an end."""
        ...

    def describe_progress(self, time_left: str) -> str:
        """Returns the progress line."""
        ...


class InFlight:
    """The blocks of steps that were started and not yet waited for, and their time.

    Args:
      ahead: blocks that may be on the device while the host makes the next.
    """

    def __init__(self, ahead: int = 1) -> None:
        self._ahead = ahead
        self._pending: collections.deque[tuple[Pairs, int]] = collections.deque()
        self.restart()

    def restart(self) -> None:
        """Restarts the timer after validation or a checkpoint; no step may be in flight."""
        assert not self._pending
        self._begun = time.perf_counter()

    def add(self, found: Pairs, count: int) -> Iterator[tuple[list[Pairs], float]]:
        """Adds a block of `count` steps that was started; waits for the block `ahead` before it.

        Yields:
          The metrics of each step of a block, on the host, and the seconds since the block before.
        """
        self._pending.append((found, count))
        return self._take(self._ahead)

    def wait(self) -> Iterator[tuple[list[Pairs], float]]:
        """Waits for all blocks in flight; yields what `add` does."""
        return self._take(0)

    def _take(self, left: int) -> Iterator[tuple[list[Pairs], float]]:
        import jax

        while len(self._pending) > left:
            found, count = self._pending.popleft()
            values = {n: [x.tolist() for x in pair] for n, pair in jax.device_get(found).items()}
            now = time.perf_counter()
            secs, self._begun = now - self._begun, now
            yield [{n: (s[k], w[k]) for n, (s, w) in values.items()} for k in range(count)], secs


def run_blocks(
    training: Training,
    interrupt: cli.Interrupt,
    say: Say,
    every: "Iterable[tuple[int, Callable[[Run], None]]]" = (),
) -> None:
    """Takes the steps that are left, in blocks, until the training is over or interrupted.

    While the device works on a block the host makes the next one, and reads the metrics of the one
    before. The clock of training stands still while programs compile and in whatever is due.

    Args:
      training: what is trained.
      interrupt: ends the loop after the block in progress.
      say: prints a line.
      every: (n, fn) pairs: fn(run) is called after every n-th step and when a phase ends.
    """
    import jax
    import numpy as np

    from scalelab import sharding
    from scalelab.helpers.progress import Eta, Progress

    progress, time_left, in_flight = Progress(), Eta(), InFlight(training.blocks_ahead)
    alive, stopped = np.True_, False

    def wait() -> None:
        for steps, secs in in_flight.wait():
            training.settle(steps, secs)

    while not stopped:
        if training.over:
            wait()  # on the clock of seconds, time may be left
            if training.over:
                break
        program = training.next_program()
        if program is None:
            wait()
            training.compile_next(say)
            in_flight.restart()
            time_left = Eta()  # the pace since the last program was compiled
            continue
        blocks, arrays = program
        time_left.start(training.done)
        most = training.most_steps or int(BLOCK_SECS * training.steps_per_sec)
        most = min(blocks.size, max(1, most), *(n - training.step % n for n, _ in every))
        rows, rates = training.plan_block(most)
        training.state, found, alive = blocks(training.state, arrays, rows, rates, alive)
        for steps, secs in in_flight.add(found, len(rows)):
            training.settle(steps, secs)
        host.release_if_low()
        if training.is_anything_due():
            wait()
            training.validate_and_save(lambda text: say(f"\n{text}"))
            in_flight.restart()
        for num_steps, hook in every:
            if training.is_due(num_steps):
                hook(training.run)
        if progress.due():
            wait()
            progress.show(training.describe_progress(time_left.text(training.done)))
        # Several processes must stop after the same step, so they ask each other, rarely.
        if jax.process_count() == 1 or training.is_due(training.config.machine.log_every_steps):
            stopped = sharding.any_process(interrupt.received is not None)
    wait()
    if training.steps_per_sec:  # a step was made
        progress.show(training.describe_progress(time_left.text(training.done)), final=True)


def train(
    config: Config,
    workdir: pathlib.Path,
    *,
    before_step: "BeforeStep | None" = None,
    every: "Iterable[tuple[int, Callable[[Run], None]]]" = (),
) -> dict[str, Any]:
    """Runs, or continues, one pre-training.

    Args:
      config: the resolved config.
      workdir: the run folder.
      before_step: called on the host with (step, batch) before each step, which then goes alone.
      every: as in `run_blocks`.

    Returns:
      The content of result.json.

    Raises:
      ValueError: config, data or folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or loss or gradient were not finite.
    """
    # Imported here, once the flags are known to be right, so that --help and typos answer at once.
    import jax

    from scalelab import sharding
    from scalelab.records import plots, run_folder
    from scalelab.training import beginning
    from scalelab.training.opening import open_run, set_up

    # --- Setup: folder, devices ----------------
    started, machine = time.perf_counter(), config.machine
    config, start, nets = beginning.begin(config, workdir)
    if (result := run_folder.claim(workdir, config)) is not None:
        print(run_folder.describe_finished(workdir, result))
        return result
    if machine.distributed:
        sharding.join_processes()
    if config.optim.total_secs is not None and jax.process_count() > 1:
        raise ValueError("a budget in seconds needs one process: clocks of several differ")
    mesh, chief = set_up(config, nets), jax.process_index() == 0
    say = functools.partial(print, flush=True) if chief else (lambda _: None)

    with contextlib.ExitStack() as stack:
        if chief:
            stack.enter_context(run_folder.locked(workdir))

        # --- Data, net, state. Parameters are looked for in this order:
        #   1. the newest sound checkpoint of the folder,
        #   2. the run that --init names,
        #   3. a fresh initialisation from the seed. ----------------
        training = open_run(config, start, nets, workdir, mesh, say, before_step)
        del start  # frees the parameters of the run that --init names
        if config.eval.pairs is not None:
            # By name: no other training needs an evaluation.
            importlib.import_module("scalelab.eval.pairs").watch(training)
        training.timers["setup_secs"] = time.perf_counter() - started

        # --- The loop ----------------
        interrupt = stack.enter_context(cli.Interrupt())
        run_blocks(training, interrupt, say, tuple(every))

        # --- The end ----------------
        training.save()
        training.close()
        if chief:
            plots.draw_curves(workdir, training.name)
        if not training.over:
            saved = f"step {training.run.clocks.steps} is saved in {workdir}"
            raise cli.Interrupted(interrupt.received, saved)
        result = training.finish()
        for remark in result.get("remarks", ()):
            say(f"warning: {remark}")
        say(f"finished {training.name}. Results: {workdir}/result.json, curves.png, metrics.jsonl")
        return result


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
        train(config, cli.workdir(given))


if __name__ == "__main__":
    cli.run(main, parser())
