"""The batches of a task: bucketed by length; batch t is a pure function of (seed, t)."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from scalelab.formats.draws import key as draws_key
from scalelab.resources.host import has_accelerator
from scalelab.tasks.examples import TaskExamples

# Lengths to which rows are padded: few enough to compile one program each.
BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# On a GPU or TPU padding costs little, because the host limits the speed, and compiling is slower.
FEW_BUCKETS = (32, 64, 128, 256, 512)
on_accelerator = functools.cache(has_accelerator)


def bucket(length: int, max_len: int) -> int:
    """Returns the length to which rows are padded.

    Args:
      length: tokens of the longest row.
      max_len: largest bucket.
    """
    buckets = FEW_BUCKETS if on_accelerator() else BUCKETS
    return min(next((b for b in buckets if b >= length), max_len), max(max_len, length))


class _Epoch(NamedTuple):
    """The batches of an epoch."""

    ids: np.ndarray  # [S, B] int64, the examples of each batch; -1 after the last example
    longest: list[int]  # number of tokens of each batch's longest row
    tokens: list[int]  # number of tokens of each batch


@dataclasses.dataclass(frozen=True)
class TaskBatches:
    """The training batches of a task; batch t is a pure function of (seed, t).

    An epoch has every example once, in random order. Within each group of `group_batches` batches
    the examples are sorted by length, so that the rows of a batch are about equally long; then the
    group's batches are shuffled. The last batch of an epoch may have fewer examples.
    """

    examples: TaskExamples  # the training split
    batch_size: int  # B
    max_len: int  # the longest bucket
    seed: int  # seed of the order
    group_batches: int  # batches in a group; 0: nothing is sorted
    ways: int = 1  # devices that share a batch; B is padded to a multiple with empty rows

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, the last one included."""
        return -(-len(self.examples) // self.batch_size)

    @functools.cached_property
    def _epoch(self) -> Callable[[int], "_Epoch"]:
        """Plans an epoch; the last plan is kept."""
        return functools.lru_cache(maxsize=1)(self._plan)

    def _plan(self, epoch: int) -> "_Epoch":
        rng = np.random.Generator(np.random.Philox(key=draws_key(self.seed, epoch)))
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
        longest = np.where(batches >= 0, lengths[batches], 0).max(axis=1)
        tokens = np.where(batches >= 0, self.examples.num_tokens[batches], 0).sum(axis=1)
        return _Epoch(batches, longest.tolist(), tokens.tolist())

    def _at(self, step: int) -> tuple["_Epoch", int]:
        """Returns the epoch of a step, and the step's place in it."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch), place

    def ids(self, step: int) -> np.ndarray:
        """Returns the examples of batch `step`: [B] int64, -1 after the last of an epoch."""
        epoch, place = self._at(step)
        return epoch.ids[place]

    def length(self, step: int) -> int:
        """Returns the bucket of batch `step`."""
        epoch, place = self._at(step)
        return bucket(epoch.longest[place], self.max_len)

    def num_tokens(self, step: int) -> int:
        """Returns the number of tokens in batch `step`, with special tokens, without padding."""
        epoch, place = self._at(step)
        return epoch.tokens[place]

    def __call__(self, step: int, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns a batch, as `TaskExamples.gather`.

        Args:
          step: number of the step, from 0.
          length: T; None: the bucket of the longest row.
        """
        ids = np.pad(self.ids(step), (0, -self.batch_size % self.ways), constant_values=-1)
        return self.examples.gather(ids, length or self.length(step))


def evaluation_batches(
    examples: TaskExamples, batch_size: int, max_len: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields every example once, short ones first: (ids [B], batch); -1 fills the last batch.

    Args:
      examples: the examples.
      batch_size: B.
      max_len: tokens of the longest row.
    """
    order = np.argsort(examples.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        ids = order[start : start + batch_size]
        length = bucket(int(examples.lengths[ids].max()), max_len)
        ids = np.pad(ids, (0, batch_size - len(ids)), constant_values=-1)
        yield ids, examples.gather(ids, length)
