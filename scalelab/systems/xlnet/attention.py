"""Attention of two streams over one set of parameters (Yang et al. 2019, "XLNet", 2.3 to 2.5).

Scores of distances are computed for each distance and then moved to the keys, as in Transformer-XL;
here a query also sees keys after itself, and queries may be at any places. No array has the axes
queries, keys and head size.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.attention import MASKED_SCORE, WEIGHTS
from scalelab.nn.axes import constrain, part
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import ZEROS, Linear
from scalelab.nn.masks import Context
from scalelab.nn.memory import Memory
from scalelab.nn.product import product
from scalelab.nn.relative import Distances

Init = nn.initializers.Initializer


def _cut(x: jax.Array, starts: jax.Array, size: int) -> jax.Array:
    """Returns `size` columns of each row of x [B, N, T, W], from `starts` [B, T] on."""

    def cut(row: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(row, start, size)

    rows = jax.vmap(cut)
    return jax.vmap(jax.vmap(rows, in_axes=(0, None)))(x, starts)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def to_keys(by_distance: jax.Array, starts: jax.Array, num_keys: int) -> jax.Array:
    """Moves scores by distance [B, N, T, W] to the keys: [B, N, T, S].

    The gradient also cuts, because the transpose of a cut is a slow scatter.

    Args:
      by_distance: [B, N, T, W], distances in descending order.
      starts: [B, T] int32, the column of each query's distance from the first key.
      num_keys: S.
    """
    return _cut(by_distance, starts, num_keys)


def _forward(x: jax.Array, starts: jax.Array, num_keys: int) -> tuple[jax.Array, tuple]:
    return _cut(x, starts, num_keys), (starts, x.shape[-1])


def _backward(num_keys: int, kept: tuple, gradient: jax.Array) -> tuple[jax.Array, None]:
    starts, width = kept
    room = width - num_keys  # the largest start
    padded = jnp.pad(gradient, [(0, 0)] * 3 + [(room, room)])
    return _cut(padded, room - starts, width), None


to_keys.defvjp(_forward, _backward)


class TwoStreamAttention(nn.Module):
    """Attention of both streams by contents, distances and segments (Yang et al. 2019, 2.3 to 2.5).

    Attributes:
      num_heads: N.
      head_size: K.
      dropout_rate: dropout on the attention weights.
      distances: distances [W] int32 -> nn.relative.Distances with both biases.
      kernel_init: initializer of the kernels and segment vectors; there are no other biases.
      dtype: dtype of the computation; scores and softmax are float32.
    """

    num_heads: int
    head_size: int
    dropout_rate: float
    distances: nn.Module
    kernel_init: Init
    dtype: DTypeLike = jnp.float32

    def _project(self, name: str, x: jax.Array) -> jax.Array:
        names, shape = (axes.HEADS, axes.HEAD_SIZE), (self.num_heads, self.head_size)
        y = Linear((axes.WIDTH,), names, shape, self.kernel_init, self.dtype, None, name=name)(x)
        return constrain(y, axes.BATCH, axes.LENGTH, axes.HEADS, axes.HEAD_SIZE)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: Memory | None
    ) -> tuple[jax.Array, Memory | None]:
        """Attends from x [B, T + P, D] to the memory and to its first T states.

        Args:
          x: content stream of T tokens, then query stream of P places.
          ctx: a mask with query_positions [B or 1, T + P], and the segments of the keys. Both count
            the M places of a memory.
          cache: a memory, through which no gradient flows; None: there is none.

        Returns:
          [B, T + P, D], and the memory with the content stream.
        """
        mask, segments = ctx.mask, ctx.segments
        assert segments is not None and mask.query_positions is not None
        assert mask.lengths is not None
        S = segments.shape[1]  # noqa: N806
        T = S - (0 if cache is None else cache.states.shape[1])  # noqa: N806
        source = content = x[:, :T]
        allowed = mask.dense(x.shape[1], S)
        if cache is not None:
            source = jnp.concatenate([jax.lax.stop_gradient(cache.states), content], axis=1)
            there = jnp.arange(S) >= (S - T - cache.sizes)[:, None]
            allowed = allowed & there[:, None, None]
            cache = cache.extend(content, mask.lengths - (S - T))
        at = jnp.broadcast_to(mask.query_positions, x.shape[:2])
        # From the last query to the first key, down to the first query and the last key.
        relative = self.distances(jnp.arange(S - 1, -T, -1))
        scores = jnp.where(allowed, self._scores(x, source, segments, at, relative), MASKED_SCORE)
        # A query that sees no key reads nothing: the mean of all keys would show its own token.
        weights = jax.nn.softmax(scores, axis=-1) * allowed.any(axis=-1, keepdims=True)
        weights = weights.astype(self.dtype)
        self.sow("intermediates", WEIGHTS, weights)
        weights = Dropout(self.dropout_rate, name="dropout")(weights, ctx)
        values = self._project("value", source)
        with part("attention"):
            mixed = jnp.einsum("bnts,bsnk->btnk", weights, values)
        names = (axes.HEADS, axes.HEAD_SIZE), (axes.WIDTH,), (x.shape[-1],)
        return Linear(*names, self.kernel_init, self.dtype, None, name="out")(mixed), cache

    def _scores(
        self,
        x: jax.Array,
        source: jax.Array,
        segments: jax.Array,
        at: jax.Array,
        relative: Distances,
    ) -> jax.Array:
        """Returns the scores [B, N, T + P, S] float32 before the mask.

        Args:
          x: [B, T + P, D], the queries.
          source: [B, S, D], the keys.
          segments: [B, S] int32, segment of each key.
          at: [B, T + P] int32, the key at the place of each query.
          relative: vectors of the distances S - 1, ..., 1 - T.
        """
        names, shape = (axes.HEADS, axes.HEAD_SIZE), (self.num_heads, self.head_size)
        S = source.shape[1]  # noqa: N806
        query, keys = self._project("query", x), self._project("key", source)
        table = axes.parameter(
            self, "segment_table", self.kernel_init, (axes.SEGMENTS, *names), (2, *shape)
        ).astype(query.dtype)
        bias = axes.parameter(self, "segment_bias", ZEROS, names, shape)
        vectors = relative.keys.astype(query.dtype)

        def biased(bias: jax.Array | None) -> jax.Array:
            assert bias is not None
            # Added in float32, so that the gradient of the bias is summed in float32.
            return (query + bias).astype(query.dtype)

        with part("attention"):
            scores = product("btnk,bsnk->bnts", biased(relative.content_bias), keys)
            by_distance = product("btnk,wnk->bntw", biased(relative.position_bias), vectors)
            same, other = (
                product("btnk,nk->bnt", biased(bias), table[i])[..., None] for i in range(2)
            )
        scores += to_keys(by_distance, S - 1 - at, S)
        apart = jnp.take_along_axis(segments, at, axis=1)[:, :, None] != segments[:, None]
        scores += jnp.where(apart[:, None], other, same)
        return scores * self.head_size**-0.5
