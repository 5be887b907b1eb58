"""Multi-head attention (Vaswani et al. 2017, 3.2) over an explicit cache."""

import dataclasses
from collections.abc import Callable
from typing import Union

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import constrain, part, useful
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import ZEROS, Linear
from scalelab.nn.masks import Context
from scalelab.nn.product import product

# Finite, so that a query without visible keys (in a padding example) gives no NaN.
MASKED_SCORE = -1e30

# (query [B, T, N, K], keys [B, S, N, K], ctx) -> scores [B, N, T, S] float32.
Score = Callable[[jax.Array, jax.Array, Context], jax.Array]
PROJECTIONS = ("query", "key", "value")
Init = nn.initializers.Initializer
Heads = Union["SelfAttention", "CrossAttention"]
WEIGHTS = "attention_weights"  # [B, N, T, S] in Flax's collection "intermediates"


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
        """Writes keys and values into the cache; drops positions outside.

        Args:
          keys: [B, T, N, K].
          values: [B, T, N, K].
          positions: [B, T] int32, places in the cache.
        """
        rows = jnp.arange(positions.shape[0])[:, None]
        return KeyValueCache(
            keys=self.keys.at[rows, :, positions].set(keys, mode="drop"),
            values=self.values.at[rows, :, positions].set(values, mode="drop"),
        )


def head_size(width: int, num_heads: int) -> int:
    """Returns the size K of an attention head."""
    assert width % num_heads == 0, f"{num_heads} heads do not divide the width {width}"
    return width // num_heads


def _init_cache(module: Heads, batch_size: int, length: int) -> KeyValueCache:
    shape = (batch_size, module.num_heads, length, module.head_size)
    return KeyValueCache(jnp.zeros(shape, module.dtype), jnp.zeros(shape, module.dtype))


def _project(module: Heads, name: str, x: jax.Array) -> jax.Array:
    """Maps x [B, T, D] to the heads' queries, keys or values [B, T, N, K]."""
    out_axes, out_shape = (axes.HEADS, axes.HEAD_SIZE), (module.num_heads, module.head_size)
    init = module.kernel_init
    init = init[PROJECTIONS.index(name)] if isinstance(init, tuple) else init
    given = init, module.dtype, module.bias_init
    y = Linear((axes.WIDTH,), out_axes, out_shape, *given, name=name)(x)
    return constrain(y, axes.BATCH, axes.LENGTH, axes.HEADS, axes.HEAD_SIZE)


def _attend(
    module: Heads, x: jax.Array, found: KeyValueCache, place: str, ctx: Context
) -> jax.Array:
    """Attends from x [B, T, D] to keys and values with axes `place`, "bsnk" or "bnsk" (a cache's).

    The mask and bias of ctx apply. Returns [B, T, D]. With mutable=["intermediates"], this
    collection holds the weights before dropout under the name WEIGHTS.
    """
    query = _project(module, "query", x)
    needed = useful(0.5 if ctx.mask.causal else 1.0)
    with part("attention"), needed:
        if module.score is None:
            scores = product(f"btnk,{place}->bnts", query, found.keys) * module.head_size**-0.5
        else:
            keys = found.keys if place == "bsnk" else found.keys.swapaxes(1, 2)
            scores = module.score(query, keys, ctx)
    if ctx.bias is not None:
        scores = scores + ctx.bias
    scores = jnp.where(ctx.mask.dense(*scores.shape[2:]), scores, MASKED_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(module.dtype)
    module.sow("intermediates", WEIGHTS, weights)
    weights = Dropout(module.dropout_rate, name="dropout")(weights, ctx)
    with part("attention"), needed:
        mixed = jnp.einsum(f"bnts,{place}->btnk", weights, found.values)
    in_axes, out_axes = (axes.HEADS, axes.HEAD_SIZE), (axes.WIDTH,)
    given = module.out_kernel_init, module.dtype, module.bias_init
    return Linear(in_axes, out_axes, (x.shape[-1],), *given, name="out")(mixed)


class SelfAttention(nn.Module):
    """Softmax attention of a sequence to itself.

    Attributes:
      num_heads: N.
      head_size: K.
      dropout_rate: dropout on the attention weights.
      kernel_init: initializer of the query, key and value kernels, or one for each of them.
      out_kernel_init: initializer of the output kernel.
      dtype: dtype of the computation; scores and softmax are float32.
      score: see Score, without parameters; None: scaled dot product.
      bias_init: initializer of all biases; None: no biases.
    """

    num_heads: int
    head_size: int
    dropout_rate: float
    kernel_init: Init | tuple[Init, Init, Init]
    out_kernel_init: Init
    dtype: DTypeLike = jnp.float32
    score: Score | None = None
    bias_init: Init | None = ZEROS

    def init_cache(self, batch_size: int, max_len: int) -> KeyValueCache:
        """Returns an empty cache for `max_len` tokens: zeros [B, N, max_len, K]."""
        return _init_cache(self, batch_size, max_len)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: KeyValueCache | None
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Attends from x to x and to the tokens in the cache.

        Args:
          x: [B, T, D].
          ctx: mask, bias and positions; positions say where x goes in the cache.
          cache: keys and values of earlier tokens; None: there are none.

        Returns:
          [B, T, D] and the cache with the keys and values of x.
        """
        keys, values = (_project(self, name, x) for name in ("key", "value"))
        found, place = KeyValueCache(keys, values), "bsnk"
        if cache is not None:
            cache = cache.write(keys, values, ctx.positions)
            found, place = cache, "bnsk"
        return _attend(self, x, found, place, ctx), cache


class CrossAttention(nn.Module):
    """Softmax attention of a sequence to a source (Vaswani et al. 2017, 3.2.3).

    It has the attributes of SelfAttention.
    """

    num_heads: int
    head_size: int
    dropout_rate: float
    kernel_init: Init | tuple[Init, Init, Init]
    out_kernel_init: Init
    dtype: DTypeLike = jnp.float32
    score: Score | None = None
    bias_init: Init | None = ZEROS

    def init_cache(self, batch_size: int, source_len: int) -> KeyValueCache:
        """Returns an empty cache for a source: zeros [B, N, source_len, K]."""
        return _init_cache(self, batch_size, source_len)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: KeyValueCache | None
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Attends from x to a source, and puts its keys into the cache.

        Args:
          x: [B, T, D].
          ctx: source [B, S, D] and its mask; without a source, the keys come from the cache.
          cache: keys and values of the source; None: it is not kept.

        Returns:
          [B, T, D] and the cache.
        """
        found, place = cache, "bnsk"
        if ctx.source is not None:
            keys, values = (_project(self, name, ctx.source) for name in ("key", "value"))
            found, place = KeyValueCache(keys, values), "bsnk"
            if cache is not None:
                cache = KeyValueCache(keys.swapaxes(1, 2), values.swapaxes(1, 2))
        assert found is not None and ctx.source_mask is not None, "cross-attention needs a source"
        ctx = dataclasses.replace(ctx, mask=ctx.source_mask, bias=None)
        return _attend(self, x, found, place, ctx), cache
