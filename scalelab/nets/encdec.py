"""The encoder-decoder: the decoder's tokens also see every token of a source."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nets.decoder import Batch, DecoderCache
from scalelab.nn.masks import (
    Context,
    Mask,
    Step,
    bounds_of_texts,
    positions_in_texts,
    texts_of_places,
)


def split_texts(batch: Batch) -> tuple[Batch, Batch]:
    """Adds the arrays by which an encoder and a decoder keep the texts of a row apart.

    A token of the target sees its own text and the source of this text.

    Args:
      batch: source [B, S] and tokens [B, T]; text_ends [B, K, 2] if rows have several texts: the
        end of each text in source and target. Without it, nothing is added.

    Returns:
      {"bounds": [B, S, 2]} for the encoder; the batch with bounds [B, T, 2] and source_bounds
      [B, T, 2] for the decoder.
    """
    if "text_ends" not in batch:
        return {}, batch
    source, target = batch["text_ends"][..., 0], batch["text_ends"][..., 1]
    read = texts_of_places(source, batch["source"].shape[1])
    texts = texts_of_places(target, batch["tokens"].shape[1])
    beside = {"source_bounds": bounds_of_texts(source, texts)}
    beside["bounds"] = bounds_of_texts(target, texts)
    return {"bounds": bounds_of_texts(source, read)}, batch | beside


class EncoderDecoder(nn.Module):
    """Source -> encoder layers; target -> a decoder over both -> hidden states and the head.

    Attributes:
      encoder: (carry, ctx, cache) -> (carry, cache), for the source.
      decoder: a nets.decoder.Decoder; its layers have cross-attention.
      source_embed: (batch, ctx) -> [B, S, D]; None: the decoder's `embed`.
      source_norm: after the last layer of the encoder; None: nothing (post-norm families).
    """

    EMBEDDING = ("decoder/embed", "source_embed")
    TOKEN_TABLE = "decoder/embed/tokens/table"

    encoder: nn.Module
    decoder: nn.Module
    source_embed: nn.Module | None = None
    source_norm: nn.Module | None = None

    def encode(self, batch: Batch, max_len: int) -> DecoderCache:
        """Returns the cache of an empty target, with the keys and values of the source in it."""
        size, source_len = batch["source"].shape
        empty = self.decoder.init_cache(size, max_len, source_len)
        empty = empty.replace(source_lengths=batch["source_lengths"])
        # Without target tokens the decoder's layers compute only the source's keys and values.
        nothing = {"tokens": jnp.zeros((size, 0), jnp.int32), "lengths": empty.lengths}
        _, cache = self(batch | nothing, train=False, cache=empty)
        assert cache is not None
        return cache

    def __call__(
        self, batch: Batch, *, train: bool, cache: DecoderCache | None = None, step: Step = None
    ) -> tuple[jax.Array, DecoderCache | None]:
        """Computes hidden states [B, T, D] of the target.

        Arguments and results are as in `Decoder`. The batch also has source [B, S] and
        source_lengths [B], unless `cache` comes from `encode`; and text_ends (`split_texts`) if
        rows have several texts.
        """
        own, batch = split_texts(batch)
        source = self._read(batch | own, train, step) if "source" in batch else None
        return self.decoder(batch, train=train, cache=cache, step=step, source=source)

    def _read(self, batch: Batch, train: bool, step: Step) -> jax.Array:
        """Returns the encoder's hidden states [B, S, D]."""
        mask = Mask(batch["source_lengths"], visible=batch.get("bounds"))
        positions = positions_in_texts(batch["source"].shape[1], mask.visible)
        ctx = Context(mask, positions, batch["examples"], step=step, train=train)
        embed = self.decoder.embed if self.source_embed is None else self.source_embed
        hidden, _ = self.encoder(embed(batch | {"tokens": batch["source"]}, ctx), ctx, None)
        return hidden if self.source_norm is None else self.source_norm(hidden)

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., E], table [V, E] and bias [V] or None, as `Decoder`."""
        return self.decoder.token_features(hidden)
