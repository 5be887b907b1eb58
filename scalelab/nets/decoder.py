"""The decoder: a token sees itself and the tokens before it."""

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nn.masks import Context, Mask, Step, positions_in_texts

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class DecoderCache:
    """The state that one call leaves for the next.

    Attributes:
      layers: caches of the layers: in all arrays, axis 0 is the layers and axis 1 the examples.
      lengths: [B] int32, tokens seen so far in each example.
      source_lengths: [B] int32, tokens of each source; None: there is no source.
    """

    layers: ArrayPytree
    lengths: jax.Array
    source_lengths: jax.Array | None = None


class Decoder(nn.Module):
    """Embeddings -> causal layers -> hidden states, and the head on them.

    Attributes:
      embed: (batch, ctx) -> [B, T, D], with a token table [V, E] at `tokens.table`.
      stack: (carry, ctx, cache) -> (carry, cache).
      token_head: hidden -> (features [..., E], bias) for the table that scores tokens.
      norm: after the last layer; None: nothing (post-norm families).
      output_embed: the table that scores tokens; None: the table of `embed` (tied).
    """

    EMBEDDING = ("embed",)  # paths of the modules that turn tokens into vectors
    TOKEN_TABLE = "embed/tokens/table"

    embed: nn.Module
    stack: nn.Module
    token_head: nn.Module
    norm: nn.Module | None = None
    output_embed: nn.Module | None = None

    def init_cache(self, batch_size: int, max_len: int, *source_len: int) -> DecoderCache:
        """Returns an empty cache; `source_len` is S, the longest source, if the model reads one."""
        layers = self.stack.init_cache(batch_size, max_len, *source_len)
        return DecoderCache(layers=layers, lengths=jnp.zeros((batch_size,), jnp.int32))

    def __call__(
        self,
        batch: Batch,
        *,
        train: bool,
        cache: DecoderCache | None = None,
        step: Step = None,
        source: jax.Array | None = None,
    ) -> tuple[jax.Array, DecoderCache | None]:
        """Computes hidden states.

        Args:
          batch: tokens [B, T], lengths [B], examples [B]; visible [B, T, 2] (`nn.masks.Mask`) if
            an objective or a model sets the attention mask. With a cache, tokens continue those of
            earlier calls, and lengths counts only the new ones: prompts may differ in length.
            If rows have several texts, bounds [B, T, 2] has the bounds of each token's text
            (`nn.masks.bounds_of_texts`), and source_bounds [B, T, 2] those of its source.
          train: whether dropout is on (needs the random key "dropout").
          cache: from init_cache or an earlier call.
          step: number of the training step, for layers that depend on it.
          source: [B, S, D], of batch["source_lengths"] [B]; None: the cache has it, if any.

        Returns:
          [B, T, D] in the compute dtype, and the cache with the new tokens in it.
        """
        bounds, lengths = batch.get("bounds"), batch["lengths"]
        positions = positions_in_texts(batch["tokens"].shape[1], bounds)
        visible, layers, places = batch.get("visible"), None, None
        source_lengths = None if source is None else batch["source_lengths"]
        if cache is not None:
            positions = places = positions + cache.lengths[:, None]
            lengths, layers = cache.lengths + lengths, cache.layers
            source_lengths = cache.source_lengths
        causal, seen = visible is None, None
        if bounds is not None and causal:
            visible = jnp.minimum(bounds, jnp.arange(1, 1 + bounds.shape[1])[:, None])
        mask = Mask(lengths, query_positions=places, visible=visible, causal=causal)
        if source_lengths is not None:
            seen = Mask(lengths=source_lengths, visible=batch.get("source_bounds"))
        ctx = Context(
            mask=mask, positions=positions, examples=batch["examples"], source=source,
            source_mask=seen, step=step, train=train,
        )  # fmt: skip
        hidden, layers = self.stack(self.embed(batch, ctx), ctx, layers)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return hidden, None if cache is None else DecoderCache(layers, lengths, source_lengths)

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., E], table [V, E] and bias [V] or None for hidden [..., D]."""
        features, bias = self.token_head(hidden)
        output = self.embed.tokens if self.output_embed is None else self.output_embed
        return features, output.table, bias
