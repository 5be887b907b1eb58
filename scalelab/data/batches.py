"""Batches by address: batch t is a pure function of (seed, t); and the loader that reads ahead.

The order of an epoch is a keyed permutation of [0, n), computed on the fly: it takes no memory, and
a restart at any step costs nothing. It is the generalized Feistel network of Black and Rogaway 2002
("Ciphers with arbitrary finite domains", section 5): places are pairs (left, right) in [0, a) x
[0, b) with a b just above n, each half is shifted in turn by a function of the other, and a place
that lands at n or beyond is sent on until it lands below.
"""

import atexit
import collections
import contextlib
import dataclasses
import functools
import logging
import math
import os
import types
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Literal

import numpy as np

from scalelab.data.store import ExampleStore
from scalelab.formats import draws, lengths_name

Batch = dict[str, np.ndarray]
BatchAt = Callable[[int], Batch]
logger = logging.getLogger(__name__)
TF_THREADS = 2
NUM_ROUNDS = 3  # each shifts both halves
ROUND_CONSTANT = np.uint64(0xD1342543DE82EF95)
EVAL_SEED = 0  # seeds corruption: all runs are evaluated on the same draws
Corrupt = Callable[..., Batch]  # (batch, *, seed, epochs, examples) -> batch; see `formats.Format`


