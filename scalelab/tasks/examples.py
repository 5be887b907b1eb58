"""A labeled task as token rows with special tokens, cached."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from scalelab.data.cache import entry
from scalelab.data.store import ExampleStore
from scalelab.data.tokenizers import Tokenizer
from scalelab.formats import Frame

VERSION = [2, 1]  # version of the files in the cache, and of `assemble`'s rows


@dataclasses.dataclass(frozen=True)
class TaskExamples:
    """The examples of one split."""

    rows: ExampleStore  # token rows; the rows of an example are consecutive
    # [n] int32 classes or float32 scores, or [n, k] positions; None without labels.
    labels: np.ndarray | None
    num_rows: int  # rows of an example
    truncated: np.ndarray  # [n] bool, whether a text was cut to fit
    # int32 classes of tokens from 1, aligned with the tokens of `rows`; 0: the token has no class.
    piece_labels: np.ndarray | None = None
    # Arrays for decoding the outputs; batches do not have them, and `first` drops them.
    facts: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    beside: np.ndarray | None = None  # [n], number of further tokens that the model reads; None: 0

    def __len__(self) -> int:
        return len(self.rows) // self.num_rows

    def first(self, most: int | None) -> "TaskExamples":
        """Returns the first `most` examples; None: all."""
        if most is None or most >= len(self):
            return self
        count = most * self.num_rows
        starts = self.rows.arrays["tokens_starts"]
        arrays = {
            "tokens": self.rows.arrays["tokens"][: starts[count]],
            "tokens_starts": starts[: count + 1],
            "second_starts": self.rows.arrays["second_starts"][:count],
        }
        labels = None if self.labels is None else self.labels[:most]
        pieces = None if self.piece_labels is None else self.piece_labels[: starts[count]]
        cut = self.truncated[:most]
        beside = None if self.beside is None else self.beside[:most]
        return TaskExamples(store_of(arrays), labels, self.num_rows, cut, pieces, beside=beside)

    @property
    def num_truncated(self) -> int:
        """Number of examples with a text that was cut to fit."""
        return int(self.truncated.sum())

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each example's longest row: [n] int64."""
        return self._row_lengths.max(axis=1)

    @functools.cached_property
    def num_tokens(self) -> np.ndarray:
        """Tokens of each example that the model reads: [n] int64."""
        return self._row_lengths.sum(axis=1) + (0 if self.beside is None else self.beside)

    @property
    def _row_lengths(self) -> np.ndarray:
        return self.rows.lengths(np.arange(len(self.rows))).reshape(-1, self.num_rows)

    def gather(self, ids: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Copies examples into a padded batch.

        Args:
          ids: [B]; -1 makes an example of weight 0.
          length: T, at least the length of the longest row.

        Returns:
          For rows: tokens [B * num_rows, T], lengths, second_starts, examples (index of the row
          in the batch). For examples: weights [B] float32, and optional labels: [B, ...], or
          [B, T] of tokens.
        """
        row_ids = ids[:, None] * self.num_rows + np.arange(self.num_rows)
        row_ids = np.where(ids[:, None] >= 0, row_ids, -1).reshape(-1)
        batch = self.rows.gather(row_ids, length)
        batch["examples"] = np.arange(len(row_ids), dtype=np.int32)
        batch["weights"] = (ids >= 0).astype(np.float32)
        if self.labels is not None:
            batch["labels"] = self.labels[np.maximum(ids, 0)]
            batch["labels"][ids < 0] = 0
        if self.piece_labels is not None:
            starts = self.rows.arrays["tokens_starts"]
            aligned = {"tokens": self.piece_labels, "tokens_starts": starts}
            store = ExampleStore(aligned, self.rows.meta)
            batch["labels"] = store.gather(row_ids, length)["tokens"]
        return batch


@dataclasses.dataclass(frozen=True)
class Reading:
    """The tokenizer and frame by which a model reads texts, and the cache of token rows."""

    tokenizer: Tokenizer
    frame: Frame  # the special ids around texts
    max_len: int  # tokens of the longest row; longer texts are cut
    cache_dir: str | os.PathLike[str]
    tokenizer_digest: str
    start: int | None = None  # id that begins a text after a source; None: the model has no source

    def cached(
        self,
        texts: Sequence[list[str]],
        made_by: Mapping[str, object],
        make: Callable[[], dict[str, np.ndarray]],
    ) -> dict[str, np.ndarray]:
        """Returns arrays, cached by texts, tokenizer, frame and `made_by`.

        Args:
          texts: a list for each text column.
          made_by: plain JSON, what else the arrays depend on.
          make: makes the arrays.
        """

        def build(directory: Path) -> None:
            for name, array in make().items():
                np.save(directory / f"{name}.npy", array)

        key = {
            "texts": [digest(column) for column in texts],
            "tokenizer": self.tokenizer_digest,
            "frame": dataclasses.asdict(self.frame),
            "max_len": self.max_len,
            **made_by,
            "version": VERSION,
        }
        folder = entry(self.cache_dir, "task", json.loads(json.dumps(key)), build)
        return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def encode(
    texts: Sequence[list[str]], labels: np.ndarray | None, reading: Reading, *, both_orders: bool
) -> TaskExamples:
    """Makes the token rows of a split, or reads them from the cache.

    Args:
      texts: a list for each text column.
      labels: as `TaskExamples.labels`.
      reading: tokenizer, frame and longest row.
      both_orders: whether each pair makes a second row with the texts exchanged.
    """
    num_rows = 2 if len(texts) == 2 and both_orders else 1

    def make() -> dict[str, np.ndarray]:
        first, *others = [reading.tokenizer.encode_batch(column) for column in texts]
        second = others[0] if others else None
        if second is not None and both_orders:
            pairs = list(zip(first, second, strict=True))
            first = [ids for pair in pairs for ids in pair]
            second = [ids for pair in pairs for ids in reversed(pair)]
        return assemble(first, second, reading.frame, reading.max_len)

    made = reading.cached(texts, {"both_orders": both_orders}, make)
    truncated = made.pop("truncated").reshape(-1, num_rows).any(axis=1)
    return TaskExamples(store_of(made), labels, num_rows, truncated)


def store_of(arrays: dict[str, np.ndarray]) -> ExampleStore:
    """Wraps rows: tokens, tokens_starts and second_starts as `assemble` makes them."""
    lengths = np.diff(arrays["tokens_starts"])
    return ExampleStore(arrays, {"ragged": {"tokens": int(lengths.max(initial=0))}})


def kept_lengths(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Truncates pairs longest-first: the longer text loses its last token until both fit.

    If both are equally long, the second text loses one, as in `transformers`.

    Args:
      first: [n] int, tokens of the first texts.
      second: [n] int, tokens of the second texts.
      room: most tokens of both together.

    Returns:
      The kept lengths, [n] each.
    """
    kept = np.minimum(first, np.maximum(room - second, room - room // 2))
    return kept, np.minimum(second, room - kept)


def assemble(
    first: list[np.ndarray], second: list[np.ndarray] | None, frame: Frame, max_len: int
) -> dict[str, np.ndarray]:
    """Joins each example's texts: begin a end, or begin a between b end.

    Args:
      first: ids of each first text.
      second: ids of each second text; None: a task of single texts.
      frame: the special ids around them.
      max_len: maximum number of tokens of a row; longer texts are cut.

    Returns:
      tokens: ids of all rows, special tokens included, int32.
      tokens_starts: [n + 1] int64, offsets into `tokens`.
      second_starts: [n] int32, index of the second text's first token in the row; the row's length
        for a single text.
      truncated: [n] bool, whether a text was cut to fit.

    Raises:
      ValueError: the special tokens alone do not fit.
    """
    special = len(frame.begin) + len(frame.end) + (len(frame.between) if second is not None else 0)
    room = max_len - special
    if room < 1:
        raise ValueError(
            f"max_len = {max_len} leaves no room for text beside {special} special tokens"
        )
    lengths = np.array([len(ids) for ids in first], np.int64)
    second_lengths = np.array([len(ids) for ids in second or [()] * len(first)], np.int64)
    if second is None:
        kept, kept_second = np.minimum(lengths, room), second_lengths
    else:
        kept, kept_second = kept_lengths(lengths, second_lengths, room)
    begin, between, end = (list(ids) for ids in (frame.begin, frame.between, frame.end))
    pieces: list[np.ndarray | list[int]] = []
    for i, ids in enumerate(first):
        pieces += [begin, ids[: kept[i]]]
        if second is not None:
            pieces += [between, second[i][: kept_second[i]]]
        pieces.append(end)
    totals = kept + kept_second + special
    starts = np.zeros(len(first) + 1, np.int64)
    np.cumsum(totals, out=starts[1:])
    second_starts = totals if second is None else len(begin) + kept + len(between)
    flat = [np.asarray(p, np.int32) for p in pieces] or [np.zeros(0, np.int32)]
    return {
        "tokens": np.concatenate(flat),
        "tokens_starts": starts,
        "second_starts": second_starts.astype(np.int32),
        "truncated": (kept < lengths) | (kept_second < second_lengths),
    }


def digest(texts: list[str]) -> str:
    """Returns the SHA-256 of texts in their order and of their lengths."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded], "<i8")
    return hashlib.sha256(lengths.tobytes() + b"".join(encoded)).hexdigest()
