"""glibc's malloc: keeps freed memory for the next step while there is plenty.

XLA allocates its buffers anew in every step on CPU; the kernel's zeroing of new pages costs about a
fifth of a small net's step. `keep_freed` is the `setup` of programs that train or evaluate; the
training loop calls `release_if_low`. Programs that hold large arrays once use `return_freed`.
"""

import ctypes
import pathlib
import re
import time

from scalelab.resources import host

GAPS = 2  # times a step's scratch that a training kept at most (LOG.md, 2026-11-23)

_kept = {"still": False, "looked": 0.0}  # whether freed memory is kept; when that was looked at

# Options of glibc's malloc, with their numbers from malloc.h.
MALLOC = {
    "arena_max": -8, "mmap_max": -4, "mmap_threshold": -3, "top_pad": -2, "trim_threshold": -1,
}  # fmt: skip


def _set_options(**options: int) -> None:
    """Sets options of glibc's malloc; does nothing with other C libraries."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for name, value in options.items():
        mallopt(MALLOC[name], value)


def keep_freed() -> None:
    """Tells glibc to keep freed memory for the next step. Call before JAX starts.

    Only malloc's main arena keeps large blocks, and only the main thread is sure to use it, so on
    CPU the thread that asks for a step also runs it. Helper threads have heaps of 64 MB, and return
    an empty heap unless `top_pad` keeps as much spare.
    """
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    _set_options(mmap_max=0, trim_threshold=-1, top_pad=2**26)  # -1: never, however large
    _kept.update(still=True, looked=0.0)


def release_if_low(soon: int = 0) -> bool:
    """Ends `keep_freed` and returns freed memory if this process has more than is left.

    Looks at most five times a second, unless `soon` is given.

    Args:
      soon: bytes that the process will take on top.

    Returns:
      Whether freed memory was kept before and is returned from now on.
    """
    now = time.monotonic()
    if not _kept["still"] or (not soon and now - _kept["looked"] < 0.2):
        return False
    _kept["looked"] = now
    resident, free = host.status_bytes("VmRSS"), available()
    if resident is None or free is None or resident + soon <= free:
        return False
    _kept["still"] = False
    # The values that glibc arrives at by itself once large arrays have come and gone.
    _set_options(mmap_max=65536, mmap_threshold=2**25, trim_threshold=2**26, top_pad=2**17)
    ctypes.CDLL(None).malloc_trim(0)
    return True


def return_freed() -> None:
    """Tells glibc to return each array to the system once it is freed."""
    _set_options(arena_max=1, mmap_threshold=2**20)


def available() -> int | None:
    """Returns the bytes that this process may still take; None outside Linux."""
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.MULTILINE)
    free = None if found is None else int(found[1]) * 1024
    try:
        most, used = (int((group / f"memory.{x}").read_text()) for x in ("max", "current"))
        stat = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return free  # no control group of its own, or one without a limit
    cached = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)  # which gives way
    left = most - used + (int(cached[1]) if cached else 0)
    return left if free is None else min(free, left)
