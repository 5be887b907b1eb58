"""Multi-head attention (Vaswani et al. 2017, 3.2) over an explicit cache."""

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import constrain, part, useful
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context
from scalelab.nn.product import product

# Finite, so that a row in which nothing may be seen (a padding example) gives no NaN.
MASKED_SCORE = -1e30


@flax.struct.dataclass
class KeyValueCache:
    """Keys and values of the tokens seen so far.

    Attributes:
      keys: [B, N, S, K]; [L, B, N, S, K] for a stack of layers. Heads come first, so that each
        reads its keys in one piece.
      values: the same shape.
    """

    keys: jax.Array
    values: jax.Array

    def write(self, keys: jax.Array, values: jax.Array, positions: jax.Array) -> "KeyValueCache":
        """Puts keys and values [B, T, N, K] at positions [B, T]; what lies outside is dropped."""
        rows = jnp.arange(positions.shape[0])[:, None]
        return KeyValueCache(
            keys=self.keys.at[rows, :, positions].set(keys, mode="drop"),
            values=self.values.at[rows, :, positions].set(values, mode="drop"),
        )


def head_size(width: int, num_heads: int) -> int:
    """Size K of an attention head.

    Raises:
      ValueError: the number of heads does not divide the width.
    """
    if num_heads < 1 or width < 1 or width % num_heads:
        divisors = [n for n in range(1, width + 1) if width % n == 0]
        near = sorted(sorted(divisors, key=lambda n: abs(n - num_heads))[:3])
        raise ValueError(
            f"the number of heads must divide the width: got {num_heads} heads and width {width}; "
            f"numbers of heads near it that do: {', '.join(map(str, near))}"
        )
    return width // num_heads


class SelfAttention(nn.Module):
    """Softmax attention of a sequence to itself.

    Attributes:
      num_heads: N.
      head_size: K.
      dropout_rate: on the attention weights.
      kernel_init: initialiser of the query, key and value kernels.
      out_kernel_init: initialiser of the output kernel.
      dtype: dtype of the computation; scores and softmax are float32.
    """

    num_heads: int
    head_size: int
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    out_kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    def init_cache(self, batch_size: int, max_len: int) -> KeyValueCache:
        """An empty cache for `max_len` tokens."""
        shape = (batch_size, self.num_heads, max_len, self.head_size)
        return KeyValueCache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))

    def _project(self, name: str, x: jax.Array) -> jax.Array:
        shape = (self.num_heads, self.head_size)
        out_axes = (axes.HEADS, axes.HEAD_SIZE)
        y = Linear((axes.WIDTH,), out_axes, shape, self.kernel_init, self.dtype, name=name)(x)
        return constrain(y, axes.BATCH, axes.LENGTH, axes.HEADS, axes.HEAD_SIZE)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: KeyValueCache | None
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Attends.

        Args:
          x: [B, T, D].
          ctx: mask, bias and positions; positions say where x goes in the cache.
          cache: keys and values of earlier tokens, or None: x is all there is.

        Returns:
          [B, T, D] and the cache with x written in.
        """
        query, keys, values = (self._project(name, x) for name in ("query", "key", "value"))
        place = "bsnk"
        if cache is not None:
            cache = cache.write(keys, values, ctx.positions)
            keys, values, place = cache.keys, cache.values, "bnsk"
        needed = useful(0.5 if ctx.mask.causal else 1.0)
        with part("attention"), needed:
            scores = product(f"btnk,{place}->bnts", query, keys) * self.head_size**-0.5
        if ctx.bias is not None:
            scores = scores + ctx.bias
        allowed = ctx.mask.dense(*scores.shape[2:])
        if allowed is not None:
            scores = jnp.where(allowed, scores, MASKED_SCORE)
        weights = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
        weights = Dropout(self.dropout_rate, name="dropout")(weights, ctx)
        with part("attention"), needed:
            mixed = jnp.einsum(f"bnts,{place}->btnk", weights, values)
        out_axes, out_shape = (axes.WIDTH,), (x.shape[-1],)
        out = Linear(
            (axes.HEADS, axes.HEAD_SIZE),
            out_axes,
            out_shape,
            self.out_kernel_init,
            self.dtype,
            name="out",
        )
        return out(mixed), cache
