"""A labelled task as token rows, cached, and its batches: bucketed by length, by address."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scalelab.data import cache
from scalelab.data.store import ExampleStore
from scalelab.data.tokenizers import Tokenizer
from scalelab.formats import draws
from scalelab.runs import environment
from scalelab.tasks import rows

VERSION = 1  # of the files in the cache
# Lengths to which rows are padded: few enough to compile one program each.
BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# A GPU or TPU waits for the next step rather than for padding, and compiling takes it longer.
FEW_BUCKETS = (32, 64, 128, 256, 512)


@dataclasses.dataclass(frozen=True)
class TaskExamples:
    """The examples of one split.

    Attributes:
      rows: token rows; those of an example lie one after another.
      labels: [n] int32 classes or float32 scores; None where there are none.
      num_orders: rows of an example.
      truncated: [n] bool, whether a text was cut to fit.
    """

    rows: ExampleStore
    labels: np.ndarray | None
    num_orders: int
    truncated: np.ndarray

    def __len__(self) -> int:
        return len(self.rows) // self.num_orders

    def first(self, most: int | None) -> "TaskExamples":
        """The first examples, at most so many; None: all of them."""
        if most is None or most >= len(self):
            return self
        count = most * self.num_orders
        starts, boundaries = self.rows.array("starts"), self.rows.array("boundaries")
        arrays = {
            "tokens": self.rows.array("tokens")[: starts[count]],
            "starts": starts[: count + 1],
            "boundaries": boundaries[:count],
        }
        labels = None if self.labels is None else self.labels[:most]
        store = ExampleStore(arrays, {"num_examples": count})
        return TaskExamples(store, labels, self.num_orders, self.truncated[:most])

    @property
    def num_truncated(self) -> int:
        """Examples of which a text was cut to fit."""
        return int(self.truncated.sum())

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each example's row; both orders are equally long. [n] int64."""
        return self.rows.lengths(np.arange(len(self)) * self.num_orders)

    def gather(self, ids: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Copies examples into a padded batch.

        Args:
          ids: [B]; -1 makes an example that counts nothing.
          length: T, not less than the longest row.

        Returns:
          For rows: tokens [B * num_orders, T], lengths, boundaries, examples (index in the batch,
          another for each row). For examples: weights [B] float32, and labels [B] if there are any.
        """
        row_ids = ids[:, None] * self.num_orders + np.arange(self.num_orders)
        row_ids = np.where(ids[:, None] >= 0, row_ids, -1).reshape(-1)
        batch = self.rows.gather(row_ids, length)
        batch["examples"] = np.arange(len(row_ids), dtype=np.int32)
        batch["weights"] = (ids >= 0).astype(np.float32)
        if self.labels is not None:
            batch["labels"] = np.where(ids >= 0, self.labels[np.maximum(ids, 0)], 0).astype(
                self.labels.dtype
            )
        return batch


def encode(
    texts: Sequence[list[str]],
    labels: np.ndarray | None,
    tokenizer: Tokenizer,
    frame: rows.Frame,
    *,
    max_len: int,
    both_orders: bool,
    cache_dir: str | os.PathLike[str],
    tokenizer_digest: str,
) -> TaskExamples:
    """Makes, or finds made, the token rows of a split.

    Args:
      texts: one list for each text column, one or two.
      labels: [n], or None.
      tokenizer: of the net.
      frame: ids around the texts.
      max_len: tokens of the longest row.
      both_orders: whether each pair makes a second row, the texts the other way round.
      cache_dir: where prepared data is kept.
      tokenizer_digest: hash of the tokenizer.
    """
    pair = len(texts) == 2

    def build(directory: Path) -> None:
        columns = [tokenizer.encode_batch(column) for column in texts]
        first, second = columns[0], columns[1] if pair else None
        if pair and both_orders:
            first = [ids for both in zip(*columns, strict=True) for ids in both]
            second = [ids for both in zip(*columns, strict=True) for ids in reversed(both)]
        made = rows.assemble(first, second, frame, max_len)
        for field in dataclasses.fields(made):
            np.save(directory / f"{field.name}.npy", getattr(made, field.name))

    key = {
        "texts": [digest(column) for column in texts],
        "tokenizer": tokenizer_digest,
        "frame": dataclasses.asdict(frame),
        "max_len": max_len,
        "both_orders": both_orders,
        "version": [VERSION, rows.VERSION],
    }
    folder = cache.entry(cache_dir, "task", json.loads(json.dumps(key)), build)
    made = rows.Rows(*(np.load(folder / f"{f.name}.npy") for f in dataclasses.fields(rows.Rows)))
    store = ExampleStore(
        {"tokens": made.tokens, "starts": made.starts, "boundaries": made.boundaries},
        {"num_examples": len(made.starts) - 1},
    )
    num_orders = 2 if pair and both_orders else 1
    truncated = made.truncated.reshape(-1, num_orders).any(axis=1)
    return TaskExamples(store, labels, num_orders, truncated)


def digest(texts: list[str]) -> str:
    """SHA-256 of texts in their order; lengths go in, so that no two lists look alike."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded], "<i8")
    return hashlib.sha256(lengths.tobytes() + b"".join(encoded)).hexdigest()


def bucket(length: int, max_len: int) -> int:
    """The least bucket that holds `length` tokens, or `max_len` where that is less."""
    buckets = FEW_BUCKETS if _on_accelerator() else BUCKETS
    return min(next((b for b in buckets if b >= length), max_len), max(max_len, length))


@functools.cache
def _on_accelerator() -> bool:
    return environment.has_accelerator()


class _Epoch(NamedTuple):
    """The batches of an epoch.

    Attributes:
      ids: [S, B] int64, the examples of each; -1 behind the last.
      longest: tokens of the longest row of each.
      tokens: of all examples of each, in one order.
    """

    ids: np.ndarray
    longest: list[int]
    tokens: list[int]


@dataclasses.dataclass(frozen=True)
class TaskBatches:
    """The training batches of a task; batch t is a pure function of (seed, t).

    An epoch holds every example once. Its order is a random permutation; within each stretch of
    `group_batches` batches examples are sorted by length, so that a batch's rows are about equally
    long, and the stretch's batches are shuffled. The epoch's last batch may hold fewer examples.

    Attributes:
      examples: of the training split.
      batch_size: B.
      max_len: the longest bucket.
      seed: of the order.
      group_batches: batches in a stretch; 0: nothing is sorted.
    """

    examples: TaskExamples
    batch_size: int
    max_len: int
    seed: int
    group_batches: int

    def __post_init__(self) -> None:
        if len(self.examples) < self.batch_size:
            raise ValueError(
                f"there are {len(self.examples)} training examples, fewer than one batch of"
                f" {self.batch_size}; use a smaller --config.batch_size"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the last one included."""
        return -(-len(self.examples) // self.batch_size)

    @functools.cached_property
    def _epoch(self) -> Callable[[int], "_Epoch"]:
        """The batches of an epoch; the last one asked for is remembered."""
        return functools.lru_cache(maxsize=1)(self._plan)

    def _plan(self, epoch: int) -> "_Epoch":
        rng = np.random.Generator(np.random.Philox(key=draws.key(self.seed, epoch)))
        order = rng.permutation(len(self.examples))
        size, lengths = self.batch_size, self.examples.lengths
        whole = len(order) - len(order) % size
        stretch = size * (self.group_batches or 1)
        batches = np.full((self.steps_per_epoch, size), -1)
        batches.reshape(-1)[: len(order)] = order
        if self.group_batches:
            for start in range(0, whole, stretch):
                ids = order[start : min(start + stretch, whole)]
                ids = ids[np.argsort(lengths[ids], kind="stable")].reshape(-1, size)
                batches[start // size : start // size + len(ids)] = rng.permutation(ids)
        tokens = np.where(batches >= 0, lengths[batches], 0)
        return _Epoch(batches, tokens.max(axis=1).tolist(), tokens.sum(axis=1).tolist())

    def _at(self, step: int) -> tuple["_Epoch", int]:
        """The epoch of a step, and the step's place in it."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch), place

    def ids(self, step: int) -> np.ndarray:
        """Which examples make batch `step`: [B] int64, -1 behind the last of an epoch."""
        epoch, place = self._at(step)
        return epoch.ids[place]

    def length(self, step: int) -> int:
        """The bucket of batch `step`."""
        epoch, place = self._at(step)
        return bucket(epoch.longest[place], self.max_len)

    def num_tokens(self, step: int) -> int:
        """Tokens in all rows of batch `step`, special ones included, padding not."""
        epoch, place = self._at(step)
        return epoch.tokens[place] * self.examples.num_orders

    def __call__(self, step: int, length: int | None = None) -> dict[str, np.ndarray]:
        """Batch `step`, padded to its bucket or to `length`; see `TaskExamples.gather`."""
        return self.examples.gather(self.ids(step), length or self.length(step))


def evaluation_batches(
    examples: TaskExamples, batch_size: int, max_len: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Every example exactly once, the short ones first: (ids [B], batch); -1 fills the last."""
    order = np.argsort(examples.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        ids = order[start : start + batch_size]
        length = bucket(int(examples.lengths[ids].max()), max_len)
        ids = np.pad(ids, (0, batch_size - len(ids)), constant_values=-1)
        yield ids, examples.gather(ids, length)
