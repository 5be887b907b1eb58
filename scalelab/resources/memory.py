"""What a training step needs in memory, by the compiled program itself, and what would fit.

XLA plans all memory of a program when it compiles it: arguments, results, and one region for all
that lies between. So nothing has to run. What grows with the batch is told by compiling twice.
"""

import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scalelab.resources import malloc

# On CPU a process takes this much more than its compiled step: perhaps what products pack their
# operands into, and gaps that the allocator leaves. Measured: LOG.md.
BESIDE_ON_CPU = 72 * 2**20
UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
MOST_TRIES = 8
LARGEST = 16384  # batch size that is worth asking for


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes of one training step on one device.

    Attributes:
      batch_size: examples of the whole batch.
      params: of the parameters.
      optimizer: of the optimizer's state.
      batch: of the batch, and of results that do not take the place of an argument.
      between: of all that exists only within the step: gradients, activations, scratch.
      beside: that the compiled program does not count.
    """

    batch_size: int
    params: int
    optimizer: int
    batch: int
    between: int
    beside: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.params + self.optimizer + self.batch + self.between + self.beside

    @property
    def kept(self) -> int:
        """What training on CPU comes to at most while it keeps what is freed."""
        return self.total + (malloc.GAPS - 1) * self.between


def of_step(
    plan: Any, length: int, batch_size: int, mesh: Any, platform: str | None = None
) -> StepMemory:
    """Compiles the training step of a batch, and reads off what it needs.

    Args:
      plan: a blueprint.Blueprint.
      length: tokens of an example.
      batch_size: examples.
      mesh: the devices.
      platform: whose step is asked for, "cpu", "gpu" or "tpu"; None: that of the devices. Another
        one's is the program that would run there, as this one's compiler lays it out.
    """
    from scalelab import sharding
    from scalelab.objectives import xent

    platform = platform or mesh.devices.flat[0].platform
    with xent.as_on(platform):
        run = plan.compile(length, batch_size, mesh)
    found = run.memory_analysis()
    placed = sharding.shardings(plan.boxed, mesh)
    params, optimizer = (
        _num_bytes(getattr(plan.state, part), getattr(placed, part))
        for part in ("params", "opt_state")
    )
    arguments = found.argument_size_in_bytes + found.output_size_in_bytes
    rest = arguments - found.alias_size_in_bytes - params - optimizer
    beside = BESIDE_ON_CPU if platform == "cpu" else 0
    return StepMemory(batch_size, params, optimizer, rest, found.temp_size_in_bytes, beside)


def _num_bytes(tree: Any, placed: Any) -> int:
    """Bytes of a tree of abstract arrays on one device."""
    import jax

    return sum(
        math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, where in zip(jax.tree.leaves(tree), jax.tree.leaves(placed), strict=True)
    )


def slope(a: StepMemory, b: StepMemory) -> float:
    """Bytes that one more example takes, between two batch sizes."""
    return max(0.0, (b.total - a.total) / (b.batch_size - a.batch_size))


def another_size(batch_size: int, quantum: int) -> int:
    """A batch size to compare with: about half of it, or twice where there is no half."""
    half = batch_size // 2 // quantum * quantum
    return half if half else 2 * batch_size


def largest_batch(
    measure: Callable[[int], StepMemory],
    known: Sequence[StepMemory],
    capacity: float,
    quantum: int = 1,
) -> tuple[StepMemory | None, StepMemory | None]:
    """Looks for the largest batch that fits: a line through what is known, checked by compiling.

    Args:
      measure: of a batch size.
      known: of two batch sizes or more.
      capacity: bytes there are.
      quantum: batch sizes are multiples of it.

    Returns:
      The largest that was compiled and fits, None if not even `quantum` does; and the smallest
      that was compiled and does not, which is the next one unless the search was given up.
    """
    seen = {m.batch_size: m for m in known}
    for attempt in range(MOST_TRIES):
        fits, beyond = _around(seen.values(), capacity)
        low = fits.batch_size if fits else 0
        if beyond and beyond.batch_size - low <= quantum:
            break
        if low >= LARGEST:
            break
        if beyond and attempt % 2 and beyond.batch_size - low > low / 8:
            guess = (low + beyond.batch_size) / 2  # where it is no line, a line creeps
        else:
            guess = _guess(seen.values(), capacity)
        size = max(int(min(guess, LARGEST) // quantum) * quantum, low + quantum)
        if beyond:
            size = min(size, beyond.batch_size - quantum)
        seen[size] = measure(size)
    return _around(seen.values(), capacity)


def _around(
    known: Iterable[StepMemory], capacity: float
) -> tuple[StepMemory | None, StepMemory | None]:
    """The largest that fits, and the smallest that does not."""
    ordered = sorted(known, key=lambda m: m.batch_size)
    fits = [m for m in ordered if m.total <= capacity]
    beyond = [m for m in ordered if m.total > capacity]
    return (fits[-1] if fits else None), (beyond[0] if beyond else None)


def _guess(known: Iterable[StepMemory], capacity: float) -> float:
    """Where a line through the two around the capacity, or nearest to it, meets it."""
    ordered = sorted(known, key=lambda m: m.batch_size)
    at = next((i for i, m in enumerate(ordered) if m.total > capacity), len(ordered) - 1)
    low, high = ordered[max(at, 1) - 1], ordered[max(at, 1)]
    grows = slope(low, high)
    return low.batch_size + (capacity - low.total) / grows if grows else 2.0 * high.batch_size


def parse_bytes(text: str) -> int:
    """Reads "24GiB" or "16000MB".

    Raises:
      ValueError: it is not written so.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?i?B)", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise ValueError(f"--memory={text!r}: expected a number with its unit, such as 24GiB")
    return int(float(found[1]) * UNITS[found[2].upper()])


def of_this_machine() -> int:
    """Bytes that this process may use: the machine's, or its control group's if that has less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(pathlib.Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return min(found)
