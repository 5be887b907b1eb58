"""Position schemes that add to the input."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.nn import axes
from scalelab.nn.axes import parameter


def check_length(num_tokens: int, num_positions: int) -> None:
    """Raises ValueError for an example with more tokens than the model has positions."""
    if num_tokens > num_positions:
        raise ValueError(
            f"the model has {num_positions} positions, but got examples of {num_tokens} tokens;"
            " build it with a larger max_len or cut the examples"
        )


class LearnedPositions(nn.Module):
    """One learned vector for each absolute position (Gehring et al. 2017, 3.1).

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
        check_length(positions.shape[-1], self.max_len)
        names, shape = (axes.POSITIONS, axes.WIDTH), (self.max_len, self.width)
        table = parameter(self, "table", self.table_init, names, shape)
        return jnp.take(table, positions, axis=0, mode="clip")


class SinusoidPositions(nn.Module):
    """Sines and cosines of a position, without parameters (Vaswani et al. 2017, 3.5).

    The frequencies are the paper's, 10000^(-2i/D). The sines are the first half of the features,
    the cosines the second half, as in tensor2tensor. The paper interleaves them, which is the same
    up to a permutation of features. (tensor2tensor has exponents i / (D/2 - 1) instead of 2i/D.)

    Attributes:
      width: D; if it is odd, there is one more sine.
    """

    width: int

    def __call__(self, positions: jax.Array) -> jax.Array:
        """Maps positions [B or 1, T] to [B or 1, T, D] float32.

        Angles are float32: at position 512 they are within 4e-5 of the exact ones.
        """
        frequencies = 10000.0 ** (-np.arange(0, self.width, 2) / self.width)
        angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
        cosines = jnp.cos(angles[..., : self.width // 2])
        return jnp.concatenate([jnp.sin(angles), cosines], axis=-1)
