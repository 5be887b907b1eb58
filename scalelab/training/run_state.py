"""How far a training has come: its state and clocks, and the blocks in flight."""

import collections
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
from flax.typing import ArrayPytree

from scalelab.records.metrics import Clocks, Pairs


@dataclasses.dataclass
class Run:
    """The part of a run that changes in training; a checkpoint holds all of it."""

    state: ArrayPytree  # the TrainState, on the devices
    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    phase: int = 0  # index of the phase in progress
    phase_start: int = 0  # the step at which that phase began
    best: float = math.inf  # lowest validation loss of the phase in progress
    # The last validation of each phase, by its length in tokens.
    evals: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    data: str = ""  # fingerprint of the training examples
    # (sum, weight) of each metric since the last logged line.
    unlogged: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    # Names of the parameters that the run of --init did not have.
    initialised: list[str] = dataclasses.field(default_factory=list)
    num_lines: int | None = 0  # of metrics.jsonl; None in checkpoints of older versions

    def meta(self) -> dict[str, Any]:
        """Returns everything but the state, as plain JSON."""
        values = {name: x for name, x in vars(self).items() if name != "state"}
        return values | {"clocks": dataclasses.asdict(self.clocks), "best": repr(self.best)}

    @classmethod
    def from_meta(cls, state: ArrayPytree, meta: dict[str, Any]) -> "Run":
        """Builds the run from its state and what `meta` returned."""
        names = {f.name for f in dataclasses.fields(cls)} & meta.keys()
        values = {"num_lines": None} | {name: meta[name] for name in names}
        return cls(
            state, **(values | {"clocks": Clocks(**meta["clocks"]), "best": float(meta["best"])})
        )


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
        while len(self._pending) > left:
            found, count = self._pending.popleft()
            values = {n: [x.tolist() for x in pair] for n, pair in jax.device_get(found).items()}
            now = time.perf_counter()
            secs, self._begun = now - self._begun, now
            yield [{n: (s[k], w[k]) for n, (s, w) in values.items()} for k in range(count)], secs
