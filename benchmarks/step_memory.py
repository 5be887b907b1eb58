"""Peak memory of a step of one side, in a process of its own."""

import concurrent.futures
import ctypes
import dataclasses
import functools
import gc
import multiprocessing
import pathlib

from benchmarks import side_by_side
from benchmarks.step_case import Case
from scalelab.runs import environment


def of_side(case: Case, name: str) -> int | None:
    """Bytes that a step has resident at most, less what the process had before the net.

    Args:
      case: what is measured.
      name: of the side: ours, floor, by_jax, or a peer.

    Returns:
      None where the kernel does not count resident memory anew (elsewhere than on Linux).
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measured, dataclasses.replace(case), name).result()


def _measured(case: Case, name: str) -> int | None:
    """In the other process: two steps, because what compiling takes is not the step's."""
    side_by_side.pin(case.threads)
    environment.configure_jax(None, "float32")
    from benchmarks.floor import Floor
    from benchmarks.step_case import Ours

    own = {"ours": Ours, "floor": Floor, "by_jax": functools.partial(Floor, by_jax=True)}
    if name in own:
        before = _status("VmRSS")
        side = own[name](case)
    else:
        import transformers  # noqa: F401

        from benchmarks import step_peers

        ours = Ours(case)  # what compiling it took is handed back
        gc.collect()
        _hand_back()
        before = _status("VmRSS")
        side = step_peers.make(name, ours)
    side(1)
    gc.collect()
    _hand_back()
    if not _reset():
        return None
    side(1)
    return _status("VmHWM") - before


def _hand_back() -> None:
    """Gives freed memory back to the kernel, where the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset() -> bool:
    """Makes the kernel forget the largest resident size so far; whether it could."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    """A line of /proc/self/status, in bytes; 0: there is none."""
    try:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)
