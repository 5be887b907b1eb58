"""Position schemes that add to the input."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn import axes
from scalelab.nn.axes import parameter


class LearnedPositions(nn.Module):
    """One learned vector for each absolute position.

    Attributes:
      max_len: number of positions.
      width: D.
      table_init: initializer of the table.
    """

    max_len: int
    width: int
    table_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, positions: jax.Array) -> jax.Array:
        """Looks up positions [B or 1, T] -> [B or 1, T, D].

        Raises:
          ValueError: T exceeds the number of positions.
        """
        if positions.shape[-1] > self.max_len:
            raise ValueError(
                f"the model has {self.max_len} positions, but got examples of"
                f" {positions.shape[-1]} "
                "tokens; build it with a larger max_len or cut the examples"
            )
        names, shape = (axes.POSITIONS, axes.WIDTH), (self.max_len, self.width)
        table = parameter(self, "table", self.table_init, names, shape)
        return jnp.take(table, positions, axis=0, mode="clip")
