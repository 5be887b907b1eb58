"""Gated causal convolutions (Dauphin et al. 2017), perhaps dilated (van den Oord et al. 2016)."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import constrain
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context

SHRINK = 0.5**0.5  # keeps the variance of a residual sum


def last_inputs(joined: jax.Array, size: int, ctx: Context) -> jax.Array:
    """Returns the last M inputs of each row, padding left out: [B, M, D].

    Args:
      joined: [B, M + T, D], the M inputs before a call, and those of the call.
      size: M.
      ctx: positions, and the lengths of the mask.
    """
    places = ctx.num_real[:, None] + jnp.arange(size)
    return jnp.take_along_axis(joined, places[..., None], axis=1)


class GatedConvolution(nn.Module):
    """y = sqrt(1/2) (x + (x * W + b) sigmoid(x * V + c)), where * sees a token and those before it.

    Places before the first token are zeros. Tap k of the convolution, counted from the last one,
    reads the token k * dilation places back. The dilation of layer n is `growth` ** n.

    Attributes:
      width: D.
      num_taps: K, the width of the kernel.
      growth: 1: no dilation; 2: it doubles from layer to layer.
      num_layers: L, of the stack.
      dropout_rate: dropout before the residual sum.
      kernel_init: initializer of the kernel [K D, 2 D] of W and V.
      dtype: dtype of the computation.
    """

    width: int
    num_taps: int
    growth: int
    num_layers: int
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    @property
    def reach(self) -> int:
        """M, the number of earlier tokens that the last layer reads at most."""
        return (self.num_taps - 1) * self.growth ** (self.num_layers - 1)

    def init_cache(self, batch_size: int, max_len: int) -> jax.Array:
        """Returns inputs of zeros [B, M, D], at most for `max_len` tokens."""
        return jnp.zeros((batch_size, min(self.reach, max_len), self.width), self.dtype)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Reads x [B, T, D].

        Args:
          x: [B, T, D].
          ctx: index of the layer; with a cache also positions, and the lengths of the mask.
          cache: [B, M, D], the inputs of this layer for the last tokens before x, the newest last;
            None: there are none.

        Returns:
          [B, T, D], and the inputs behind the last real token of each row.
        """
        B, T, D = x.shape  # noqa: N806
        before = cache
        if before is None:
            before = jnp.zeros((B, min(self.reach, T), D), x.dtype)
        joined, size = jnp.concatenate([before, x], axis=1), before.shape[1]
        assert ctx.layer is not None  # a stack sets it

        def tap(number: int) -> jax.Array:
            # Beyond the array there would be zeros alone, as in its first rows.
            layers = range(self.num_layers)
            back = jnp.array([min(number * self.growth**n, size) for n in layers])[ctx.layer]
            return jax.lax.dynamic_slice_in_dim(joined, size - back, T, axis=1)

        taps = jnp.concatenate([tap(k) for k in range(self.num_taps)], axis=-1)
        out = (axes.TRANSFORM,), (2 * D,)
        both = Linear((axes.WIDTH,), *out, self.kernel_init, self.dtype, name="taps")(taps)
        values, gates = jnp.split(both, 2, axis=-1)
        y = Dropout(self.dropout_rate)(values * jax.nn.sigmoid(gates), ctx)
        if cache is not None:
            cache = last_inputs(joined, size, ctx)
        return constrain(SHRINK * (x + y), axes.BATCH, axes.LENGTH, axes.WIDTH), cache
