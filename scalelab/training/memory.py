"""Memory of a training step, from the compiled program, and the largest batch that fits.

XLA plans all memory of a program when it compiles it: arguments, results, and one region for all
that lies between. So nothing has to run. What grows with the batch is found by compiling twice.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh

from scalelab import sharding
from scalelab.objectives import xent
from scalelab.resources import host
from scalelab.training.blueprint import Blueprint

# On CPU a process takes this much more than its compiled step: perhaps what products pack their
# operands into, and gaps that the allocator leaves. Measured: LOG.md.
BESIDE_ON_CPU = 72 * 2**20
UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
MOST_TRIES = 8
LARGEST = 16384  # batch size that is worth asking for


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes of one training step on one device."""

    batch_size: int  # examples of the whole batch
    params: int
    optimizer: int
    batch: int  # the batch, and results that do not take the place of an argument
    between: int  # what exists only within the step: gradients, activations, scratch
    beside: int = 0  # what the compiled program does not count

    @property
    def total(self) -> int:
        """All of it."""
        return self.params + self.optimizer + self.batch + self.between + self.beside

    @property
    def kept(self) -> int:
        """Upper bound for training on CPU, which keeps freed memory."""
        return self.total + (host.GAPS - 1) * self.between


def measure_step(
    plan: Blueprint, length: int, batch_size: int, mesh: Mesh, platform: str | None = None
) -> StepMemory:
    """Compiles the training step of a batch and returns its memory need.

    Args:
      plan: the run in the abstract.
      length: tokens of an example.
      batch_size: examples.
      mesh: the devices.
      platform: "cpu", "gpu" or "tpu", whose program is laid out by this machine's compiler; None:
        the platform of the devices.
    """
    platform = platform or mesh.devices.flat[0].platform
    with xent.as_on(platform):
        found = plan.compile(length, batch_size, mesh).memory_analysis()
    assert found is not None
    placed = sharding.shardings(plan.boxed, mesh)
    params, optimizer = (
        sum(
            math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf, where in zip(jax.tree.leaves(tree), jax.tree.leaves(places), strict=True)
        )
        for tree, places in (
            (plan.state.params, placed.params),
            (plan.state.opt_state, placed.opt_state),
        )
    )
    arguments = found.argument_size_in_bytes + found.output_size_in_bytes
    rest = arguments - found.alias_size_in_bytes - params - optimizer
    beside = BESIDE_ON_CPU if platform == "cpu" else 0
    return StepMemory(batch_size, params, optimizer, rest, found.temp_size_in_bytes, beside)


def slope(a: StepMemory, b: StepMemory) -> float:
    """Returns the bytes per additional example, from two batch sizes."""
    return max(0.0, (b.total - a.total) / (b.batch_size - a.batch_size))


def largest_batch(
    measure: Callable[[int], StepMemory],
    known: Sequence[StepMemory],
    capacity: float,
    quantum: int = 1,
) -> tuple[StepMemory | None, StepMemory | None]:
    """Searches the largest batch that fits: linear extrapolation, checked by compiling.

    Args:
      measure: compiles for a batch size.
      known: of two batch sizes or more.
      capacity: bytes there are.
      quantum: batch sizes are multiples of it.

    Returns:
      The largest that was compiled and fits, None if not even `quantum` does; and the smallest
      that was compiled and does not, which is the next one unless the search was given up.
    """
    seen = sorted(known, key=lambda m: m.batch_size)
    for attempt in range(MOST_TRIES + 1):
        at = next((i for i, m in enumerate(seen) if m.total > capacity), len(seen))
        fits, beyond = seen[at - 1] if at else None, seen[at] if at < len(seen) else None
        low = fits.batch_size if fits else 0
        certain = beyond is not None and beyond.batch_size - low <= quantum
        if certain or low >= LARGEST or attempt == MOST_TRIES:
            break
        if beyond and attempt % 2 and beyond.batch_size - low > low / 8:
            guess = (low + beyond.batch_size) / 2  # a line creeps where memory is not linear
        else:
            at = min(max(at, 1), len(seen) - 1)
            a, grows = seen[at - 1], slope(seen[at - 1], seen[at])
            guess = a.batch_size + (capacity - a.total) / grows if grows else 2.0 * low
        size = max(int(min(guess, LARGEST) // quantum) * quantum, low + quantum)
        if beyond:
            size = min(size, beyond.batch_size - quantum)
        seen = sorted([*seen, measure(size)], key=lambda m: m.batch_size)
    return fits, beyond


def parse_bytes(text: str) -> int:
    """Reads "24GiB" or "16000MB".

    Raises:
      ValueError: it is not written so.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?i?B)", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise ValueError(f"--memory={text!r}: expected a number with its unit, such as 24GiB")
    return int(float(found[1]) * UNITS[found[2].upper()])
