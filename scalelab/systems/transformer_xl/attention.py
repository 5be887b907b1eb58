"""Attention by relative positions over a memory (Dai et al. 2019, "Transformer-XL", 3.2 and 3.3).

Position scores are computed for each distance and then moved to the keys, so that their memory is
linear in the number of keys: no array has the axes queries, keys and head size.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.attention import MASKED_SCORE, WEIGHTS, KeyValueCache
from scalelab.nn.axes import constrain, part, useful
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context
from scalelab.nn.memory import Memory
from scalelab.nn.product import product
from scalelab.nn.relative import Distances

Init = nn.initializers.Initializer
Move = Callable[[jax.Array], jax.Array]  # scores by distance to scores by key, or back: [..., T, S]


class ClippedDistances(nn.Module):
    """One learned key and value for each distance, the same for all beyond `most`.

    Shaw et al. 2018, "Self-Attention with Relative Position Representations", 3.2, eq. 3 and 4.

    Attributes:
      most: k, the largest distance with vectors of its own.
      head_size: K.
      table_init: initializer of both tables.
    """

    most: int
    head_size: int
    table_init: Init

    @nn.compact
    def __call__(self, distances: jax.Array) -> Distances:
        """Maps distances [W] int32, at least 0 where they are seen, to their vectors."""
        names, shape = (axes.POSITIONS, axes.HEAD_SIZE), (self.most + 1, self.head_size)
        rows = jnp.clip(distances, 0, self.most)
        keys, values = (
            jnp.take(axes.parameter(self, name, self.table_init, names, shape), rows, axis=0)
            for name in ("key_table", "value_table")
        )
        return Distances(keys[:, None], values)


def to_keys(by_distance: jax.Array) -> jax.Array:
    """Moves scores [..., T, S] of the distances S-1, ..., 0 to their keys [..., T, S].

    Query i is at key S - T + i. Scores of keys after a query are arbitrary. It is the relative
    shift of Dai et al. 2019, appendix B.
    """
    *rest, num_queries, num_keys = by_distance.shape
    rows = jnp.pad(by_distance, [(0, 0)] * (len(rest) + 1) + [(0, 1)]).reshape(*rest, -1)
    rows = rows[..., num_queries - 1 :][..., : num_queries * num_keys]
    return rows.reshape(by_distance.shape)


def to_distances(by_key: jax.Array) -> jax.Array:
    """Moves weights [..., T, S], 0 for keys after a query, to the distances S-1, ..., 0."""
    *rest, num_queries, num_keys = by_key.shape
    rows = jnp.pad(by_key.reshape(*rest, -1), [(0, 0)] * len(rest) + [(num_queries - 1, 1)])
    return rows.reshape(*rest, num_queries, num_keys + 1)[..., :num_keys]


def mirror(positions: jax.Array, num_keys: int) -> Move:
    """Returns the move between the keys 0, ..., S-1 and the distances 0, ..., S-1, both ways.

    Args:
      positions: [B, T] int32, the key of each query.
      num_keys: S.
    """
    other = positions[:, None, :, None] - jnp.arange(num_keys)

    def move(x: jax.Array) -> jax.Array:
        moved = jnp.take_along_axis(x, jnp.broadcast_to(other, x.shape), axis=-1, mode="clip")
        return jnp.where(other >= 0, moved, 0)

    return move


class RelativeAttention(nn.Module):
    """Causal self-attention whose scores depend on contents and distances.

    Attributes:
      num_heads: N.
      head_size: K.
      dropout_rate: dropout on the attention weights.
      distances: distances [W] int32 -> Distances.
      kernel_init: initializer of the query, key and value kernels; there are no biases.
      out_kernel_init: initializer of the output kernel.
      dtype: dtype of the computation; scores and softmax are float32.
    """

    num_heads: int
    head_size: int
    dropout_rate: float
    distances: nn.Module
    kernel_init: Init
    out_kernel_init: Init
    dtype: DTypeLike = jnp.float32

    def init_cache(self, batch_size: int, max_len: int) -> KeyValueCache:
        """Returns an empty cache for `max_len` tokens: zeros [B, N, max_len, K]."""
        empty = jnp.zeros((batch_size, self.num_heads, max_len, self.head_size), self.dtype)
        return KeyValueCache(empty, empty)

    def _project(self, name: str, x: jax.Array) -> jax.Array:
        names, shape = (axes.HEADS, axes.HEAD_SIZE), (self.num_heads, self.head_size)
        y = Linear((axes.WIDTH,), names, shape, self.kernel_init, self.dtype, None, name=name)(x)
        return constrain(y, axes.BATCH, axes.LENGTH, axes.HEADS, axes.HEAD_SIZE)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: Memory | KeyValueCache | None
    ) -> tuple[jax.Array, Memory | KeyValueCache | None]:
        """Attends from x [B, T, D] to x and to the tokens before it.

        Args:
          x: [B, T, D].
          ctx: causal mask and positions; both count the M places of a memory.
          cache: a memory, through which no gradient flows; or keys and values of earlier tokens;
            None: there are no tokens before x.

        Returns:
          [B, T, D], and the memory or cache with x.
        """
        T, memory, source = x.shape[1], None, x  # noqa: N806
        if isinstance(cache, Memory):
            memory = cache
            source = jnp.concatenate([jax.lax.stop_gradient(memory.states), x], axis=1)
        query, keys, values = (
            self._project(name, read)
            for name, read in (("query", x), ("key", source), ("value", source))
        )
        place, by_key, by_distance = "bsnk", to_keys, to_distances
        if isinstance(cache, KeyValueCache):
            cache = cache.write(keys, values, ctx.positions)
            keys, values, place = cache.keys, cache.values, "bnsk"
        S = keys.shape[place.index("s")]  # noqa: N806
        distances = S - 1 - jnp.arange(S)
        if place == "bnsk":
            distances = jnp.arange(S)
            by_key = by_distance = mirror(ctx.positions, S)
        allowed, lengths = ctx.mask.dense(T, S), ctx.mask.lengths
        if memory is not None:
            assert lengths is not None  # a model with a memory reads rows of a batch
            there = jnp.arange(S) >= (S - T - memory.sizes)[:, None]
            allowed = allowed & there[:, None, None]
            cache = memory.extend(x, lengths - (S - T))
        relative = self.distances(distances)
        # A query uses the memory and half of the segment.
        counted = useful((S - T / 2) / S if place == "bsnk" else 0.5)

        def biased(bias: jax.Array | None) -> jax.Array:
            # Added in float32, so that the gradient of the bias is summed in float32.
            return query if bias is None else (query + bias).astype(query.dtype)

        table = jnp.broadcast_to(relative.keys, (S, *query.shape[2:])).astype(query.dtype)
        with part("attention"), counted:
            scores = product(f"btnk,{place}->bnts", biased(relative.content_bias), keys)
            positions = product("btnk,snk->bnts", biased(relative.position_bias), table)
        scores = (scores + by_key(positions)) * self.head_size**-0.5
        weights = jax.nn.softmax(jnp.where(allowed, scores, MASKED_SCORE), axis=-1)
        weights = weights.astype(self.dtype)
        self.sow("intermediates", WEIGHTS, weights)
        weights = Dropout(self.dropout_rate, name="dropout")(weights, ctx)
        with part("attention"), counted:
            mixed = jnp.einsum(f"bnts,{place}->btnk", weights, values)
            if relative.values is not None:
                vectors = relative.values.astype(weights.dtype)
                mixed += jnp.einsum("bnts,sk->btnk", by_distance(weights), vectors)
        names = (axes.HEADS, axes.HEAD_SIZE), (axes.WIDTH,), (x.shape[-1],)
        return Linear(*names, self.out_kernel_init, self.dtype, None, name="out")(mixed), cache
