"""The parts of the loop of `train.py`: what it drives, and the blocks that are in flight."""

import collections
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from scalelab.config import exits
from scalelab.records.metrics import Pairs
from scalelab.step import Blocks

Say = Callable[[str], object]


class Training(Protocol):
    """A training that `train.train` drives.

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

    interrupt: exits.Interrupt
    say: Say
    config: Any
    state: Any
    step: int
    over: bool
    done: float
    most_steps: int | None
    blocks_ahead: int
    steps_per_sec: float
    blocks: Blocks
    result: Any

    # ruff: noqa: D102 (described where they are made)
    def next_program(self) -> tuple[Blocks, Any] | None: ...
    def compiling(self) -> contextlib.AbstractContextManager[tuple]: ...
    def plan_block(self, most: int) -> tuple[Sequence[Any], Sequence[Any]]: ...
    def settle(self, steps: Sequence[Pairs], secs: float) -> None: ...
    def is_anything_due(self) -> bool: ...
    def validate_and_save(self, say: Say) -> None: ...
    def is_due(self, num_steps: int) -> bool: ...
    def describe_progress(self, time_left: str) -> str: ...


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
        """Adds a block of steps that was started; waits for the block `ahead` before it.

        Args:
          found: (sum, weight) pairs of each step, on the device.
          count: steps of the block.
        """
        self._pending.append((found, count))
        self._take(self._ahead)

    def wait(self) -> None:
        """Waits for all blocks in flight."""
        self._take(0)

    def _take(self, left: int) -> None:
        while len(self._pending) > left:
            found, count = self._pending.popleft()
            values = {n: [x.tolist() for x in pair] for n, pair in jax.device_get(found).items()}
            now = time.perf_counter()
            secs, self._begun = now - self._begun, now
            steps = [{n: (s[k], w[k]) for n, (s, w) in values.items()} for k in range(count)]
            self._settle(steps, secs)
