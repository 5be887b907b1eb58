"""Where a block of steps gets its batches from. Both ways give the same batches, bit for bit.

resident  the examples lie on the device; a row names those of a step
packed    the host makes the batches, ahead by tf.data, and a row holds all arrays of a batch as
          one; for examples that do not fit, and for formats that corrupt them anew in each epoch
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.data.batches import Batches, iterate
from scalelab.data.store import ExampleStore
from scalelab.formats import batch_type, lengths_name

Row = dict[str, np.ndarray]  # what the host sends for a step: arrays [B, ...]
Arrays = Mapping[str, Any]
Batch = dict[str, jax.Array]

CHUNK = 64  # steps whose examples are drawn at a time
LARGEST = 2**31 - 1  # numbers on the device have 32 bits


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


# --- Resident ----------------


def stored_arrays(store: ExampleStore) -> dict[str, np.ndarray] | None:
    """Returns the arrays of a store as the device keeps them; None if one is too long for int32.

    Types wider than 32 bits become those of a batch (`batch_type`): tokens and offsets are below
    2^31.
    """
    names = [*store.meta["flat"]]
    for name in store.meta["ragged"]:
        names += [name, f"{name}_starts"]
    arrays = {name: store.array(name) for name in names}
    if any(values.size > LARGEST for values in arrays.values()):
        return None
    wide = {n for n, v in arrays.items() if v.dtype.itemsize > 4 or v.dtype == np.uint32}
    return {n: v.astype(batch_type(v.dtype)) if n in wide else v for n, v in arrays.items()}


def gather(
    arrays: Arrays, ids: jax.Array, ragged: Mapping[str, int], length: int | None = None
) -> Batch:
    """Copies examples into a batch on the device, as `ExampleStore.gather` does on the host.

    Args:
      arrays: of `stored_arrays`.
      ids: [B]; -1 makes a padding example of length 0.
      ragged: name -> width of a batch's rows; the other arrays are flat.
      length: T of `tokens`; None: as in `ragged`.
    """
    is_real = ids >= 0
    safe = jnp.where(is_real, ids, 0)
    batch, flat = {}, set(arrays)
    for name, longest in ragged.items():
        values, starts = arrays[name], arrays[f"{name}_starts"]
        flat -= {name, f"{name}_starts"}
        dtype, tail = batch_type(values.dtype), (1,) * (values.ndim - 1)
        places = jnp.arange(longest if length is None or name != "tokens" else length)
        first = starts[safe]
        lengths = jnp.where(is_real, starts[safe + 1] - first, 0)
        found = jnp.take(values, first[:, None] + places, axis=0, mode="clip").astype(dtype)
        inside = (places < lengths[:, None]).reshape(*found.shape[:2], *tail)
        batch[name] = jnp.where(inside, found, jnp.zeros((), dtype))
        batch[lengths_name(name)] = lengths
    for name in sorted(flat):
        found = arrays[name][safe].astype(batch_type(arrays[name].dtype))
        real = is_real.reshape(-1, *(1,) * (found.ndim - 1))
        batch[name] = jnp.where(real, found, jnp.zeros((), found.dtype))
    return batch


def _resident_batch(
    ragged: Mapping[str, int], arrays: Arrays, row: Mapping[str, jax.Array]
) -> Batch:
    others = {name: values for name, values in row.items() if name != "ids"}
    examples = jnp.arange(len(row["ids"]), dtype=jnp.int32)
    return gather(arrays, row["ids"], ragged) | others | {"examples": examples}


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
    """Packs the arrays of a batch of B examples into one array, int32 [B, W], and unpacks it.

    Args:
      batch: arrays of int32, float32 or bool, each with the same number of rows for each example.
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
    """Returns bool as int32 0 and 1, and the bits of other arrays as int32."""
    return values.astype(np.int32) if values.dtype == np.bool_ else values.view(np.int32)


def packed(
    batches: Batches, loader: str, prefetch: int,
    before_step: Callable[[int, dict[str, np.ndarray]], None] | None = None,
) -> Source:  # fmt: skip
    """Returns batches that the host makes.

    Args:
      batches: this process's rows.
      loader: "tf" or "numpy", see `batches.iterate`.
      prefetch: batches made ahead.
      before_step: called with the step and the batch before it is sent.
    """
    example = batches(batches.first_step)
    del example["num_tokens"]
    layout = Layout(example, len(example["examples"]))

    def pack(step: int, batch: dict[str, np.ndarray]) -> tuple[int, Row]:
        count = int(batch.pop("num_tokens"))
        if before_step is not None:
            before_step(step, batch)
        return count, {"packed": layout.pack(batch)}

    def stream(start: int, stop: int) -> Iterator[tuple[int, Row]]:
        made = iterate(
            batches, start, stop, loader, prefetch
        )  # at once: TensorFlow is slow to import
        return (pack(step, batch) for step, batch in enumerate(made, start))

    row = {"packed": layout.pack(example)}
    return Source({}, layout.batch, stream, row, batches.batch_size)
