"""Puts a pre-trained model on all devices, for evaluation and decoding."""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
from flax.typing import ArrayPytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scalelab import objectives, sharding
from scalelab.training.pretrained import Pretrained


@dataclasses.dataclass(frozen=True)
class Placed:
    """A pre-trained model on the devices of a mesh."""

    net: nn.Module  # unbound
    params: ArrayPytree  # sharded by the table of training
    frozen: Mapping[str, ArrayPytree]  # name -> parameters of another run's model, on each device
    mesh: Mesh

    @property
    def rows(self) -> NamedSharding:
        """The sharding of arrays with the batch as first axis."""
        return sharding.batch_sharding(self.mesh)

    @property
    def ways(self) -> int:
        """The number of parts of a batch; batch sizes must be multiples of it."""
        return sharding.batch_ways(self.mesh)

    def round_up(self, size: int) -> int:
        """Returns the smallest batch size of at least `size` rows."""
        return -(-size // self.ways) * self.ways

    def put(self, batch: ArrayPytree) -> ArrayPytree:
        """Splits the rows of every array of a batch over the devices."""
        return jax.device_put(batch, self.rows)


def place(opened: Pretrained, tensor_parallel: int = 1) -> Placed:
    """Puts the model of a run on all devices.

    Args:
      opened: the model.
      tensor_parallel: devices that share each matrix.

    Raises:
      ValueError: tensor_parallel does not divide the number of devices.
    """
    mesh = sharding.make_mesh(tensor=tensor_parallel)
    boxed = jax.eval_shape(_initializer(opened), jax.random.key(0))
    params = jax.device_put(opened.params, sharding.shardings(boxed, mesh))
    frozen = jax.device_put(opened.model.frozen, NamedSharding(mesh, PartitionSpec()))
    return Placed(opened.net, params, frozen, mesh)


def randomize(opened: Pretrained, seed: int = 0) -> Pretrained:
    """Returns the run with random weights in place of its own, as drawn before training."""
    params = jax.jit(_initializer(opened))(jax.random.key(seed))
    return dataclasses.replace(opened, params=nn.unbox(params))


def _initializer(opened: Pretrained) -> Callable[[jax.Array], ArrayPytree]:
    """Returns the function key -> initial parameters, with the names of their axes."""
    sizes = {"max_len": opened.config.short.max_len, "frozen": opened.model.frozen}

    def fresh(key: jax.Array) -> ArrayPytree:
        return objectives.init_variables(key, opened.net, opened.terms, **sizes)["params"]

    return fresh
