"""The device mesh, and the table that maps logical axis names of models to its axes."""

import math
import os
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import numpy as np
from flax.typing import ArrayPytree
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scalelab.helpers.names import nearest
from scalelab.nn import axes

MESH_AXES = ("data", "fsdp", "tensor")
HEARTBEAT_SECS = 20  # a process without a heartbeat counts as dead, which ends the others

# Logical name -> mesh axis (None: replicated). Within one array a mesh axis is used once, by the
# first dimension that names it.
RULES: dict[str, str | tuple[str, ...] | None] = {
    axes.BATCH: ("data", "fsdp"),
    axes.VOCAB: "tensor",
    axes.HEADS: "tensor",
    axes.FFN: "tensor",
    axes.WIDTH: "fsdp",
}


def join_processes() -> None:
    """Makes one run of several processes.

    SLURM, TPU pods, Kubernetes and MPI name the processes; elsewhere the environment does:
    JAX_COORDINATOR_ADDRESS (host:port), JAX_NUM_PROCESSES, JAX_PROCESS_ID.

    Raises:
      ValueError: neither names them.
    """
    count, own = os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")
    try:
        jax.distributed.initialize(
            num_processes=int(count) if count else None,
            process_id=int(own) if own else None,
            heartbeat_timeout_seconds=HEARTBEAT_SECS,
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"machine.distributed: the processes could not find each other ({error}); outside a"
            " cluster, set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None


def any_process(flag: bool) -> bool:
    """Returns True if `flag` is set in any process; all processes must call it at the same step."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """Arranges all devices as (data, fsdp, tensor).

    Args:
      data: size of the data axis; -1 means the number of devices divided by the other two sizes.
      fsdp: size of the axis that shards parameters and batch.
      tensor: size of the axis that shards heads, FFN and vocabulary.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    count = jax.device_count()
    if data == -1 and fsdp > 0 and tensor > 0 and count % (fsdp * tensor) == 0:
        data = count // (fsdp * tensor)
    if min(data, fsdp, tensor) < 1 or data * fsdp * tensor != count:
        raise ValueError(
            f"machine.data_parallel x fsdp_parallel x tensor_parallel = {data} x {fsdp} x {tensor}"
            f" must use the {count} devices at hand"
        )
    return Mesh(np.asarray(jax.devices()).reshape(data, fsdp, tensor), MESH_AXES)


def spec(names: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Returns the partition of an array over the mesh, by its logical names.

    Args:
      names: logical name of each dimension (nn/axes.py), or None.
      shape: the array's shape; a dimension that its mesh axis does not divide is not split, nor one
        whose mesh axis an earlier dimension uses.
      mesh: the devices.

    Raises:
      ValueError: a name that nn/axes.py does not know, or not one name a dimension.
    """
    found: list[str | tuple[str, ...] | None] = []
    used: set[str] = set()
    for name, size in zip(names, shape, strict=True):
        if name not in (None, *axes.ALL):
            raise ValueError(f"unknown logical axis {name!r}: {nearest(str(name), axes.ALL)}")
        wanted = RULES.get(name or "") or ()
        own = {wanted} if isinstance(wanted, str) else {*wanted}
        ways = math.prod(mesh.shape[axis] for axis in own)
        is_split = ways > 1 and size % ways == 0 and not used & own
        used |= own if is_split else set()
        found.append(wanted if is_split else None)
    return PartitionSpec(*found)


def shardings(abstract: ArrayPytree, mesh: Mesh) -> ArrayPytree:
    """Returns the NamedShardings of a tree.

    Args:
      abstract: abstract arrays, some boxed with logical names of axes.
      mesh: the devices.
    """

    def sharding_of_leaf(leaf: nn.LogicallyPartitioned | jax.ShapeDtypeStruct) -> NamedSharding:
        if isinstance(leaf, nn.LogicallyPartitioned):
            return NamedSharding(mesh, spec(leaf.names, leaf.value.shape, mesh))
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree.map(
        sharding_of_leaf, abstract, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of every array of a batch: rows over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def batch_ways(mesh: Mesh) -> int:
    """Returns the number of parts that a batch is split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def activation_rules() -> list[tuple[str, str | tuple[str, ...] | None]]:
    """Returns RULES for activations, as a list for `nn.logical_axis_rules`.

    Width is not split: activations are already split by batch over the same mesh axis.
    """
    return [(name, RULES.get(name) if name != axes.WIDTH else None) for name in axes.ALL]


def split_batch(batch: dict[str, jax.Array], mesh: Mesh) -> dict[str, jax.Array]:
    """Splits the rows of a batch over the devices, in a program.

    Args:
      batch: arrays [B, ...].
      mesh: the devices.
    """
    if mesh.size == 1:
        return batch
    return jax.lax.with_sharding_constraint(batch, batch_sharding(mesh))


def rows_sharding(mesh: Mesh, batch_size: int | None) -> NamedSharding:
    """Returns the sharding of rows [K, B, ...] of a block of steps, as for `put`.

    Without a batch size every device has all rows.
    """
    return NamedSharding(mesh, PartitionSpec(*((None, ("data", "fsdp")) if batch_size else ())))


def put(
    arrays: Mapping[str, np.ndarray], placed: NamedSharding, batch_size: int | None = None
) -> dict[str, jax.Array]:
    """Puts host arrays on the devices.

    Args:
      arrays: whole arrays; with `batch_size` [K, B, ...] with only this process's rows of B.
      placed: the sharding, such as from `rows_sharding`.
      batch_size: B; each process gives the rows of `host_rows`. None: each gives the whole arrays.
    """
    if jax.process_count() == 1:
        return jax.device_put(dict(arrays), placed)
    if batch_size is None:
        return {
            name: jax.make_array_from_callback(np.shape(x), placed, np.asarray(x).__getitem__)
            for name, x in arrays.items()
        }
    return {
        name: jax.make_array_from_process_local_data(
            placed, x, (x.shape[0], batch_size, *x.shape[2:])
        )
        for name, x in arrays.items()
    }


def check_batches(mesh: Mesh, batch_sizes: Sequence[int], num_microbatches: int) -> None:
    """Raises ValueError if a batch does not divide into microbatches over the devices."""
    ways = batch_ways(mesh) * num_microbatches
    for size in batch_sizes:
        if size % ways:
            raise ValueError(
                f"a batch of {size} examples does not divide into {num_microbatches}"
                f" microbatches over"
                f" {batch_ways(mesh)} devices (data x fsdp)"
            )


def host_rows(mesh: Mesh, batch_size: int) -> slice:
    """Returns the rows of a global batch that this process makes for its devices.

    If the devices of two processes differ only in the tensor axis, both make the same rows.
    """
    local_rows = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = sorted({row for (index,) in local_rows for row in range(*index.indices(batch_size))})
    assert rows == list(range(rows[0], rows[-1] + 1)), rows
    return slice(rows[0], rows[-1] + 1)
