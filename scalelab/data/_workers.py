"""Runs a function in worker processes, with results in order.

Workers are fresh interpreters that import little and talk over pipes: forking a process in which
JAX or the tokenizers have started threads is not safe, and `multiprocessing` would import the
user's main program again. Run as a module, this file is a worker.
"""

import collections
import concurrent.futures
import contextlib
import gc
import importlib
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO


def work(
    factory: str, arguments: tuple, requests: Iterable[Any], num_workers: int
) -> Iterator[Any]:
    """Answers requests in `num_workers` processes (0 or 1: in this one), keeping the order.

    Args:
      factory: `module:function`; each process calls it once with `arguments` to get the function
        that answers requests.
      arguments: of the factory; picklable, like requests and answers.
      requests: read a few ahead of the answers.
      num_workers: number of processes.

    Raises:
      OSError: a process ended early.
    """
    if num_workers <= 1:
        yield from map(_make(factory, arguments), requests)
        return
    with contextlib.ExitStack() as stack:
        idle: queue.Queue[subprocess.Popen] = queue.Queue()
        for _ in range(num_workers):
            idle.put(stack.enter_context(_worker(factory, arguments)))
        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(num_workers))
        waiting: collections.deque[concurrent.futures.Future] = collections.deque()
        for request in requests:
            waiting.append(threads.submit(_ask, idle, request))
            if len(waiting) > 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _make(factory: str, arguments: tuple) -> Callable[[Any], Any]:
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)


@contextlib.contextmanager
def _worker(factory: str, arguments: tuple) -> Iterator[subprocess.Popen]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    worker = subprocess.Popen(
        [sys.executable, "-m", "scalelab.data._workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # One process a core: none needs threads of its own.
        env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        with contextlib.suppress(BrokenPipeError):  # the first request will notice
            pickle.dump((factory, arguments), worker.stdin)
            worker.stdin.flush()
        yield worker
    finally:
        worker.kill()
        with contextlib.suppress(BrokenPipeError):  # unsent requests may be lost
            worker.stdin.close()
        worker.stdout.close()
        worker.wait()


def _ask(idle: queue.Queue, request: Any) -> Any:
    worker = idle.get()
    try:
        pickle.dump(request, worker.stdin, pickle.HIGHEST_PROTOCOL)
        worker.stdin.flush()
        return pickle.load(worker.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
        raise OSError(
            f"a process that prepares data ended with code {worker.wait()}; if memory ran out, "
            "set --config.machine.num_workers=1"
        ) from error
    finally:
        idle.put(worker)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers until the pipe closes, as it also does when the asking process dies."""
    answer = _make(*pickle.load(requests))
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(answer(request), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    gc.disable()  # the work makes no cycles, and the search for them takes a tenth of the time
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the asking process to handle
    _serve(sys.stdin.buffer, sys.stdout.buffer)
