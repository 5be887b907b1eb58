"""What a training step really takes, measured in a process of its own."""

import concurrent.futures.process
import ctypes
import gc
import multiprocessing
import pathlib
from typing import Any

from scalelab.runs import environment

STEPS = 3


def peak(config: Any, length: int, batch_size: int) -> int | None:
    """Takes three steps in a fresh process.

    On CPU: by how much the process's resident memory grew at most, from where the programs were
    compiled and nothing else was there. On an accelerator: the most that was in use.

    Args:
      config: the run's.
      length: tokens of an example.
      batch_size: examples.

    Returns:
      Bytes; None where the system does not tell (elsewhere than on Linux). Freed memory goes back
      between the steps, as in training where memory is scarce (`malloc`).

    Raises:
      ValueError: the process was killed.
    """
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawned) as pool:
        try:
            return pool.submit(_peak, config, length, batch_size).result()
        except concurrent.futures.process.BrokenProcessPool:
            raise ValueError(
                f"the process that took steps of {batch_size} x {length} was killed, most likely"
                " for want of memory: measure a smaller batch"
            ) from None


def _peak(config: Any, length: int, batch_size: int) -> int | None:
    import jax
    import numpy as np

    from scalelab import sharding
    from scalelab.resources import blueprint

    environment.configure_jax(config.machine.compile_cache_dir, config.net.dtype)
    plan, machine = blueprint.draw(config), config.machine
    mesh = sharding.make_mesh(machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel)
    run = plan.compile(length, batch_size, mesh)
    # Zeros, because to draw parameters takes memory too.
    shapes = plan.state
    zeros = jax.jit(
        lambda: jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), shapes),
        out_shardings=sharding.shardings(plan.boxed, mesh),
    )
    with jax.set_mesh(mesh):
        make = zeros.lower().compile()
    batch = plan.random_batch(length, batch_size)
    gc.collect()
    before = _resident_from_here()
    state, given = make(), sharding.put_batch(batch, mesh, batch_size)
    for _ in range(STEPS):
        state, metrics = run(state, given, np.float32(1e-4))
        jax.block_until_ready((state, metrics))
    device = jax.devices()[0]
    if device.platform != "cpu":
        return int(device.memory_stats()["peak_bytes_in_use"])
    return None if before is None else environment.peak_memory_bytes() - before


def _resident_from_here() -> int | None:
    """Resident bytes, after what is free went back; the peak starts anew from here."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    return environment.status_bytes("VmRSS")
