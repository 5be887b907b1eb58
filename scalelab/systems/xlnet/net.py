"""Two streams over one set of parameters (Yang et al. 2019, "XLNet", 2.3 to 2.5).

The content stream has a state for each token, which contains the token. The query stream has a
state for each predicted place: it starts from one learned vector and sees the content of tokens
before its own in the order of prediction, so it knows its place and not its token. Keys and values
come from a memory and the content stream. Both streams go through the layers as one array, content
first: a layer is any layer that the other models have.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nn import axes
from scalelab.nn.dropout import Dropout
from scalelab.nn.masks import Context, Mask, Step
from scalelab.nn.memory import carried_memory

Batch = dict[str, jax.Array]
Init = nn.initializers.Initializer


class QueryEmbed(nn.Module):
    """The first state of all queries, one learned vector (Yang et al. 2019, 2.3).

    Attributes:
      vector_init: initializer of the vector.
      dropout_rate: dropout on the states.
    """

    vector_init: Init
    dropout_rate: float

    @nn.compact
    def __call__(self, content: jax.Array, num_queries: int, ctx: Context) -> jax.Array:
        """Returns the first states of queries, [B, P, D] of the content's dtype.

        Args:
          content: [B, T, D], states of the tokens.
          num_queries: P, of a row.
          ctx: what the pass gives to layers.
        """
        B, _, D = content.shape  # noqa: N806
        vector = axes.parameter(self, "vector", self.vector_init, (axes.WIDTH,), (D,))
        # Cast after it is repeated, so that its gradient is summed in float32.
        states = jnp.broadcast_to(vector, (B, num_queries, D)).astype(content.dtype)
        return Dropout(self.dropout_rate, name="dropout")(states, ctx)


class Order(NamedTuple):
    """Who sees whom in a text whose tokens are predicted one after another.

    Attributes:
      ranks: [B, T] int32, 0 for tokens that all others see; a token sees its rank and lower ones.
      places: [B, P] int32, the predicted places.
      limits: [B, P] int32, the highest rank that each query sees.
    """

    ranks: jax.Array
    places: jax.Array
    limits: jax.Array


class TwoStreams(nn.Module):
    """Embeddings -> layers -> states of both streams, and the head on them.

    Attributes:
      embed: (batch, ctx) -> [B, T, D], with a token table [V, E] at `tokens.table`.
      query_embed: (content [B, T, D], P, ctx) -> the first states of the queries [B, P, D].
      stack: (carry, ctx, cache) -> (carry, cache), with `TwoStreamAttention`.
      token_head: hidden -> (features [..., E], bias) for the table that scores tokens.
      memory_len: M; 0: no memory.
      mask_id: id of the token whose place is predicted, in a batch without an order.
      class_id: id of the token that is a segment of its own.
      output_embed: the table that scores tokens; None: the table of `embed` (tied).
    """

    EMBEDDING = ("embed", "query_embed")  # paths of the modules that make the first states
    TOKEN_TABLE = "embed/tokens/table"

    embed: nn.Module
    query_embed: nn.Module
    stack: nn.Module
    token_head: nn.Module
    memory_len: int
    mask_id: int
    class_id: int
    output_embed: nn.Module | None = None

    @nn.compact
    def _read(self, batch: Batch, order: Order | None, train: bool, step: Step) -> jax.Array:
        """Returns the states [B, T + P, D] of both streams; [B, T, D] without an order."""
        B, T = batch["tokens"].shape  # noqa: N806
        at = jnp.arange(T)[None]
        ctx = Context(Mask(), at, batch["examples"], step=step, train=train)
        x = self.embed(batch, ctx)
        size = self.stack.num_layers, B, self.memory_len, x.shape[-1]
        found = carried_memory(self, size, x.dtype, batch)
        M = 0 if found is None else self.memory_len  # noqa: N806
        before = [(0, 0), (M, 0)]  # a memory has rank 0 and segment 0
        mask = Mask(M + batch["lengths"], query_positions=M + at)
        if order is not None:
            start = self.query_embed(x, order.places.shape[1], ctx)
            x = jnp.concatenate([x, start], axis=1)
            at = jnp.concatenate([jnp.broadcast_to(at, (B, T)), order.places], axis=1)
            mask = Mask(
                mask.lengths,
                query_positions=M + at,
                ranks=jnp.pad(order.ranks, before),
                query_ranks=jnp.concatenate([order.ranks, order.limits], axis=1),
            )
        segments = jnp.pad(self._segments(batch), before)
        ctx = dataclasses.replace(ctx, mask=mask, segments=segments)
        x, after = self.stack(x, ctx, None if found is None else found[0])
        if found is not None:
            found[1](after)
        return x

    def _segments(self, batch: Batch) -> jax.Array:
        """Returns the segment of each token [B, T]: 0, 1 from second_starts on, 2 for the class."""
        tokens = batch["tokens"]
        starts = batch.get("second_starts", jnp.full(len(tokens), tokens.shape[1]))
        ids = (jnp.arange(tokens.shape[1]) >= starts[:, None]).astype(jnp.int32)
        return jnp.where(tokens == self.class_id, 2, ids)

    def __call__(
        self, batch: Batch, *, train: bool, cache: ArrayPytree = None, step: Step = None
    ) -> tuple[jax.Array, ArrayPytree]:
        """Computes the content stream [B, T, D], in which all tokens see each other.

        It takes no cache: the collection "carried" has the memory of each row, as in
        `carried_memory`. The batch may have second_starts [B] for pairs of texts.
        """
        assert cache is None, "a model with two streams takes no cache"
        return self._read(batch, None, train, step), None

    def token_states(self, batch: Batch, *, train: bool, step: Step = None) -> jax.Array:
        """Computes the query stream [B, T, D]: the state at a place predicts its token.

        If the batch has ranks [B, T] (`Order`) and mlm_positions [B, P], states at places other
        than these P are arbitrary. Otherwise no query sees the mask tokens.
        """
        tokens = batch["tokens"]
        at = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        if "ranks" not in batch:
            masked = (tokens == self.mask_id).astype(jnp.int32)
            order = Order(masked, at, jnp.zeros_like(masked))
            return self._read(batch, order, train, step)[:, tokens.shape[1] :]
        ranks, places = batch["ranks"], batch["mlm_positions"]
        order = Order(ranks, places, jnp.take_along_axis(ranks, places, axis=1) - 1)
        queries = self._read(batch, order, train, step)[:, tokens.shape[1] :]
        slots = jnp.argmax(places[:, None, :] == at[..., None], axis=-1)
        return jnp.take_along_axis(queries, slots[..., None], axis=1)

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., E], table [V, E] and bias [V] or None for hidden [..., D]."""
        features, bias = self.token_head(hidden)
        output = self.embed.tokens if self.output_embed is None else self.output_embed
        return features, output.table, bias
