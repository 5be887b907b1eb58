"""What becomes of memory that is freed: kept for the next step, or handed back to the system."""

import ctypes
import pathlib
import re
import time

from scalelab.runs import environment

GAPS = 2  # as large as a step's scratch, that a training came to at most (LOG.md, 2026-11-23)

_kept = {"still": False, "looked": 0.0}  # whether freed memory is kept; when that was looked at

# Options of glibc's malloc, with their numbers from malloc.h.
MALLOC = {
    "arena_max": -8, "mmap_max": -4, "mmap_threshold": -3, "top_pad": -2, "trim_threshold": -1,
}  # fmt: skip
HEAP = 2**26  # bytes that a thread other than the main one is given at a time


def _tell_malloc(**options: int) -> None:
    """Sets options of glibc's malloc; elsewhere than on Linux with glibc it does nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for name, value in options.items():
        mallopt(MALLOC[name], value)


def keep() -> None:
    """Tells glibc to keep what is freed for the next step instead of handing it back each time.

    XLA allocates its buffers anew in every step on CPU; getting them zeroed from the kernel page by
    page costs about a fifth of a small net's step. Call before JAX starts. The price is memory: see
    `release_if_scarce`.

    Only malloc's main arena keeps what is large, and only the main thread is sure to have it, so
    that on CPU the thread that asks for a step also takes it. Threads that help with its products
    are given heaps of 64 MB, and give an emptied one back unless they are told to keep as much
    spare (`top_pad`); what is larger than a heap is mapped anew each time. Where all threads share
    the one arena (`arena_max=1`), those that compile wait for each other: 27 s in place of 17
    (LOG.md, 2026-11-23).
    """
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    _tell_malloc(mmap_max=0, trim_threshold=-1, top_pad=HEAP)  # -1: never, however large
    _kept.update(still=True, looked=0.0)


def release_if_scarce(soon: int = 0) -> bool:
    """Ends `keep` where this process has more than what is left, and hands back.

    Small allocations between two steps take a bite out of the gap that a step's buffers leave, so
    that the next step's need a new one, until there are up to GAPS of them. Looks at most five
    times a second, unless it is told what is to come.

    Args:
      soon: bytes that the process will take beside what it has.

    Returns:
      Whether freed memory goes back from now on, where it was kept before.
    """
    now = time.monotonic()
    if not _kept["still"] or (not soon and now - _kept["looked"] < 0.2):
        return False
    _kept["looked"] = now
    resident, free = environment.status_bytes("VmRSS"), available()
    if resident is None or free is None or resident + soon <= free:
        return False
    _kept["still"] = False
    # As glibc has it where nobody tells it anything and large arrays have come and gone.
    _tell_malloc(mmap_max=65536, mmap_threshold=2**25, trim_threshold=2**26, top_pad=2**17)
    ctypes.CDLL(None).malloc_trim(0)
    return True


def hand_back() -> None:
    """Tells glibc to hand back each array once it is freed: the opposite of `keep`.

    For a program that holds large arrays once and does not train. Left alone, glibc keeps freed
    arrays of up to 32 MB, in as many places as there are threads.
    """
    _tell_malloc(arena_max=1, mmap_threshold=2**20)


def available() -> int | None:
    """Bytes that this process may take beside what it has; None elsewhere than on Linux."""
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.MULTILINE)
    if found is None:
        return None
    free = int(found[1]) * 1024
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        most, used = (int((group / f"memory.{x}").read_text()) for x in ("max", "current"))
        told = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return free  # no control group of its own, or one without a limit
    cached = re.search(r"^inactive_file (\d+)$", told, re.MULTILINE)  # which gives way
    return min(free, most - used + (int(cached[1]) if cached else 0))
