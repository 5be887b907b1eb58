"""The decoder: a token sees itself and what lies before it."""

from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nn.heads import tied_logits
from scalelab.nn.masks import Context, Mask

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class DecoderCache:
    """What earlier calls leave for later ones.

    Attributes:
      layers: caches of the layers; all leaves are stacked on axis 0, examples are axis 1.
      lengths: [B] int32, tokens seen so far in each example.
    """

    layers: ArrayPytree
    lengths: jax.Array


def causal_context(
    batch: Batch, seen: jax.Array | None, *, step: jax.Array | None, train: bool
) -> tuple[Context, jax.Array]:
    """Makes the context of tokens that see only what lies before them.

    Args:
      batch: tokens [B, T], lengths [B], examples [B].
      seen: [B] int32, tokens of each example in the cache; None: there is no cache.
      step: training steps taken so far; None: not known.
      train: whether dropout is on.

    Returns:
      The context, and the number of tokens of each example: [B] int32.
    """
    positions, lengths = jnp.arange(batch["tokens"].shape[1])[None], batch["lengths"]
    mask = Mask(lengths=lengths, causal=True)
    if seen is not None:
        positions, lengths = positions + seen[:, None], lengths + seen
        mask = Mask(lengths=lengths, query_positions=positions, causal=True)
    return Context(mask, positions, batch["examples"], step=step, train=train), lengths


class Decoder(nn.Module):
    """Embeddings -> causal layers -> hidden states, and the head on them.

    Attributes:
      embed: (batch, ctx) -> [B, T, D], with a token table [V, E] at `tokens.table`.
      stack: (carry, ctx, cache) -> (carry, cache).
      token_head: hidden -> (features [..., E], bias) for the table that scores tokens.
      norm: after the last layer; None: nothing (post-norm families).
      output_embed: the table that scores tokens; None: that of `embed` (tied).

    EMBEDDING has the paths of what turns tokens into vectors, TOKEN_TABLE that of the token table.
    """

    EMBEDDING: ClassVar[tuple[str, ...]] = ("embed",)
    TOKEN_TABLE: ClassVar[str] = "embed/tokens/table"

    embed: nn.Module
    stack: nn.Module
    token_head: nn.Module
    norm: nn.Module | None = None
    output_embed: nn.Module | None = None

    @property
    def num_layers(self) -> int:
        """Layers between the embeddings and the head."""
        return self.stack.num_layers

    def init_cache(self, batch_size: int, max_len: int) -> DecoderCache:
        """An empty cache for `max_len` tokens an example."""
        layers = self.stack.init_cache(batch_size, max_len)
        return DecoderCache(layers=layers, lengths=jnp.zeros((batch_size,), jnp.int32))

    def __call__(
        self,
        batch: Batch,
        *,
        train: bool,
        cache: DecoderCache | None = None,
        step: jax.Array | None = None,
    ) -> tuple[jax.Array, DecoderCache | None]:
        """Computes hidden states.

        Args:
          batch: tokens [B, T], lengths [B], examples [B]. With a cache, tokens go behind those of
            earlier calls, and lengths counts the new ones alone: prompts may differ in length.
          train: whether dropout is on (needs the random key "dropout").
          cache: from init_cache or an earlier call.
          step: int32 [], training steps taken so far; None: not known.

        Returns:
          [B, T, D] in the compute dtype, and the cache with the new tokens in it.
        """
        seen = None if cache is None else cache.lengths
        ctx, lengths = causal_context(batch, seen, step=step, train=train)
        layers = None if cache is None else cache.layers
        hidden, layers = self.stack(self.embed(batch, ctx), ctx, layers)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return hidden, None if cache is None else DecoderCache(layers=layers, lengths=lengths)

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """What scores tokens at hidden [..., D]: features [..., E], table [V, E], bias [V]|None."""
        features, bias = self.token_head(hidden)
        output = self.embed.tokens if self.output_embed is None else self.output_embed
        return features, output.table, bias

    def token_logits(self, hidden: jax.Array) -> jax.Array:
        """Scores of all tokens at hidden [..., D] -> [..., V] float32."""
        return tied_logits(*self.token_features(hidden))