def permute(places: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Maps places by the permutation of [0, size) that belongs to each key: int64 [B].

    Args:
      places: [B] int in [0, size).
      size: length of the permutation.
      keys: [B] uint64.
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
    """The endless training batches of a store of n examples; call it with a step.

    Each epoch holds every example once, also where the batch size does not divide n.

    Shuffled: stream position q (= step * batch_size + row) is place q mod n of epoch q // n.
    Contiguous: row b reads the store in order, from example b * n // batch_size on and around the
    end. Its epoch k begins where row b + k began; rows change epochs at most one step apart.
    """

    store: ExampleStore
    batch_size: int  # B of the global batch
    max_len: int  # T; each length has an order of its own
    seed: int  # seed of the order and of corruption
    rows: slice = dataclasses.field(default_factory=lambda: slice(None))  # this host's
    first_step: int = 0  # the step of the run that gets the first batch
    order: Literal["shuffled", "contiguous"] = "shuffled"
    corrupt: Corrupt | None = None  # applied to each gathered batch
    mask_copies: int | None = None  # config.mask_copies
    counted_arrays: tuple[str, ...] = ("tokens",)  # `num_tokens` counts their tokens

    def __post_init__(self) -> None:
        assert self.order in ("shuffled", "contiguous"), self.order
        assert len(self.store) >= self.batch_size  # `phases` refuses fewer

    def address(self, step: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the example and the epoch of each row of the global batch: int64 [batch_size].

        For an array of steps, both results begin with its shape.
        """
        size, steps = len(self.store), np.asarray(step, np.int64)[..., None] - self.first_step
        rows = np.arange(self.batch_size, dtype=np.int64)
        if self.order == "contiguous":
            places = rows * size // self.batch_size + steps
            # The last row that begins at or before a place, counted on around the end.
            epochs = ((places + 1) * self.batch_size - 1) // size - rows
            return places % size, epochs
        epochs, places = np.divmod(rows + steps * self.batch_size, size)
        return permute(places, size, draws.bits(self._key, epochs)), epochs

    @functools.cached_property
    def _key(self) -> int:
        return draws.key(self.seed, self.max_len)  # 20 microseconds: too much for every step

    def mask_ids(self, ids: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        """Returns {"mask_ids": [B] int32}, numbers of examples' copies; {} without mask_copies.

        Args:
          ids: [B] int64, indices in the store.
          epochs: [B] int64.
        """
        if self.mask_copies is None:
            return {}
        numbers = ids * self.mask_copies + epochs % self.mask_copies
        return {"mask_ids": (numbers % 2**31).astype(np.int32)}

    def __call__(self, step: int) -> Batch:
        """Returns the rows of batch `step`: what `ExampleStore.gather` gives, and more.

        `examples` int32 [B] is the index of each row in the global batch; `num_tokens` int32 []
        is the number of tokens in `counted_arrays` of the whole global batch, without padding.
        With `mask_copies` there is `mask_ids` int32 [B], too.
        """
        ids, epochs = self.address(step)
        if self.corrupt is None:
            batch = self.store.gather(ids[self.rows])
            num_tokens = self.store.lengths(ids, self.counted_arrays).sum()
        else:  # corrupts the rows of all hosts, because the global tokens are counted after it
            batch = self.store.gather(ids)
            batch = self.corrupt(batch, seed=self.seed, epochs=epochs, examples=ids)
            num_tokens = sum(batch[lengths_name(name)].sum() for name in self.counted_arrays)
            batch = {name: values[self.rows] for name, values in batch.items()}
        batch |= self.mask_ids(ids[self.rows], epochs[self.rows])
        batch["examples"] = np.arange(self.batch_size, dtype=np.int32)[self.rows]
        batch["num_tokens"] = np.asarray(num_tokens, np.int32)
        return batch


def evaluation_batches(
    store: ExampleStore,
    batch_size: int,
    max_batches: int | None = None,
    corrupt: Corrupt | None = None,
    order: str = "shuffled",
    whole: bool = False,
) -> Iterator[Batch]:
    """Yields the batches of a validation: every example once, or those of `max_batches` batches.

    If the order is "shuffled", examples come in the order of the store; with `max_batches` they are
    spread evenly over the store. If it is "contiguous", row b reads the store from example
    b * n // batch_size to the first example of row b + 1; `max_batches` cuts off the end of rows.
    Padding examples of length 0 complete the batches. Corruption has a fixed seed and epoch 0.

    Args:
      store: n examples.
      batch_size: B.
      max_batches: None means all.
      corrupt: the format's function, if it has one.
      order: `ORDER` of the system.
      whole: whether every batch must be full. Examples that do not fill one are then left out.

    Raises:
      ValueError: `whole` is set and the examples do not fill a batch.
    """
    size = len(store)
    if whole and size < batch_size:
        raise ValueError(
            f"the {size} examples of the validation do not fill a batch of {batch_size}, but the"
            " objective needs full batches: use more text, a larger --config.data.valid_rate or a"
            " smaller batch_size"
        )
    most = size // batch_size if whole else -(-size // batch_size)
    num_batches = most if max_batches is None else min(most, max_batches)
    if order == "contiguous":
        starts = np.arange(batch_size + 1, dtype=np.int64) * size // batch_size
        ids = starts[:-1] + np.arange(num_batches)[:, None]
        ids[ids >= starts[1:]] = -1
    else:
        ids = np.arange(num_batches * batch_size, dtype=np.int64)
        ids = np.where(ids < size, ids, -1) if len(ids) >= size else ids * size // len(ids)
    for row in ids.reshape(num_batches, batch_size):
        batch = store.gather(row)
        if corrupt is not None:
            batch = corrupt(batch, seed=EVAL_SEED, epochs=np.zeros_like(row), examples=row)
        batch["examples"] = np.arange(batch_size, dtype=np.int32)
        yield batch


def iterate(
    batch_at: BatchAt, start: int, stop: int, loader: str = "tf", prefetch: int = 2
) -> Iterator[Batch]:
    """Yields batch_at(start), ..., batch_at(stop - 1), in order: arrays of fixed shapes and types.

    Closing the iterator early (as leaving a `for` loop does) stops the reading ahead. An error of
    `batch_at` is raised after the batches before it.

    Args:
      batch_at: step -> batch.
      start: first step.
      stop: the step after the last one.
      loader: "tf" reads ahead by tf.data; "numpy" in a thread, as "tf" does where TensorFlow is not
        installed.
      prefetch: number of batches to make ahead; 0: none.
    """
    if start >= stop or prefetch == 0:
        return (batch_at(step) for step in range(start, stop))
    if loader == "tf":
        tf = _import_tensorflow()
        if tf is not None:
            return _iterate_tf(tf, batch_at, start, stop, prefetch)
        logger.warning("TensorFlow is not installed: a thread makes the batches")
    return _iterate_thread(batch_at, start, stop, prefetch)


def _iterate_thread(batch_at: BatchAt, start: int, stop: int, prefetch: int) -> Iterator[Batch]:
    """Makes batches ahead in one thread."""
    with futures.ThreadPoolExecutor(1) as thread:
        ahead = collections.deque(
            thread.submit(batch_at, t) for t in range(start, min(stop, start + prefetch))
        )
        for step in range(start + len(ahead), stop):
            yield ahead.popleft().result()
            ahead.append(thread.submit(batch_at, step))
        while ahead:
            yield ahead.popleft().result()


def _iterate_tf(
    tf: types.ModuleType, batch_at: BatchAt, start: int, stop: int, prefetch: int
) -> Iterator[Batch]:
    """Makes batches in parallel and ahead by tf.data; a tensor costs far more than its bytes."""
    first, errors = batch_at(start), dict[int, BaseException]()

    def make(step: np.ndarray) -> list[np.ndarray]:
        try:
            batch = batch_at(int(step))
            return [batch[name] for name in first]
        except BaseException as error:
            errors[int(step)] = error
            raise

    types_ = [array.dtype for array in first.values()]
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    options.threading.private_threadpool_size = TF_THREADS
    with tf.device("CPU"):
        closed = tf.Variable(False)
        steps = tf.data.Dataset.range(start, stop).take_while(lambda _: tf.logical_not(closed))
        batches = steps.map(
            lambda step: tf.numpy_function(make, [step], types_), num_parallel_calls=TF_THREADS
        )
        batches = iter(batches.prefetch(prefetch).with_options(options))

    # Deleting an open iterator would wait, holding Python's lock, for calls that need the lock.
    @functools.cache  # runs once: at exit before this generator ends
    def close() -> None:
        atexit.unregister(close)
        closed.assign(True)
        while True:
            try:
                next(batches)
            except StopIteration:
                return
            except tf.errors.OpError:
                continue

    atexit.register(close)  # for a program that ends with the iterator open
    try:
        for step in range(start, stop):
            try:
                arrays = next(batches)
            except tf.errors.OpError:
                if step in errors:
                    raise errors[step] from None
                raise
            yield {name: array.numpy() for name, array in zip(first, arrays, strict=True)}
    finally:
        close()


def _import_tensorflow() -> types.ModuleType | None:
    """Imports TensorFlow so that it leaves accelerators and cores to JAX; None: not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # unused here; on, it prints a notice
    try:
        import tensorflow as tf
    except ImportError:
        return None
    with contextlib.suppress(RuntimeError):  # the process has used TensorFlow; its settings stay
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_visible_devices([], "TPU")
        tf.config.threading.set_intra_op_parallelism_threads(TF_THREADS)
        tf.config.threading.set_inter_op_parallelism_threads(TF_THREADS)
    return tf
