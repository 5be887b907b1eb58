"""The encoder-decoder: a decoder whose tokens also see every token of a source."""

from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nets.decoder import causal_context
from scalelab.nn.heads import tied_logits
from scalelab.nn.masks import Context, Mask

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class SourceCache:
    """What earlier calls leave for later ones.

    Attributes:
      layers: caches of the decoder's layers; all leaves are stacked on axis 0, examples are axis 1.
      lengths: [B] int32, target tokens seen so far in each example.
      source_lengths: [B] int32, tokens of each source.
    """

    layers: ArrayPytree
    lengths: jax.Array
    source_lengths: jax.Array


class EncoderDecoder(nn.Module):
    """Source -> encoder layers; target -> decoder layers over both -> hidden states and the head.

    Attributes:
      embed: (batch, ctx) -> [B, T, D], with a token table [V, E] at `tokens.table`.
      encoder: (carry, ctx, cache) -> (carry, cache), for the source.
      decoder: the same for the target; its layers have cross-attention.
      token_head: hidden -> (features [..., E], bias) for the table that scores tokens.
      source_embed: embeds the source; None: `embed` does.
      source_norm: after the last layer of the encoder; None: nothing.
      norm: after the last layer of the decoder; None: nothing.
      output_embed: the table that scores tokens; None: that of `embed` (tied).

    EMBEDDING has the paths of what turns tokens into vectors, TOKEN_TABLE that of the token table.
    """

    EMBEDDING: ClassVar[tuple[str, ...]] = ("embed", "source_embed")
    TOKEN_TABLE: ClassVar[str] = "embed/tokens/table"

    embed: nn.Module
    encoder: nn.Module
    decoder: nn.Module
    token_head: nn.Module
    source_embed: nn.Module | None = None
    source_norm: nn.Module | None = None
    norm: nn.Module | None = None
    output_embed: nn.Module | None = None

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return self.decoder.num_layers

    def encode(self, batch: Batch, max_len: int, *, train: bool = False) -> SourceCache:
        """Reads a source.

        Args:
          batch: source [B, S], source_lengths [B], examples [B].
          max_len: room for target tokens.
          train: whether dropout is on.

        Returns:
          The cache of an empty target, with the keys and values of the source in it.
        """
        size, source_len = batch["source"].shape
        layers = self.decoder.init_cache(size, max_len, source_len)
        nothing = jnp.zeros((size,), jnp.int32)
        cache = SourceCache(layers, nothing, batch["source_lengths"])
        # On no target token, the decoder's layers compute the source's keys and values alone.
        empty = batch | {"tokens": jnp.zeros((size, 0), jnp.int32), "lengths": nothing}
        return self(empty, train=train, cache=cache)[1]

    def __call__(
        self,
        batch: Batch,
        *,
        train: bool,
        cache: SourceCache | None = None,
        step: jax.Array | None = None,
    ) -> tuple[jax.Array, SourceCache | None]:
        """Computes hidden states of the target.

        Args:
          batch: tokens [B, T], lengths [B], examples [B]; source [B, S] and source_lengths [B],
            which a cache from `encode` has read. Tokens and cache go together as in a Decoder.
          train: whether dropout is on (needs the random key "dropout").
          cache: from `encode` or an earlier call.
          step: int32 [], training steps taken so far; None: not known.

        Returns:
          [B, T, D] in the compute dtype, and the cache with the new tokens in it.
        """
        seen = None if cache is None else cache.lengths
        ctx, lengths = causal_context(batch, seen, step=step, train=train)
        mask = Mask(lengths=batch["source_lengths"] if cache is None else cache.source_lengths)
        ctx = ctx.replace(source_mask=mask)
        if "source" in batch:
            ctx = ctx.replace(source=self._read(batch, mask, ctx))
        layers = None if cache is None else cache.layers
        hidden, layers = self.decoder(self.embed(batch, ctx), ctx, layers)
        if self.norm is not None:
            hidden = self.norm(hidden)
        if cache is not None:
            cache = cache.replace(layers=layers, lengths=lengths)
        return hidden, cache

    def _read(self, batch: Batch, mask: Mask, ctx: Context) -> jax.Array:
        """Returns the encoder's hidden states [B, S, D]."""
        positions = jnp.arange(batch["source"].shape[1])[None]
        ctx = ctx.replace(mask=mask, positions=positions, source_mask=None)
        embed = self.embed if self.source_embed is None else self.source_embed
        hidden, _ = self.encoder(embed(batch | {"tokens": batch["source"]}, ctx), ctx, None)
        return hidden if self.source_norm is None else self.source_norm(hidden)

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """What scores tokens at hidden [..., D]: features [..., E], table [V, E], bias [V]|None."""
        features, bias = self.token_head(hidden)
        output = self.embed.tokens if self.output_embed is None else self.output_embed
        return features, output.table, bias

    def token_logits(self, hidden: jax.Array) -> jax.Array:
        """Scores of all tokens at hidden [..., D] -> [..., V] float32."""
        return tied_logits(*self.token_features(hidden))
