"""Vectors of the distances between tokens (Dai et al. 2019, "Transformer-XL", 3.3)."""

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.linear import ZEROS, Linear
from scalelab.nn.positions import SinusoidPositions

WAVELENGTH = 62_831  # the slowest sinusoid, 2 pi 10,000, so distances repeat beyond it

Init = nn.initializers.Initializer


@flax.struct.dataclass
class Distances:
    """The vectors of W distances between a query and a key.

    Attributes:
      keys: [W, N, K], or [W, 1, K] for all heads.
      values: [W, K], added to the values (Shaw et al. 2018, eq. 3); None: nothing.
      content_bias: [N, K], added to the query that scores keys: u of Dai et al.; None: nothing.
      position_bias: [N, K], added to the query that scores distances: v; None: nothing.
    """

    keys: jax.Array
    values: jax.Array | None = None
    content_bias: jax.Array | None = None
    position_bias: jax.Array | None = None


def check_distances(memory_len: int, max_len: int) -> None:
    """Raises ValueError if memory and segment together are longer than the slowest sinusoid."""
    if memory_len + max_len > WAVELENGTH:
        most = WAVELENGTH - max_len
        how = f"set it to {most} or less" if most >= 0 else "set a smaller model.max_len"
        raise ValueError(
            f"system_options.memory_len = {memory_len}: with model.max_len = {max_len} its"
            f" distances exceed the {WAVELENGTH:,} that sinusoids tell apart: {how}"
        )


class SinusoidDistances(nn.Module):
    """W_kR R_d with the learned biases u and v (Dai et al. 2019, 3.3).

    Attributes:
      num_heads: N.
      head_size: K.
      width: D, the width of the sinusoids.
      kernel_init: initializer of W_kR.
      dtype: dtype of the computation.
    """

    num_heads: int
    head_size: int
    width: int
    kernel_init: Init
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, distances: jax.Array) -> Distances:
        """Maps distances [W] int32 to their vectors."""
        names, shape = (axes.HEADS, axes.HEAD_SIZE), (self.num_heads, self.head_size)
        sinusoids = SinusoidPositions(self.width)(distances)
        kernel = self.kernel_init, self.dtype, None
        keys = Linear((axes.WIDTH,), names, shape, *kernel, name="key")(sinusoids)
        biases = (axes.parameter(self, f"{n}_bias", ZEROS, names, shape) for n in "uv")
        return Distances(keys, None, *biases)
