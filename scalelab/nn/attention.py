"""Multi-head attention (Vaswani et al. 2017, 3.2) over an explicit cache."""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import constrain
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import ZEROS, Linear
from scalelab.nn.masks import Context
from scalelab.nn.product import product

# Finite, so that a row in which nothing may be seen (a padding example) gives no NaN.
MASKED_SCORE = -1e30

# (query [B, T, N, K], keys [B, S, N, K], ctx) -> scores [B, N, T, S] float32.
Score = Callable[[jax.Array, jax.Array, Context], jax.Array]


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


def _project(module: "SelfAttention | CrossAttention", name: str, x: jax.Array) -> jax.Array:
    """Maps x [B, T, D] to the heads' queries, keys or values [B, T, N, K]."""
    out_axes, out_shape = (axes.HEADS, axes.HEAD_SIZE), (module.num_heads, module.head_size)
    given = module.kernel_init, module.dtype, module.bias_init
    y = Linear((axes.WIDTH,), out_axes, out_shape, *given, name=name)(x)
    return constrain(y, axes.BATCH, axes.LENGTH, axes.HEADS, axes.HEAD_SIZE)


def _attend(
    module: "SelfAttention | CrossAttention",
    query: jax.Array,
    found: KeyValueCache,
    place: str,
    ctx: Context,
) -> jax.Array:
    """Returns the values [B, T, N, K] that queries [B, T, N, K] see, averaged by their scores.

    Args:
      module: its score function, dropout and dtype are used.
      query: the queries.
      found: keys and values.
      place: their axes: "bsnk", or "bnsk" where they come from a cache.
      ctx: its mask says which keys may be seen, its bias is added to the scores.
    """
    if module.score is None:
        scores = product(f"btnk,{place}->bnts", query, found.keys) * module.head_size**-0.5
    else:
        keys = found.keys if place == "bsnk" else found.keys.swapaxes(1, 2)
        scores = module.score(query, keys, ctx)
    if ctx.bias is not None:
        scores = scores + ctx.bias
    allowed = ctx.mask.dense(*scores.shape[2:])
    if allowed is not None:
        scores = jnp.where(allowed, scores, MASKED_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(module.dtype)
    weights = Dropout(module.dropout_rate, name="dropout")(weights, ctx)
    return jnp.einsum(f"bnts,{place}->btnk", weights, found.values)


def _join(module: "SelfAttention | CrossAttention", mixed: jax.Array, width: int) -> jax.Array:
    """Maps the heads' results [B, T, N, K] to [B, T, D]."""
    given = module.out_kernel_init, module.dtype, module.bias_init
    in_axes, out_axes = (axes.HEADS, axes.HEAD_SIZE), (axes.WIDTH,)
    return Linear(in_axes, out_axes, (width,), *given, name="out")(mixed)


class SelfAttention(nn.Module):
    """Softmax attention of a sequence to itself.

    Attributes:
      num_heads: N.
      head_size: K.
      dropout_rate: on the attention weights.
      kernel_init: initialiser of the query, key and value kernels.
      out_kernel_init: initialiser of the output kernel.
      dtype: dtype of the computation; scores and softmax are float32.
      score: see Score, without parameters; None: scaled dot product.
      bias_init: initialiser of all biases; None: no biases.
    """

    num_heads: int
    head_size: int
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    out_kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32
    score: Score | None = None
    bias_init: nn.initializers.Initializer | None = ZEROS

    def init_cache(self, batch_size: int, max_len: int) -> KeyValueCache:
        """An empty cache for `max_len` tokens."""
        shape = (batch_size, self.num_heads, max_len, self.head_size)
        return KeyValueCache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))

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
        query, keys, values = (_project(self, name, x) for name in ("query", "key", "value"))
        found, place = KeyValueCache(keys, values), "bsnk"
        if cache is not None:
            cache = cache.write(keys, values, ctx.positions)
            found, place = cache, "bnsk"
        return _join(self, _attend(self, query, found, place, ctx), x.shape[-1]), cache


class CrossAttention(nn.Module):
    """Softmax attention of a sequence to a source (Vaswani et al. 2017, 3.2.3).

    Attributes: those of SelfAttention.
    """

    num_heads: int
    head_size: int
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    out_kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32
    score: Score | None = None
    bias_init: nn.initializers.Initializer | None = ZEROS

    def init_cache(self, batch_size: int, source_len: int) -> KeyValueCache:
        """An empty cache for a source of `source_len` tokens."""
        shape = (batch_size, self.num_heads, source_len, self.head_size)
        return KeyValueCache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: KeyValueCache | None
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Attends.

        Args:
          x: [B, T, D].
          ctx: source [B, S, D] and its mask; source None: the cache has read it.
          cache: keys and values of the source, or None: they are not kept.

        Returns:
          [B, T, D] and the cache, with the source's keys and values in it.
        """
        query, found, place = _project(self, "query", x), cache, "bnsk"
        if ctx.source is not None:
            keys, values = (_project(self, name, ctx.source) for name in ("key", "value"))
            found, place = KeyValueCache(keys, values), "bsnk"
            if cache is not None:
                cache = KeyValueCache(keys.swapaxes(1, 2), values.swapaxes(1, 2))
        assert found is not None and ctx.source_mask is not None, "cross-attention needs a source"
        ctx = ctx.replace(mask=ctx.source_mask, bias=None)
        return _join(self, _attend(self, query, found, place, ctx), x.shape[-1]), cache
