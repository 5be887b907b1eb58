"""Batches made ahead of the step that wants them: the same ones by tf.data or by a thread."""

import atexit
import os
import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np

from scalelab.helpers.names import nearest

Batch = dict[str, np.ndarray]
BatchAt = Callable[[int], Batch]
TF_THREADS = 2


def iterate(
    batch_at: BatchAt, start: int, stop: int, loader: str = "tf", prefetch: int = 2
) -> Iterator[Batch]:
    """Yields batch_at(start), ..., batch_at(stop - 1), in order.

    Closing the iterator early (as leaving a `for` loop does) stops the threads behind it. What
    `batch_at` raises is raised here, after the batches before it.

    Args:
      batch_at: makes the batch of a step: int32 arrays, the same names and shapes for all steps.
      start: the first step.
      stop: the step after the last; may be far away.
      loader: "tf" for tf.data; "numpy" needs no TensorFlow.
      prefetch: batches made ahead; 0 makes each when it is asked for.

    Raises:
      ValueError: an unknown loader, or "tf" where TensorFlow is not installed.
    """
    loaders = {"tf": _by_tf, "numpy": _by_thread}
    if loader not in loaders:
        raise ValueError(f"unknown loader {loader!r}: {nearest(loader, loaders)}")
    if start >= stop:
        return iter(())
    if prefetch < 1:
        return (batch_at(step) for step in range(start, stop))
    return loaders[loader](batch_at, start, stop, prefetch)


def _by_thread(batch_at: BatchAt, start: int, stop: int, prefetch: int) -> Iterator[Batch]:
    ready: queue.Queue[tuple[Batch | None, BaseException | None]] = queue.Queue(prefetch)
    closed = threading.Event()

    def put(batch: Batch | None, error: BaseException | None) -> None:
        while not closed.is_set():
            try:
                return ready.put((batch, error), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for step in range(start, stop):
                if closed.is_set():
                    return
                put(batch_at(step), None)
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=work, name="batches", daemon=True)

    def close() -> None:
        closed.set()
        thread.join()

    thread.start()
    atexit.register(close)  # before Python takes itself apart, which a thread might not survive
    try:
        for _ in range(start, stop):
            batch, error = ready.get()
            if error is not None:
                raise error
            yield batch
    finally:
        atexit.unregister(close)
        close()


def _by_tf(batch_at: BatchAt, start: int, stop: int, prefetch: int) -> Iterator[Batch]:
    """tf.data, read ahead by a thread of ours.

    Its own prefetching would call Python from threads that its iterator waits for when it is
    deleted, while whoever deletes it holds Python's lock: a program that leaves early could hang.
    """
    return _by_thread(_through_tf(batch_at, start, stop), start, stop, prefetch)


def _through_tf(batch_at: BatchAt, start: int, stop: int) -> BatchAt:
    """Makes batches by a tf.data pipeline; to be called for `start`, `start` + 1, ... in order."""
    tf = _tensorflow()
    first = batch_at(start)
    shapes = {name: first[name].shape for name in sorted(first)}
    edges = np.cumsum([0] + [first[name].size for name in shapes])
    errors: list[BaseException] = []

    # All arrays of a batch travel as one: each tensor costs far more than the bytes in it.
    def packed(step: np.ndarray) -> np.ndarray:
        try:
            batch = batch_at(int(step))
            return np.concatenate([batch[name].reshape(-1) for name in shapes])
        except BaseException as error:
            errors.append(error)
            raise

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    options.threading.private_threadpool_size = TF_THREADS
    with tf.device("CPU"):
        dataset = tf.data.Dataset.range(start, stop).with_options(options)
        batches = iter(dataset.map(lambda step: tf.numpy_function(packed, [step], np.int32)))

    def unpacked(step: int) -> Batch:
        del step  # tf.data counts itself
        try:
            flat = next(batches).numpy()
        except tf.errors.OpError:
            if errors:
                raise errors[0] from None
            raise
        parts = zip(shapes.items(), edges[:-1], edges[1:], strict=True)
        return {name: flat[begin:end].reshape(shape) for (name, shape), begin, end in parts}

    return unpacked


def _tensorflow():  # noqa: ANN202 - a module
    """Imports TensorFlow such that it leaves accelerators to JAX, and cores too."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault(
        "TF_ENABLE_ONEDNN_OPTS", "0"
    )  # we compute nothing with it; on, it says so
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ValueError(
            "the loader 'tf' needs TensorFlow, which cannot be imported here"
            f" ({error}); use --config.machine.loader=numpy, which gives the same batches"
        ) from error
    try:
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_visible_devices([], "TPU")
        tf.config.threading.set_intra_op_parallelism_threads(TF_THREADS)
        tf.config.threading.set_inter_op_parallelism_threads(TF_THREADS)
    except RuntimeError:
        pass  # already running in this process, with the settings of whoever was first
    return tf
