"""Arrays and examples on disk: appended piece by piece, then memory-mapped."""

import contextlib
import dataclasses
import json
import os
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from scalelab.formats import Array, Examples, batch_type, lengths_name

VERSION = 3  # version of the files
META = "meta.json"


class ArrayWriter:
    """Writes an `.npy` file piece by piece, as a context manager.

    Plain writes, not a memory map: on a full disk a write raises an error, a map kills the process.
    """

    def __init__(self, path: Path, dtype: np.typing.DTypeLike, item: tuple[int, ...] = ()) -> None:
        self.dtype, self.item = np.dtype(dtype), item
        self.length = 0
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        """Appends values [n, *item], which must fit the type."""
        self._file.write(np.ascontiguousarray(values, self.dtype).data)
        self.length += len(values)

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()  # numpy leaves room for a longer shape

    def _write_header(self) -> None:
        descr = npy.dtype_to_descr(self.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.length, *self.item)}
        npy.write_array_header_1_0(self._file, header)


def load_array(path: Path) -> np.ndarray:
    """Maps an array; reads an empty one, which cannot be mapped."""
    array = np.load(path, mmap_mode="r")
    return array if array.size else np.asarray(array)


def write(
    examples: Iterator[Examples],
    directory: str | os.PathLike[str],
    arrays: Iterable[Array],
    max_len: int,
) -> None:
    """Writes chunks of examples: `.npy` files for each declared array, and `meta.json`.

    A ragged array X has the files X and X_starts.

    Args:
      examples: chunks of a format.
      directory: an existing folder.
      arrays: the declared arrays on disk.
      max_len: tokens of the longest example, special tokens included.

    Raises:
      ValueError: the examples do not have exactly the declared arrays, types and shapes.
    """
    directory, declared = Path(directory), tuple(arrays)
    ragged = {a.name: a.shape(max_len, 1)[1] for a in declared if a.kind == "ragged"}
    writers: dict[str, ArrayWriter] = {}
    dropped_tokens = 0
    with contextlib.ExitStack() as stack:

        def append(name: str, values: np.ndarray) -> None:
            if name not in writers:
                made = ArrayWriter(directory / f"{name}.npy", values.dtype, values.shape[1:])
                writers[name] = stack.enter_context(made)
            writers[name].append(values)

        for name in ragged:
            append(f"{name}_starts", np.zeros(1, np.int64))
        for chunk in examples:
            _check(chunk, declared)
            for array in declared:
                if array.kind == "flat":
                    append(array.name, array.cast(chunk.flat[array.name]))
                else:
                    rows = chunk.ragged[array.name]
                    append(array.name, array.cast(rows.values))
                    before = writers[array.name].length - len(rows.values)
                    append(f"{array.name}_starts", rows.starts[1:].astype(np.int64) + before)
            dropped_tokens += int(chunk.dropped_tokens)
    meta = {
        "dropped_tokens": dropped_tokens,
        "files": sorted(writers),
        "flat": [array.name for array in declared if array.kind == "flat"],
        "ragged": ragged,
    }
    (directory / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _check(chunk: Examples, declared: Iterable[Array]) -> None:
    """Raises ValueError if arrays are missing or undeclared, or have not one row per example."""
    kinds = {array.name: array.kind for array in declared}
    made = dict.fromkeys(chunk.flat, "flat") | dict.fromkeys(chunk.ragged, "ragged")
    for name in kinds | made:
        if made.get(name) != kinds.get(name):
            found, expected = made.get(name, "nothing"), kinds.get(name, "nothing")
            raise ValueError(f"array {name!r}: the format makes {found}, declared: {expected}")
        count = len(chunk.flat[name] if made[name] == "flat" else chunk.ragged[name].starts[1:])
        if count != len(chunk):
            raise ValueError(f"array {name!r}: {count} rows for {len(chunk)} examples")


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleStore:
    """The examples of one split and phase, opened for reading."""

    # Flat arrays X [n, ...], and ragged ones as X [items, ...] and X_starts [n + 1].
    arrays: dict[str, np.ndarray]
    # ragged (name -> longest row of a batch), and from `write` flat (names) and dropped_tokens.
    meta: dict[str, Any]

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> "ExampleStore":
        """Memory-maps the files that `write` left in `directory`."""
        directory = Path(directory)
        meta = json.loads((directory / META).read_text(encoding="utf-8"))
        arrays = {name: load_array(directory / f"{name}.npy") for name in meta["files"]}
        # A plain view: indexing a memory map costs several times as much.
        return cls({name: array.view(np.ndarray) for name, array in arrays.items()}, meta)

    def __len__(self) -> int:
        return len(self.arrays["tokens_starts"]) - 1

    def fingerprint(self) -> str:
        """Eight hexadecimal digits that change when the number or length of examples does."""
        return f"{zlib.crc32(np.ascontiguousarray(self.arrays['tokens_starts'])):08x}"

    def lengths(self, ids: np.ndarray, names: Iterable[str] = ("tokens",)) -> np.ndarray:
        """Returns the number of items of each example, special tokens included: int64 [B].

        Args:
          ids: [B] int, indices of examples.
          names: ragged arrays whose items are summed.
        """
        offsets = [self.arrays[f"{name}_starts"] for name in names]
        return np.sum([starts[ids + 1] - starts[ids] for starts in offsets], axis=0)

    def gather(self, ids: np.ndarray, length: int | None = None) -> dict[str, np.ndarray]:
        """Copies examples into a batch, see the function `gather`.

        Args:
          ids: [B] int, indices of examples; -1: an empty row.
          length: T of the tokens; None: the declared one.
        """
        return gather(self.arrays, ids, self.meta["ragged"], length)


def gather(
    arrays: Mapping[str, Any],
    ids: Any,
    ragged: Mapping[str, int],
    length: int | None = None,
    xp: types.ModuleType = np,
) -> dict[str, Any]:
    """Copies examples into a batch as `formats.Array` describes it.

    Args:
      arrays: the flat arrays X [n, ...], and X with X_starts [n + 1] of the ragged ones.
      ids: [B]; -1 makes a padding example of length 0.
      ragged: name -> width of a batch's rows; the other arrays are flat.
      length: T of `tokens`; None: as in `ragged`.
      xp: numpy, or jax.numpy for arrays on a device.

    Raises:
      ValueError: on the host, if a row is longer than its width.
    """
    is_real = ids >= 0
    safe = xp.where(is_real, ids, 0)
    batch, flat = {}, set(arrays)
    for name, longest in ragged.items():
        values, starts = arrays[name], arrays[f"{name}_starts"]
        flat -= {name, f"{name}_starts"}
        width = longest if length is None or name != "tokens" else length
        first, places = starts[safe], xp.arange(width)
        lengths = xp.where(is_real, starts[safe + 1] - first, 0)
        if xp is np and lengths.max(initial=0) > width:
            raise ValueError(f"an example has {lengths.max()} {name}, the batch holds {width}")
        if not len(values):
            values = xp.zeros((1, *values.shape[1:]), values.dtype)
        dtype, tail = batch_type(values.dtype), (1,) * (values.ndim - 1)
        found = xp.take(values, first[:, None] + places, axis=0, mode="clip").astype(dtype)
        inside = (places < lengths[:, None]).reshape(*found.shape[:2], *tail)
        batch[name] = xp.where(inside, found, xp.zeros((), dtype))
        batch[lengths_name(name)] = lengths.astype(np.int32)
    for name in sorted(flat):
        found = arrays[name][safe].astype(batch_type(arrays[name].dtype))
        real = is_real.reshape(-1, *(1,) * (found.ndim - 1))
        batch[name] = xp.where(real, found, xp.zeros((), found.dtype))
    return batch


# --- A batch as one array ----------------

Row = dict[str, np.ndarray]  # what the host sends for a step: arrays [B, ...]
Arrays = Mapping[str, Any]  # on the device


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

    def batch(self, arrays: Arrays, row: Arrays) -> dict[str, Any]:
        """Takes a packed batch apart, on the device.

        Args:
          arrays: unused, as the packed row has all.
          row: {"packed": int32 [B, W]}.

        Returns:
          The arrays of the batch.
        """
        import jax  # the processes that prepare data need none

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
