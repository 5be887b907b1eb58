"""Normalization layers."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn import axes
from scalelab.nn.axes import parameter


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) with scale and shift, computed in float32.

    Attributes:
      epsilon: added to the variance.
    """

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes x [..., D] over D; returns the dtype of x."""
        shape = (x.shape[-1],)
        scale = parameter(self, "scale", nn.initializers.ones_init(), (axes.NORM,), shape)
        bias = parameter(self, "bias", nn.initializers.zeros_init(), (axes.NORM,), shape)
        wide = x.astype(jnp.float32)
        centered = wide - wide.mean(axis=-1, keepdims=True)
        variance = jnp.square(centered).mean(axis=-1, keepdims=True)
        return (centered * jax.lax.rsqrt(variance + self.epsilon) * scale + bias).astype(x.dtype)


class RMSNorm(nn.Module):
    """Layer normalization without mean and shift (Zhang and Sennrich 2019), in float32.

    Attributes:
      epsilon: added to the mean square.
    """

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes x [..., D] over D; returns the dtype of x."""
        ones = nn.initializers.ones_init()
        scale = parameter(self, "scale", ones, (axes.NORM,), x.shape[-1:])
        wide = x.astype(jnp.float32)
        mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(x.dtype)
