"""The host: cores, GPUs, memory, the options of JAX and of glibc's malloc that programs share.

XLA allocates its buffers anew in every step on CPU; the kernel's zeroing of new pages costs about a
fifth of a small model's step. `keep_freed` is the `setup` of programs that train or evaluate; the
training loop calls `release_if_low`. Programs that hold large arrays once use `return_freed`.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import pathlib
import re
import resource
import sys
import time
from collections.abc import Iterator

from scalelab.helpers.files import write_json

GPU_SHARE = 0.9  # share of a GPU's memory for all processes of a pool
GAPS = 2  # times a step's scratch that a training kept at most (LOG.md, 2026-11-23)

_kept = {"still": False, "looked": 0.0}  # whether freed memory is kept; when that was looked at

# Options of glibc's malloc, with their numbers from malloc.h.
MALLOC = {
    "arena_max": -8, "mmap_max": -4, "mmap_threshold": -3, "top_pad": -2, "trim_threshold": -1,
}  # fmt: skip


def cores() -> list[int]:
    """Returns the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def has_accelerator() -> bool:
    """Returns whether there is a GPU or TPU that JAX would use, without starting JAX."""
    on_cpu = os.environ.get("JAX_PLATFORMS", "").startswith("cpu")
    tpu = pathlib.Path("/dev/accel0").exists() and importlib.util.find_spec("libtpu")
    return bool(num_gpus() or (tpu and not on_cpu))


def num_gpus() -> int:
    """Returns how many NVIDIA GPUs JAX would use, without starting JAX."""
    plugins = map(importlib.util.find_spec, ("jax_cuda12_plugin", "jax_cuda13_plugin"))
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu") or not any(plugins):
        return 0
    there = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, len(visible.split(",")) if visible else 0)


def bind_to_cores(slot: int, num_workers: int) -> None:
    """Binds this thread, and processes that it starts, to one of `num_workers` parts of the cores.

    `slot` is the number of the part, from 0. XLA has a thread for each core that it may use;
    processes that share cores would wait for each other within every operation.
    """
    mine = cores()
    if hasattr(os, "sched_setaffinity") and 1 < num_workers <= len(mine):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, mine[slot::num_workers])


def memory_share(num_workers: int) -> dict[str, str]:
    """Returns the variables that divide a GPU's memory, without those that the user has set.

    JAX takes three quarters of the memory at its start, so a second process would find too little.
    """
    if num_workers == 1 or not num_gpus():
        return {}
    found = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{GPU_SHARE / num_workers:.3f}",
    }
    return {name: value for name, value in found.items() if name not in os.environ}


def drop_programs_if_many(share: float = 0.5) -> bool:
    """Drops compiled programs if they take a share of the process's memory maps, vm.max_map_count.

    On CPU, XLA gives each kernel its own maps: five tasks of a ten-layer model use up Linux's
    65,530, and the next compilation ends in "Cannot allocate memory" and a crash. Programs that
    are needed again come from the compile cache.

    Returns:
      Whether it did; only on Linux.
    """
    import jax

    limit, maps = pathlib.Path("/proc/sys/vm/max_map_count"), pathlib.Path("/proc/self/maps")
    if not limit.exists() or maps.read_bytes().count(b"\n") < share * int(limit.read_text()):
        return False
    jax.clear_caches()
    return True


def status_bytes(field: str, file: str = "/proc/self/status") -> int | None:
    """Returns a size from a file of Linux, such as VmRSS, in bytes; None on another system."""
    path = pathlib.Path(file)
    found = re.search(rf"^{field}:\s*(\d+) kB$", path.read_text(), re.M) if path.exists() else None
    return int(found[1]) * 1024 if found else None


def peak_memory_bytes() -> int:
    """Returns the largest resident size of this process so far, in bytes."""
    # Not getrusage where there is another way: on Linux a new program inherits its parent's peak.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return status_bytes("VmHWM") or peak * (1 if sys.platform == "darwin" else 1024)


def configure_jax(compile_cache_dir: str | None, dtype: str) -> None:
    """Sets the options of JAX that every program that trains or evaluates shares.

    `compile_cache_dir` keeps compiled programs for the next start; None: nothing is kept.
    """
    import jax

    if compile_cache_dir:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(compile_cache_dir))
        # A start compiles some fifty small programs, which take seconds together.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if dtype == "float32":  # matrix units of accelerators would round otherwise
        jax.config.update("jax_default_matmul_precision", "float32")


@contextlib.contextmanager
def compiling(cache_dir: str | None, program: str) -> Iterator[str]:
    """Keeps the seconds that a program takes to compile inside, beside the compiled programs.

    Yields " (8.1 s last time)" for a program that was compiled before, else "". Without a
    `cache_dir` nothing is kept.
    """
    path, begun = pathlib.Path(os.path.expanduser(cache_dir or "")), time.perf_counter()
    path /= "compile_times.json"

    def read() -> dict[str, float]:
        with contextlib.suppress(OSError, ValueError, TypeError):  # half written, perhaps
            return dict(json.loads(path.read_text())) if cache_dir else {}
        return {}

    secs = read().get(program)
    yield f" ({secs:.1f} s last time)" if isinstance(secs, float) else ""
    with contextlib.suppress(OSError):  # a note only
        if cache_dir:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, read() | {program: round(time.perf_counter() - begun, 1)})


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
    resident, free = status_bytes("VmRSS"), available()
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
    group, free = pathlib.Path("/sys/fs/cgroup"), status_bytes("MemAvailable", "/proc/meminfo")
    try:
        most, used = (int((group / f"memory.{x}").read_text()) for x in ("max", "current"))
        stat = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return free  # no control group of its own, or one without a limit
    cached = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)  # the file cache gives way
    left = most - used + (int(cached[1]) if cached else 0)
    return left if free is None else min(free, left)
