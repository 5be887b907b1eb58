"""A stack that reads a window: a map of the last tokens' vectors, and layers on its result."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import constrain
from scalelab.nn.convolution import last_inputs
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context


class TanhLayer(nn.Module):
    """z -> W tanh(z) + b.

    Attributes:
      width: D.
      dropout_rate: dropout behind tanh.
      dtype: dtype of the computation.
    """

    width: int
    dropout_rate: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, z: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Maps [B, T, D] to [B, T, D]; there is no cache.

        Args:
          z: [B, T, D].
          ctx: whether dropout is on.
          cache: unused.
        """
        hidden = Dropout(self.dropout_rate)(jnp.tanh(z), ctx)
        out, init = (axes.TRANSFORM,), nn.initializers.normal(self.width**-0.5)
        dense = Linear((axes.WIDTH,), out, (self.width,), init, self.dtype, name="dense")
        return dense(hidden), cache


class WindowStack(nn.Module):
    """A map of the last K tokens' vectors, and layers on its result.

    Attributes:
      stack: (z [B, T, D], ctx, None) -> (z, None).
      width: D.
      num_taps: K.
      direct: whether a second map of the window is added to the result.
      dtype: dtype of the computation.
    """

    stack: nn.Module
    width: int
    num_taps: int
    direct: bool = False
    dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        """Makes the maps from [..., K D] to [..., D]."""
        init = nn.initializers.normal((self.num_taps * self.width) ** -0.5)
        given = (axes.WIDTH,), (axes.TRANSFORM,), (self.width,), init, self.dtype
        self.window = Linear(*given)
        self.added = Linear(*given, bias_init=None) if self.direct else None

    def init_cache(self, batch_size: int, max_len: int) -> jax.Array:
        """Returns the vectors before a text: zeros [1, B, K - 1, D].

        Args:
          batch_size: B.
          max_len: unused; the window alone decides.
        """
        del max_len
        return jnp.zeros((1, batch_size, self.num_taps - 1, self.width), self.dtype)

    def __call__(
        self, x: jax.Array, ctx: Context, cache: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the predicted vectors [B, T, D], and the cache with the newest vectors.

        Args:
          x: [B, T, D], vectors of the tokens.
          ctx: what the pass gives to layers.
          cache: [1, B, K - 1, D], the vectors before x, the newest last; None: there are none.
        """
        (B, T, D), size = x.shape, self.num_taps - 1  # noqa: N806
        before = jnp.zeros((B, size, D), x.dtype) if cache is None else cache[0]
        joined = jnp.concatenate([before, x], axis=1)
        taps = [joined[:, size - k : size - k + T] for k in range(self.num_taps)]
        read = jnp.concatenate(taps, axis=-1)  # the newest first
        with axes.part("body"):
            made, _ = self.stack(self.window(read), ctx, None)
            if self.added is not None:
                made = made + self.added(read)
        cache = None if cache is None else last_inputs(joined, size, ctx)[None]
        return constrain(made, axes.BATCH, axes.LENGTH, axes.WIDTH), cache
