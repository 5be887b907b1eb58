"""The host: cores, GPUs, memory of this process, and the options of JAX that programs share."""

import contextlib
import importlib.util
import os
import pathlib
import re
import resource
import sys

GPU_SHARE = 0.9  # of a GPU's memory, for all processes of a pool


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
    """Binds this thread, and the processes that it will start, to an even part of the cores.

    XLA has a thread for each core that it may use; processes that share cores would wait for each
    other within every operation.
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
    """Drops compiled programs if they take a large share of the process's memory maps.

    On CPU, XLA gives each kernel its own maps: five tasks of a ten-layer net use up Linux's 65,530,
    and the next compilation ends in "Cannot allocate memory" and a crash. Programs that
    are needed again come from the compile cache.

    Args:
      share: of vm.max_map_count.

    Returns:
      Whether it did; only on Linux.
    """
    import jax

    limit, maps = pathlib.Path("/proc/sys/vm/max_map_count"), pathlib.Path("/proc/self/maps")
    if not limit.exists() or maps.read_bytes().count(b"\n") < share * int(limit.read_text()):
        return False
    jax.clear_caches()
    return True


def status_bytes(field: str) -> int | None:
    """Returns a size from /proc/self/status, such as VmRSS, in bytes; None if not on Linux."""
    path = pathlib.Path("/proc/self/status")
    found = re.search(rf"^{field}:\s*(\d+) kB$", path.read_text(), re.M) if path.exists() else None
    return int(found[1]) * 1024 if found else None


def peak_memory_bytes() -> int:
    """Returns the largest resident size of this process so far, in bytes."""
    # Not getrusage where there is another way: on Linux a new program inherits its parent's peak.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return status_bytes("VmHWM") or peak * (1 if sys.platform == "darwin" else 1024)


def configure_jax(compile_cache_dir: str | None, dtype: str) -> None:
    """Sets the options of JAX that every program that trains or evaluates shares.

    Args:
      compile_cache_dir: folder that keeps compiled programs for the next start; None: off.
      dtype: of the computation.
    """
    import jax

    if compile_cache_dir:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(compile_cache_dir))
        # A start compiles some fifty small programs, which take seconds together.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if dtype == "float32":  # matrix units of accelerators would round otherwise
        jax.config.update("jax_default_matmul_precision", "float32")
