"""Trains: the loop of pre-training and of fine-tuning; as a program, pre-trains one system.

  python -m scalelab.train --config=pretrain:system=bert,steps=500 --workdir=DIR

The run folder holds everything the run leaves. Start the same command again to continue a stopped
run; a finished one says so and does nothing.

`train` is the loop: it compiles blocks of steps, sends them to the device until the budget is used,
and does what is due between them. `pretraining` is what stands around it in a pre-training: setup,
restore and end. A fine-tuning (`finetune.py`) is another run of the same loop. The step is in
`step.py`.
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
    from scalelab.step import BlockParts, Blocks
    from scalelab.training.opening import Run
    from scalelab.training.pretraining import BeforeStep

BLOCK_SECS = 1.0  # a block takes about so long at most: an interrupt waits for its end
Say = Callable[[str], object]


class Training(Protocol):
    """What `train` drives.

    Such are `pretraining.Pretraining`, `finetuning.training.Finetuning`, `finetuning.joint.Joint`.

    Attributes:
      interrupt: whether the user has stopped the training.
      say: prints a line.
      state: the training state; a block changes it.
      step: the number of steps that were started.
      over: whether no more steps are to be taken.
      done: the share of the budget that is used.
      most_steps: of a block; None: about BLOCK_SECS.
      blocks_ahead: how many blocks may be started before one is waited for.
      steps_per_sec: of the last blocks; 0 before the first.
      blocks: the program that was compiled last.
      result: what `train` returns, set when the training ends.
    """

    interrupt: cli.Interrupt
    say: Say
    config: Any
    run: Any
    state: Any
    step: int
    over: bool
    done: float
    most_steps: int | None
    blocks_ahead: int
    steps_per_sec: float
    blocks: "Blocks"
    result: Any

    def next_program(self) -> "tuple[Blocks, Any] | None":
        """Returns the program of the next steps and its arrays; None: it is not compiled."""
        ...

    def compiling(self) -> "contextlib.AbstractContextManager[BlockParts]":
        """Yields what the program of the next steps is compiled from; takes it from `blocks`."""
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
      settle: called with the metrics of each step of a block, on the host, and the seconds since
        the block before.
      ahead: blocks that may be on the device while the host makes the next.
    """

    def __init__(self, settle: Callable[[Sequence[Pairs], float], None], ahead: int) -> None:
        self._settle, self._ahead = settle, ahead
        self._pending: collections.deque[tuple[Pairs, int]] = collections.deque()
        self.restart()

    def restart(self) -> None:
        """Restarts the timer after validation or a checkpoint; no step may be in flight."""
        assert not self._pending
        self._begun = time.perf_counter()

    def add(self, found: Pairs, count: int) -> None:
        """Adds a block of `count` steps that was started; waits for the block `ahead` before it."""
        self._pending.append((found, count))
        self._take(self._ahead)

    def wait(self) -> None:
        """Waits for all blocks in flight."""
        self._take(0)

    def _take(self, left: int) -> None:
        import jax

        while len(self._pending) > left:
            found, count = self._pending.popleft()
            values = {n: [x.tolist() for x in pair] for n, pair in jax.device_get(found).items()}
            now = time.perf_counter()
            secs, self._begun = now - self._begun, now
            steps = [{n: (s[k], w[k]) for n, (s, w) in values.items()} for k in range(count)]
            self._settle(steps, secs)


def train(
    opened: contextlib.AbstractContextManager[Training],
    every: "Iterable[tuple[int, Callable[[Run], None]]]" = (),
) -> Any:
    """Takes the steps that are left, in blocks, until the training is over or interrupted.

    While the device works on a block the host makes the next one, and reads the metrics of the one
    before. The clock of training stands still while programs compile and in whatever is due.

    Args:
      opened: opens what is trained, and ends it: `pretraining`, `finetune.finetuning`.
      every: (n, fn) pairs: fn(run) is called after every n-th step and when a phase ends.

    Returns:
      The result of the training; of a pre-training the content of result.json.

    Raises:
      ValueError: config, data or folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or loss or gradient were not finite.
    """
    import jax
    import numpy as np

    from scalelab import sharding, step
    from scalelab.helpers.progress import Eta, Progress, say_still

    progress, time_left, alive, stopped, every = Progress(), Eta(), np.True_, False, tuple(every)
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
                with say_still("compiling or validating"), training.compiling() as parts:
                    training.blocks = step.compile_blocks(parts)
                in_flight.restart()
                time_left = Eta()  # the pace since the last program was compiled
                continue
            blocks, arrays = program
            time_left.start(training.done)
            most = training.most_steps or int(BLOCK_SECS * training.steps_per_sec)
            most = min(blocks.size, max(1, most), *(n - training.step % n for n, _ in every))
            rows, rates = training.plan_block(most)
            training.state, found, alive = blocks(training.state, arrays, rows, rates, alive)
            in_flight.add(found, len(rows))
            host.release_if_low()
            if training.is_anything_due():
                in_flight.wait()
                with say_still("validating"):
                    training.validate_and_save(lambda text: training.say(f"\n{text}"))
                in_flight.restart()
            for num_steps, hook in every:
                if training.is_due(num_steps):
                    hook(training.run)
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


@contextlib.contextmanager
def pretraining(
    config: Config, workdir: pathlib.Path, before_step: "BeforeStep | None" = None
) -> Iterator[Any]:
    """Opens a pre-training, new or stopped, for the loop; saves and ends it after the loop.

    Args:
      config: the resolved config.
      workdir: the run folder.
      before_step: called on the host with (step, batch) before each step, which then goes alone.

    Yields:
      The `Pretraining`; if the run is finished, `opening.Finished`.

    Raises:
      ValueError: config, data or folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or loss or gradient were not finite.
    """
    # Imported here, once the flags are known to be right, so that --help and typos answer at once.
    import jax

    from scalelab import sharding
    from scalelab.records import plots, run_folder
    from scalelab.training import beginning, opening

    # --- Setup: folder, devices ----------------
    started, machine = time.perf_counter(), config.machine
    config, start, nets = beginning.begin(config, workdir)
    if (result := run_folder.claim(workdir, config)) is not None:
        print(run_folder.describe_finished(workdir, result))
        yield opening.Finished(result)
        return
    if machine.distributed:
        sharding.join_processes()
    if config.optim.total_secs is not None and jax.process_count() > 1:
        raise ValueError("a budget in seconds needs one process: clocks of several differ")
    mesh, chief = opening.set_up(config, nets), jax.process_index() == 0
    say = functools.partial(print, flush=True) if chief else (lambda _: None)

    with contextlib.ExitStack() as stack:
        if chief:
            stack.enter_context(run_folder.locked(workdir))

        # --- Data, net, state: from the newest sound checkpoint of the folder, else from the run
        #     that --init names, else from the seed. ----------------
        training = opening.open_run(config, start, nets, workdir, mesh, say, before_step)
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
            saved = f"step {training.run.clocks.steps} is saved in {workdir}"
            raise cli.Interrupted(training.interrupt.received, saved)
        for remark in training.finish().get("remarks", ()):
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
        train(pretraining(config, cli.workdir(given)))


if __name__ == "__main__":
    cli.run(main, parser())
