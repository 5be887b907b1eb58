"""Batches by address: batch t is a pure function of (seed, t).

The order of an epoch is a keyed permutation of [0, n), computed where it is needed, so that it
takes no memory and a restart at any step costs nothing. It is the generalised Feistel network of
Black and Rogaway 2002 ("Ciphers with arbitrary finite domains", section 5): places are pairs (left,
right) in [0, a) x [0, b) with a b just above n, each half is shifted in turn by a function of the
other, and a place that lands at n or beyond is sent on until it lands below.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from scalelab.data.store import ExampleStore
from scalelab.formats import draws

NUM_ROUNDS = 3  # each shifts both halves
ROUND_CONSTANT = np.uint64(0xD1342543DE82EF95)


def permute(places: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Sends places to places by the permutation of [0, size) that belongs to each key.

    Args:
      places: [B] int64 in [0, size).
      size: how many places there are.
      keys: [B] uint64; places with the same key share a permutation.

    Returns:
      [B] int64 in [0, size).
    """
    num_left = np.uint64(math.isqrt(max(size - 1, 0)) + 1)
    num_right = np.uint64(-(-size // int(num_left)))
    values = _shuffle(places.astype(np.uint64), num_left, num_right, keys)
    while (outside := values >= size).any():
        values[outside] = _shuffle(values[outside], num_left, num_right, keys[outside])
    return values.astype(np.int64)


def _shuffle(
    values: np.ndarray, num_left: np.uint64, num_right: np.uint64, keys: np.ndarray
) -> np.ndarray:
    """Permutes [0, num_left * num_right)."""
    left, right = np.divmod(values, num_right)
    for _ in range(NUM_ROUNDS):
        keys = keys + ROUND_CONSTANT
        left = (left + draws.mix(right + keys)) % num_left
        keys = keys + ROUND_CONSTANT
        right = (right + draws.mix(left + keys)) % num_right
    return left * num_right + right


@dataclasses.dataclass(frozen=True)
class Batches:
    """The endless training batches of a store; call it with a step.

    Stream position q (= step * batch_size + row) is place q mod n of epoch q // n, so that each
    epoch holds every example once, also where the batch size does not divide n.

    Attributes:
      store: the examples.
      batch_size: B of the global batch.
      max_len: T.
      seed: of the order.
      rows: which rows of the global batch this host takes.
    """

    store: ExampleStore
    batch_size: int
    max_len: int
    seed: int
    rows: slice = dataclasses.field(default_factory=lambda: slice(None))

    def __post_init__(self) -> None:
        if len(self.store) < self.batch_size:
            raise ValueError(
                f"there are {len(self.store)} examples of up to {self.max_len} tokens, fewer than"
                f" one batch of {self.batch_size}: use more text or a smaller batch_size"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one epoch."""
        return len(self.store) // self.batch_size

    def ids(self, step: int) -> np.ndarray:
        """Which examples make the rows of batch `step`: int64 [len(rows)]."""
        return self._ids(step, self.rows)

    def num_tokens(self, step: int) -> int:
        """Tokens in all rows of batch `step`, special ones included, padding not."""
        return int(self.store.lengths(self._ids(step, slice(None))).sum())

    def _ids(self, step: int, rows: slice) -> np.ndarray:
        places = step * self.batch_size + np.arange(self.batch_size, dtype=np.int64)[rows]
        epochs, places = np.divmod(places, len(self.store))
        keys = draws.bits(draws.key(self.seed, self.max_len), epochs)
        return permute(places, len(self.store), keys)

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        """Returns the rows of batch `step`: what `ExampleStore.gather` gives, and `examples`.

        `examples` int32 [B] is the index of each row in the global batch.
        """
        batch = self.store.gather(self.ids(step), self.max_len)
        batch["examples"] = np.arange(self.batch_size, dtype=np.int32)[self.rows]
        return batch


def evaluation_batches(
    store: ExampleStore, batch_size: int, max_len: int, max_batches: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Every example once, in order; the last batch is filled up with examples of length 0.

    Args:
      store: the examples.
      batch_size: B.
      max_len: T.
      max_batches: stop after so many, whose examples are spread evenly over the store; None for
        all.
    """
    num_batches = -(-len(store) // batch_size)
    chosen = np.arange(len(store), dtype=np.int64)
    if max_batches is not None and max_batches < num_batches:
        num_batches = max_batches
        chosen = (
            np.arange(num_batches * batch_size, dtype=np.int64)
            * len(store)
            // (num_batches * batch_size)
        )
    ids = np.full(num_batches * batch_size, -1, np.int64)
    ids[: len(chosen)] = chosen
    for row in ids.reshape(num_batches, batch_size):
        batch = store.gather(row, max_len)
        batch["examples"] = np.arange(batch_size, dtype=np.int32)
        yield batch
