"""Where the examples of a run lie while it trains: on the devices if they fit, else on the host."""

from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh

from scalelab import sharding
from scalelab.config.pretraining import Machine
from scalelab.data import sources
from scalelab.data.batches import Batches
from scalelab.data.phases import PhaseData
from scalelab.data.sources import Source
from scalelab.resources import malloc

SHARE = 0.25  # share of a device's memory that examples may take
BLOCK_BYTES = 2**26  # most that the rows of one block may take
MOST_STEPS = 64  # most steps of a block


def free_bytes(mesh: Mesh) -> float:
    """Returns the memory of a device that examples may take; infinite if it is not known."""
    if "bytes_limit" in (stats := mesh.local_devices[0].memory_stats() or {}):
        return SHARE * stats["bytes_limit"]
    free = malloc.available()
    return np.inf if free is None else SHARE * free / len(mesh.local_devices)


def block_size(source: Source) -> int:
    """Returns the most steps of a block: MOST_STEPS, or fewer where rows are large."""
    row_bytes = sum(values.nbytes for values in source.row.values())
    return max(1, min(MOST_STEPS, BLOCK_BYTES // row_bytes))


def place(
    phase: PhaseData, batches: Batches, machine: Machine, mesh: Mesh,
    say: Callable[[str], object],
    before_step: Callable[[int, dict[str, np.ndarray]], None] | None = None,
) -> Source:  # fmt: skip
    """Returns a phase's training batches.

    Args:
      phase: the stored examples.
      batches: this process's rows of the batches.
      machine: config.machine.
      mesh: the devices.
      say: tells that the examples do not fit.
      before_step: see `sources.packed`; it needs the batches on the host.
    """
    if machine.loader == "device" and phase.corrupt is None and before_step is None:
        arrays, free = sources.stored_arrays(phase.train), free_bytes(mesh)
        size = np.inf if arrays is None else sum(values.nbytes for values in arrays.values())
        if arrays is not None and size <= free:
            return sources.resident(batches, sharding.replicate(arrays, mesh))
        sizes = f"{size / 1e9:,.2f} GB of examples, and {free / 1e9:,.2f} GB may lie on the device"
        say(f"the host makes the batches: {sizes}")
    loader = "numpy" if machine.loader == "numpy" else "tf"
    return sources.packed(batches, loader, machine.prefetch, before_step)
