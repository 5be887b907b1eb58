"""Finished examples on disk: flat arrays, memory-mapped, so that a corpus may exceed memory."""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scalelab.formats.documents import Examples

VERSION = 1  # of the files
META = "meta.json"
FIELDS = ("boundaries", "num_bytes", "num_text_tokens", "nsp_labels")  # one int32 for each example
BIN_WIDTH = 16  # tokens, of the length histogram


def write(examples: Iterator[Examples], directory: str | os.PathLike[str]) -> None:
    """Writes chunks of examples as they come: a raw file for each array and `meta.json`.

    Args:
      examples: chunks of one split in one format; all with labels, or none.
      directory: an existing folder.
    """
    directory = Path(directory)
    count = num_tokens = 0
    meta: dict = {"dropped_tokens": 0, "num_bytes": 0, "num_text_tokens": 0, "label_counts": None}
    histogram = np.zeros(1, np.int64)
    files: dict = {}

    def append(name: str, values: np.ndarray) -> None:
        if name not in files:
            files[name] = (directory / f"{name}.bin").open("wb")
        values.tofile(files[name])

    try:
        append("starts", np.zeros(1, np.int64))
        for chunk in examples:
            append("tokens", chunk.tokens)
            append("starts", chunk.starts[1:] + num_tokens)
            for name in FIELDS:
                values = getattr(chunk, name)
                if values is not None:
                    append(name, values.astype(np.int32, copy=False))
            histogram = _add(histogram, np.bincount((np.diff(chunk.starts) - 1) // BIN_WIDTH))
            count, num_tokens = count + len(chunk), num_tokens + len(chunk.tokens)
            meta["dtype"] = chunk.tokens.dtype.name
            meta["dropped_tokens"] += int(chunk.dropped_tokens)
            meta["num_bytes"] += int(chunk.num_bytes.sum())
            meta["num_text_tokens"] += int(chunk.num_text_tokens.sum())
            if chunk.nsp_labels is not None:
                labels = np.bincount(chunk.nsp_labels, minlength=2)
                meta["label_counts"] = _add(
                    labels, np.array(meta["label_counts"] or [0, 0])
                ).tolist()
    finally:
        for file in files.values():
            file.close()
    meta |= {"num_examples": count, "num_tokens": num_tokens}
    meta["length_histogram"] = histogram.tolist()
    meta["arrays"] = sorted(files)
    (directory / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Adds counts of different length."""
    total = np.zeros(max(len(a), len(b)), np.int64)
    total[: len(a)] += a
    total[: len(b)] += b
    return total


class ExampleStore:
    """The examples of one split and phase, opened for reading.

    Attributes:
      meta: counts: num_examples, num_tokens (special ones included), num_text_tokens, num_bytes,
        dropped_tokens, label_counts ([label 0, label 1] or None) and length_histogram (examples in
        bins of BIN_WIDTH tokens, the first from 1).
    """

    def __init__(self, arrays: dict[str, np.ndarray], meta: dict) -> None:
        """Wraps arrays: `tokens` flat, `starts` [n + 1], and those of FIELDS that there are."""
        self._arrays = arrays
        self.meta = meta

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> "ExampleStore":
        """Maps what `write` left in `directory`."""
        directory = Path(directory)
        meta = json.loads((directory / META).read_text(encoding="utf-8"))
        dtypes = {"tokens": np.dtype(meta.get("dtype", "uint16")), "starts": np.dtype(np.int64)}
        arrays = {
            name: _map(directory / f"{name}.bin", dtypes.get(name, np.dtype(np.int32)))
            for name in meta["arrays"]
        }
        return cls(arrays, meta)

    def __len__(self) -> int:
        return self.meta["num_examples"]

    def array(self, name: str) -> np.ndarray:
        """An array as it is stored: "tokens", "starts", or one of FIELDS that there is."""
        return self._arrays[name]

    def fingerprint(self) -> str:
        """Eight hexadecimal digits that change when the number or length of examples does."""
        return f"{zlib.crc32(np.ascontiguousarray(self._arrays['starts'])):08x}"

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of each example, special ones included: int64 [B]."""
        starts = self._arrays["starts"]
        return starts[ids + 1] - starts[ids]

    def gather(self, ids: np.ndarray, max_len: int) -> dict[str, np.ndarray]:
        """Copies examples into a padded batch.

        Args:
          ids: [B] which examples; -1 makes a padding example of length 0.
          max_len: T, not less than the longest example.

        Returns:
          `tokens` int32 [B, T], 0 beyond the length; `lengths`, `boundaries`, `num_bytes`,
          `num_text_tokens` and, where there are labels, `nsp_labels`, all int32 [B].
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


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    """Maps a raw file read-only; an empty one cannot be mapped."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r").view(np.ndarray)
