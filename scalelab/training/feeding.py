"""Where the examples of a run lie while it trains. All ways give the same batches, bit for bit.

resident  the examples lie on the device, if they fit; a row names those of a step
packed    the host makes the batches ahead, and a row holds all arrays of a batch as one; also for
          formats that corrupt examples anew in each epoch
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scalelab import sharding
from scalelab.config.pretraining import Machine
from scalelab.data.batches import Batches, iterate
from scalelab.data.phases import PhaseData
from scalelab.data.store import ExampleStore, gather
from scalelab.formats import batch_type
from scalelab.resources import host

Row = dict[str, np.ndarray]  # what the host sends for a step: arrays [B, ...]
Arrays = Mapping[str, Any]
Batch = dict[str, jax.Array]

CHUNK = 64  # steps whose examples are drawn at a time
LARGEST = 2**31 - 1  # numbers on the device have 32 bits
SHARE = 0.25  # share of a device's memory that examples may take
BLOCK_BYTES = 2**26  # most that the rows of one block may take
MOST_STEPS = 64  # most steps of a block


class Source(NamedTuple):
    """The batches of a phase, as the device reads them.

    Attributes:
      arrays: on the device during the whole phase.
      batch: (arrays, row) -> the batch of a row; device code.
      stream: (start, stop) -> (tokens without padding, row) of each step.
      row: an example of a row.
      batch_size: B, where a row has this process's part of the batch alone; None: it is whole.
    """

    arrays: Arrays
    batch: Callable[[Arrays, Mapping[str, jax.Array]], Batch]
    stream: Callable[[int, int], Iterator[tuple[int, Row]]]
    row: Row
    batch_size: int | None

    @property
    def most_steps(self) -> int:
        """The most steps of a block: MOST_STEPS, or fewer where rows are large."""
        row_bytes = sum(values.nbytes for values in self.row.values())
        return max(1, min(MOST_STEPS, BLOCK_BYTES // row_bytes))


def free_bytes(mesh: Mesh) -> float:
    """Returns the memory of a device that examples may take; infinite if it is not known."""
    if "bytes_limit" in (stats := mesh.local_devices[0].memory_stats() or {}):
        return SHARE * stats["bytes_limit"]
    free = host.available()
    return np.inf if free is None else SHARE * free / len(mesh.local_devices)


def place(
    phase: PhaseData, batches: Batches, machine: Machine, mesh: Mesh,
    say: Callable[[str], object],
) -> Source:  # fmt: skip
    """Returns a phase's training batches.

    Args:
      phase: the stored examples.
      batches: this process's rows of the batches.
      machine: config.machine.
      mesh: the devices.
      say: tells that the examples do not fit.
    """
    if machine.loader == "device" and phase.corrupt is None:
        arrays, free = stored_arrays(phase.train), free_bytes(mesh)
        size = np.inf if arrays is None else sum(values.nbytes for values in arrays.values())
        if arrays is not None and size <= free:
            return resident(batches, sharding.replicate(arrays, mesh))
        sizes = f"{size / 1e9:,.2f} GB of examples, and {free / 1e9:,.2f} GB may lie on the device"
        say(f"the host makes the batches: {sizes}")
    loader = "numpy" if machine.loader == "numpy" else "tf"
    return packed(batches, loader, machine.prefetch)


# --- Resident ----------------


def stored_arrays(store: ExampleStore) -> dict[str, np.ndarray] | None:
    """Returns the arrays of a store in their types on the device; None: 32 bits cannot count one.

    A wide type becomes that of a batch: tokens and offsets are below 2^31.
    """
    names = [*store.meta["flat"]]
    for name in store.meta["ragged"]:
        names += [name, f"{name}_starts"]
    arrays = {name: store.array(name) for name in names}
    if any(values.size > LARGEST for values in arrays.values()):
        return None
    wide = {n for n, v in arrays.items() if v.dtype.itemsize > 4 or v.dtype == np.uint32}
    return {n: v.astype(batch_type(v.dtype)) if n in wide else v for n, v in arrays.items()}


def _resident_batch(
    ragged: Mapping[str, int], arrays: Arrays, row: Mapping[str, jax.Array]
) -> Batch:
    others = {name: values for name, values in row.items() if name != "ids"}
    examples = jnp.arange(len(row["ids"]), dtype=jnp.int32)
    return gather(arrays, row["ids"], ragged, xp=jnp) | others | {"examples": examples}


def resident(batches: Batches, arrays: Arrays) -> Source:
    """Returns batches of examples whose arrays lie on the device."""

    def stream(start: int, stop: int) -> Iterator[tuple[int, Row]]:
        for first in range(start, stop, CHUNK):
            ids, epochs = batches.address(np.arange(first, min(first + CHUNK, stop)))
            tokens = batches.store.lengths(ids, batches.counted_arrays).sum(axis=1).tolist()
            rows = {"ids": ids.astype(np.int32), **batches.mask_ids(ids, epochs)}
            for k, count in enumerate(tokens):
                yield count, {name: values[k] for name, values in rows.items()}

    read = functools.partial(_resident_batch, batches.store.meta["ragged"])
    (_, row), *_ = stream(batches.first_step, batches.first_step + 1)
    return Source(arrays, read, stream, row, None)


# --- Packed ----------------


class Layout:
    """How the arrays of a batch of B examples lie in one: int32 [B, W].

    Args:
      batch: arrays of int32, float32 or bool, each with a whole number of rows an example.
      batch_size: B.
    """

    def __init__(self, batch: dict[str, np.ndarray], batch_size: int) -> None:
        self._tails = {name: (values.shape[1:], values.dtype) for name, values in batch.items()}
        self._edges = np.cumsum([0, *(x.size // batch_size for x in batch.values())]).tolist()
        assert all(x.dtype == batch_type(x.dtype) for x in batch.values())

    def pack(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """Joins the arrays of a batch."""
        widths = np.diff(self._edges).tolist()
        parts = [
            _words(np.ascontiguousarray(batch[name])).reshape(-1, width)
            for name, width in zip(self._tails, widths, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def batch(self, arrays: Arrays, row: Mapping[str, jax.Array]) -> Batch:
        """Takes a packed batch apart, on the device."""
        del arrays
        made, edges = {}, self._edges
        parts = zip(self._tails.items(), edges[:-1], edges[1:], strict=True)
        for (name, (tail, dtype)), begin, end in parts:
            values = row["packed"][:, begin:end].reshape(-1, *tail)
            is_bool = dtype == np.bool_
            made[name] = values != 0 if is_bool else jax.lax.bitcast_convert_type(values, dtype)
        return made


def _words(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int32) if values.dtype == np.bool_ else values.view(np.int32)


def packed(batches: Batches, loader: str, prefetch: int) -> Source:
    """Returns batches that the host makes.

    Args:
      batches: this process's rows.
      loader: "tf" or "numpy", see `batches.iterate`.
      prefetch: batches made ahead.
    """
    example = batches(batches.first_step)
    del example["num_tokens"]
    layout = Layout(example, len(example["examples"]))

    def make(step: int) -> Row:
        batch = batches(step)
        count = batch.pop("num_tokens")
        return {"packed": layout.pack(batch), "num_tokens": count}

    def stream(start: int, stop: int) -> Iterator[tuple[int, Row]]:
        # Not a generator: TensorFlow is slow to import, and is so at once.
        made = iterate(make, start, stop, loader, prefetch)
        return ((int(row.pop("num_tokens")), row) for row in made)

    row = {"packed": layout.pack(example)}
    return Source({}, layout.batch, stream, row, batches.batch_size)
