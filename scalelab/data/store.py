"""Arrays and examples on disk: appended piece by piece, then memory-mapped."""

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from scalelab.formats import Examples

VERSION = 2  # of the files
META = "meta.json"
FIELDS = ("boundaries", "num_bytes", "num_text_tokens", "nsp_labels")  # int32, one an example
BIN_WIDTH = 16  # tokens, of the length histogram


class ArrayWriter:
    """Writes a one-dimensional `.npy` file piece by piece, as a context manager.

    Plain writes, not a memory map: on a full disk a write raises an error, a map kills the process.
    """

    def __init__(self, path: Path, dtype: np.typing.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        """Appends values [n], which must fit the type."""
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
        header = {"descr": descr, "fortran_order": False, "shape": (self.length,)}
        npy.write_array_header_1_0(self._file, header)


def load_array(path: Path) -> np.ndarray:
    """Maps an array; reads an empty one, which cannot be mapped."""
    array = np.load(path, mmap_mode="r")
    return array if array.size else np.asarray(array)


def write(examples: Iterator[Examples], directory: str | os.PathLike[str]) -> None:
    """Writes chunks of examples of one format: a `.npy` file for each array, and `meta.json`."""
    directory = Path(directory)
    writers: dict[str, ArrayWriter] = {}
    num_tokens = dropped_tokens = 0
    with contextlib.ExitStack() as stack:

        def append(name: str, values: np.ndarray, dtype: np.typing.DTypeLike) -> None:
            if name not in writers:
                path = directory / f"{name}.npy"
                writers[name] = stack.enter_context(ArrayWriter(path, dtype))
            writers[name].append(values)

        append("starts", np.zeros(1), np.int64)
        for chunk in examples:
            append("tokens", chunk.tokens, chunk.tokens.dtype)
            append("starts", chunk.starts[1:] + num_tokens, np.int64)
            for name in FIELDS:
                values = getattr(chunk, name)
                if values is not None:
                    append(name, values, np.int32)
            num_tokens += len(chunk.tokens)
            dropped_tokens += int(chunk.dropped_tokens)
    arrays = {name: load_array(directory / f"{name}.npy") for name in sorted(writers)}
    labels = arrays.get("nsp_labels")
    meta = {
        "dropped_tokens": dropped_tokens,
        "num_bytes": int(np.sum(arrays.get("num_bytes", 0), dtype=np.int64)),
        "num_text_tokens": int(np.sum(arrays.get("num_text_tokens", 0), dtype=np.int64)),
        "label_counts": None if labels is None else np.bincount(labels, minlength=2).tolist(),
        "num_examples": len(arrays["starts"]) - 1,
        "num_tokens": num_tokens,
        "length_histogram": np.bincount(
            (np.diff(arrays["starts"]) - 1) // BIN_WIDTH, minlength=1
        ).tolist(),
        "arrays": list(arrays),
    }
    (directory / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


class ExampleStore:
    """The examples of one split and phase, opened for reading.

    `meta` has num_examples, num_tokens (special ones included), num_text_tokens, num_bytes,
    dropped_tokens, label_counts ([label 0, label 1] or None) and length_histogram (examples in bins
    of BIN_WIDTH tokens, the first from 1).
    """

    def __init__(self, arrays: dict[str, np.ndarray], meta: dict) -> None:
        """Wraps arrays: `tokens` flat, `starts` [n + 1], and the FIELDS that the format has."""
        self._arrays = arrays
        self.meta = meta

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> "ExampleStore":
        """Memory-maps the files that `write` left in `directory`."""
        directory = Path(directory)
        meta = json.loads((directory / META).read_text(encoding="utf-8"))
        arrays = {name: load_array(directory / f"{name}.npy") for name in meta["arrays"]}
        # A plain view: indexing a memory map costs several times as much.
        return cls({name: array.view(np.ndarray) for name, array in arrays.items()}, meta)

    def __len__(self) -> int:
        return self.meta["num_examples"]

    def array(self, name: str) -> np.ndarray:
        """Returns an array as it is stored: "tokens", "starts", or one of FIELDS."""
        return self._arrays[name]

    def fingerprint(self) -> str:
        """Eight hexadecimal digits that change when the number or length of examples does."""
        return f"{zlib.crc32(np.ascontiguousarray(self._arrays['starts'])):08x}"

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of each example, special ones included: int64 [B]."""
        starts = self._arrays["starts"]
        return starts[ids + 1] - starts[ids]

    def gather(self, ids: np.ndarray, max_len: int) -> dict[str, np.ndarray]:
        """Copies examples `ids` [B] into a padded batch; -1 makes a padding example of length 0.

        Returns:
          `tokens` int32 [B, T = max_len], 0 beyond the length; `lengths` and the FIELDS that the
          format has, all int32 [B].
        """
        is_real = ids >= 0
        safe = np.where(is_real, ids, 0)
        starts = self._arrays["starts"]
        first = starts[safe]
        lengths = np.where(is_real, starts[safe + 1] - first, 0)
        if len(lengths) and lengths.max() > max_len:
            raise ValueError(f"an example has {lengths.max()} tokens, the batch holds {max_len}")
        tokens = np.zeros((len(ids), max_len), np.int32)
        mask = np.arange(max_len) < lengths[:, None]
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        at = np.arange(total) + np.repeat(first - (ends - lengths), lengths)
        tokens[mask] = self._arrays["tokens"][at]
        batch = {"tokens": tokens, "lengths": lengths.astype(np.int32)}
        for name in FIELDS:
            if name in self._arrays:
                batch[name] = np.where(is_real, self._arrays[name][safe], 0).astype(np.int32)
        return batch
