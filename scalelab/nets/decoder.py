"""The decoder: a token sees itself and what lies before it."""

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn.heads import tied_logits
from scalelab.nn.masks import Context, Mask

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class DecoderCache:
    """What earlier calls leave for later ones.

    Attributes:
      layers: caches of the layers, stacked on axis 0.
      lengths: [B] int32, tokens seen so far in each example.
    """

    layers: nn.Module
    lengths: jax.Array


class Decoder(nn.Module):
    """Embeddings -> causal layers -> hidden states, and the head on them.

    Attributes:
      embed: (batch, ctx) -> [B, T, D], with a token table at `tokens.table`.
      stack: (carry, ctx, cache) -> (carry, cache).
      token_head: hidden -> (features, bias) for the table that scores tokens.
      norm: after the last layer; None: nothing (post-norm families).
      output_embed: the table that scores tokens; None: that of `embed` (tied).
    """

    embed: nn.Module
    stack: nn.Module
    token_head: nn.Module
    norm: nn.Module | None = None
    output_embed: nn.Module | None = None

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
          step: of the training, for layers that depend on it.

        Returns:
          [B, T, D] in the compute dtype, and the cache with the new tokens in it.
        """
        tokens, lengths = batch["tokens"], batch["lengths"]
        positions = jnp.arange(tokens.shape[1])[None]
        mask = Mask(lengths=lengths, causal=True)
        if cache is not None:
            positions = positions + cache.lengths[:, None]
            lengths = cache.lengths + lengths
            mask = Mask(lengths=lengths, query_positions=positions, causal=True)
        ctx = Context(
            mask=mask, positions=positions, examples=batch["examples"], step=step, train=train
        )
        layers = None if cache is None else cache.layers
        hidden, layers = self.stack(self.embed(batch, ctx), ctx, layers)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return hidden, None if cache is None else DecoderCache(layers=layers, lengths=lengths)

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """What scores tokens at hidden [..., D]: features [..., D], table [V, D], bias [V]|None."""
        features, bias = self.token_head(hidden)
        output = self.embed.tokens if self.output_embed is None else self.output_embed
        return features, output.table, bias

    def token_logits(self, hidden: jax.Array) -> jax.Array:
        """Scores of all tokens at hidden [..., D] -> [..., V] float32."""
        return tied_logits(*self.token_features(hidden))
