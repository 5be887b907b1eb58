"""Relative positions as biases of the scores, one for each bucket of distance (T5).

Raffel et al. 2020, 2.1. A stack's layers share the biases.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nn import axes
from scalelab.nn.dropout import Dropout
from scalelab.nn.masks import Context
from scalelab.nn.product import product
from scalelab.nn.stack import Stack

NUM_BUCKETS, MAX_DISTANCE = 32, 128


def unscaled(query: jax.Array, keys: jax.Array, ctx: Context) -> jax.Array:
    """Returns attention scores without the factor K^-0.5, as an `nn.attention.Score`.

    Args:
      query: [B, T, N, K].
      keys: [B, S, N, K].
      ctx: unused.
    """
    del ctx
    return product("btnk,bsnk->bnts", query, keys)


def bucket(distance: jax.Array, causal: bool) -> jax.Array:
    """Returns the bucket of key position minus query position, int32 in [0, NUM_BUCKETS).

    Half of the buckets have one distance each, the others grow exponentially up to MAX_DISTANCE
    (Raffel et al. 2020, 2.1).

    Args:
      distance: int32, key position minus query position.
      causal: False: keys after the query have the second half of all buckets.
    """
    count = NUM_BUCKETS if causal else NUM_BUCKETS // 2
    exact = count // 2
    far = np.arange(MAX_DISTANCE + 1, dtype=np.float32)  # a table, so that no device rounds
    growth = np.log(np.maximum(far, 1) / exact) / math.log(MAX_DISTANCE / exact)
    large = np.minimum(exact + (growth * (count - exact)).astype(np.int32), count - 1)
    table = jnp.asarray(np.where(far < exact, far, large), jnp.int32)
    near = jnp.maximum(-distance, 0) if causal else jnp.abs(distance)
    first = 0 if causal else jnp.where(distance > 0, count, 0)
    return first + jnp.take(table, jnp.minimum(near, MAX_DISTANCE))


class RelativeStack(nn.Module):
    """A stack and a last norm; the layers share one bias for each head and bucket of distance.

    Attributes:
      stack: (carry, ctx, cache) -> (carry, cache).
      norm: the last norm.
      num_heads: N.
      table_init: initializer of the biases.
      dropout_rate: after the norm.
    """

    stack: Stack
    norm: nn.Module
    num_heads: int
    table_init: nn.initializers.Initializer
    dropout_rate: float

    def init_cache(self, *sizes: int) -> ArrayPytree:
        """Returns the empty cache of the stack."""
        return self.stack.init_cache(*sizes)

    @nn.compact
    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """As `nn.layer.Layer`; positions and mask of `ctx` give the biases."""
        names, shape = (axes.POSITIONS, axes.HEADS), (NUM_BUCKETS, self.num_heads)
        table = axes.parameter(self, "buckets", self.table_init, names, shape)
        keys = ctx.positions[:, None]
        if cache is not None:
            keys = jnp.arange(jax.tree.leaves(cache)[0].shape[3])
        distance = keys - ctx.positions[:, :, None]
        bias = jnp.moveaxis(jnp.take(table, bucket(distance, ctx.mask.causal), axis=0), -1, 1)
        x, cache = self.stack(carry, dataclasses.replace(ctx, bias=bias), cache)
        return Dropout(self.dropout_rate, name="dropout")(self.norm(x), ctx), cache
