"""The memory of a row: states of the tokens before a segment (Dai et al. 2019, 3.2)."""

from collections.abc import Callable
from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes


@flax.struct.dataclass
class Memory:
    """The inputs of a layer for the tokens before this segment.

    Attributes:
      states: [B, M, D], the newest last; [L, B, M, D] for a stack of layers.
      sizes: [B] int32, number of states that are there, the last ones of the M; [L, B] for a stack.
    """

    states: jax.Array
    sizes: jax.Array

    def extend(self, x: jax.Array, lengths: jax.Array) -> "Memory":
        """Appends states; keeps the last M.

        Args:
          x: [B, T, D].
          lengths: [B] int32, number of states of x to append, the first ones.
        """
        length = self.states.shape[1]
        states = last_inputs(jnp.concatenate([self.states, x], axis=1), length, lengths)
        return Memory(states, jnp.minimum(self.sizes + lengths, length))


def last_inputs(joined: jax.Array, size: int, lengths: jax.Array) -> jax.Array:
    """Returns the last M inputs of each row, padding left out: [B, M, D].

    Args:
      joined: [B, M + T, D], the M inputs before a call, and those of the call.
      size: M.
      lengths: [B] int32, number of real inputs of the call, the first ones.
    """
    places = lengths[:, None] + jnp.arange(size)
    return jnp.take_along_axis(joined, places[..., None], axis=1)


def carried_memory(
    module: nn.Module, shape: tuple[int, ...], dtype: DTypeLike, batch: dict[str, jax.Array]
) -> tuple[Memory, Callable[[Memory], None]] | None:
    """Returns the memory of each row in the collection "carried", and a function that replaces it.

    The memory is empty for a row whose batch["continues"] [B] is 0. A pass whose collection is
    neither there nor mutable has no memory: None.

    Args:
      module: the owner of the memory; call this inside its `nn.compact` method.
      shape: (L, B, M, D); M = 0: no memory.
      dtype: dtype of the states.
      batch: the batch of the pass.
    """
    kept = module.is_mutable_collection("carried")
    if shape[2] == 0 or not (kept or module.has_variable("carried", "memory")):
        return None

    def variable(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> nn.Variable:
        names = (axes.LAYERS, axes.BATCH, axes.LENGTH, axes.WIDTH)[: len(shape)]
        empty = nn.with_logical_partitioning(partial(jnp.zeros, shape, dtype), names)
        return module.variable("carried", name, empty)

    memory, known = variable("memory", shape, dtype), variable("sizes", shape[:2], jnp.int32)
    found = known.value * (batch["continues"] > 0) if "continues" in batch else known.value

    def replace(after: Memory) -> None:
        if kept and not module.is_initializing():
            memory.value, known.value = after.states, after.sizes

    return Memory(memory.value, found), replace
