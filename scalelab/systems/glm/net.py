"""The infiller: one stack reads a text with blanks, and behind it the blanks (Du et al. 2022, 2.1).

Part A is the text, with a mask for each blank; Part B has the blanks, each behind a start token. A
token of Part A sees Part A; a token of Part B sees Part A, itself, and Part B before it.

A token has two positions: its place in Part A, or its mask's; and its place in its blank, from 1,
or 0 in Part A. So a blank takes one position of Part A, however long it is.
"""

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.typing import DTypeLike

from scalelab.nets.decoder import Batch, Decoder, DecoderCache
from scalelab.nn import axes
from scalelab.nn.dropout import Dropout
from scalelab.nn.embed import Embed
from scalelab.nn.masks import ONE_TEXT, Context, Step
from scalelab.nn.positions import check_length


@flax.struct.dataclass
class BlankCache:
    """The state that one call leaves for the next; the first fields are those of `DecoderCache`.

    Attributes:
      layers: caches of the layers, with Part A.
      lengths: [B] int32, tokens of Parts A and B seen so far.
      masks: [B, S] int32, as of `Infiller.find_masks`.
      opened: [B] int32, blanks that Part B has begun.
      inner: [B] int32, the place of Part B's last token in its blank; 0: there is no token.
    """

    layers: ArrayPytree
    lengths: jax.Array
    masks: jax.Array
    opened: jax.Array
    inner: jax.Array


class BlankEmbed(nn.Module):
    """The sum of the vectors of a token and of its two positions, with dropout.

    Attributes:
      tokens: ids [B, T] -> [B, T, D].
      places: places in Part A [B, T] -> [B, T, D].
      inner: places in a blank [B, T] -> [B, T, D].
      dropout_rate: dropout on the sum.
      dtype: dtype of the result.
    """

    tokens: Embed
    places: Embed
    inner: Embed
    dropout_rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, batch: Batch, ctx: Context) -> jax.Array:
        """Embeds a row: [B, T, D].

        Args:
          batch: tokens, places and inner, each [B, T].
          ctx: whether dropout is on.
        """
        with axes.part("embedding"):
            x = self.tokens(batch["tokens"])
            x = x + self.places(batch["places"]) + self.inner(batch["inner"])
            x = Dropout(self.dropout_rate, name="dropout")(x.astype(self.dtype), ctx)
        return axes.constrain(x, axes.BATCH, axes.LENGTH, axes.WIDTH)


class Infiller(nn.Module):
    """Parts A and B -> one row of tokens -> a decoder -> the hidden states of Part B.

    Attributes:
      decoder: the decoder, which embeds by a `BlankEmbed`.
      mask: id of a blank's mask.
      start: id of [S].
      end: id of [E].
    """

    EMBEDDING = ("decoder/embed",)
    TOKEN_TABLE = "decoder/embed/tokens/table"

    decoder: Decoder
    mask: int
    start: int
    end: int

    def find_masks(self, source: jax.Array, lengths: jax.Array) -> jax.Array:
        """Returns the places of the masks of Part A, int32 [B, S], the last one repeated behind.

        Without a mask it is the last place of Part A.

        Args:
          source: [B, S], Part A.
          lengths: [B], its real tokens.
        """
        places = jnp.arange(source.shape[1])
        is_mask = (source == self.mask) & (places < lengths[:, None])
        is_mask |= (places == lengths[:, None] - 1) & ~is_mask.any(axis=1, keepdims=True)
        last = jnp.max(jnp.where(is_mask, places, 0), axis=1, keepdims=True)
        return jnp.minimum(jnp.sort(jnp.where(is_mask, places, source.shape[1]), axis=1), last)

    def encode(self, batch: Batch, max_len: int) -> BlankCache:
        """Returns the cache of both parts, with Part A, the source, in it."""
        tokens, lengths = batch["source"], batch["source_lengths"]
        check_length(tokens.shape[1], self.decoder.embed.places.num_rows)
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        row = {"tokens": tokens, "lengths": lengths, "examples": batch["examples"]}
        row |= {"places": places, "inner": 0 * places} | _visible(places, lengths)
        empty = self.decoder.init_cache(len(tokens), tokens.shape[1] + max_len)
        _, cache = self.decoder(row, train=False, cache=empty)
        assert cache is not None
        masks, none = self.find_masks(tokens, lengths), jnp.zeros_like(lengths)
        return BlankCache(cache.layers, cache.lengths, masks, none, none)

    def __call__(
        self, batch: Batch, *, train: bool, cache: BlankCache | None = None, step: Step = None
    ) -> tuple[jax.Array, BlankCache | None]:
        """Computes hidden states [B, T, D] of Part B.

        Arguments and results are as in `nets.encdec.EncoderDecoder`. The batch may also have blanks
        [B, T], the place of each token's mask in Part A; absent: from left to right. The first
        token counts as a start. An end token begins the next blank; a later start token is an
        ordinary token of its blank.
        """
        if "text_ends" in batch:
            raise ValueError(ONE_TEXT)
        tokens, lengths = batch["tokens"], batch["lengths"]
        starts = batch["source_lengths"] if cache is None else cache.lengths
        behind = jnp.arange(tokens.shape[1])
        is_first = (behind == 0) & (cache is None or cache.opened[:, None] == 0)
        begins = is_first | (tokens == self.end)
        opened, inner = jnp.cumsum(begins, axis=1), jnp.where(begins, behind, 0)
        if cache is None:
            masks = self.find_masks(batch["source"], starts)
        else:
            masks, opened = cache.masks, opened + cache.opened[:, None]
            inner = jnp.where(begins, behind, -cache.inner[:, None])
        inner = behind + 1 - jax.lax.cummax(inner, axis=1)
        at = jnp.clip(opened - 1, 0, masks.shape[1] - 1)
        own = {"tokens": jnp.where(begins, self.start, tokens), "inner": inner}
        own["places"] = batch.get("blanks", jnp.take_along_axis(masks, at, axis=1))
        there, rows = starts[:, None] + behind, jnp.arange(len(tokens))[:, None]
        beside = {"examples": batch["examples"], "lengths": lengths}
        if cache is not None:
            read, seen = own | beside | _visible(there, starts), DecoderCache(cache.layers, starts)
            hidden, new = self.decoder(read, train=train, cache=seen, step=step)
            assert new is not None
            last = rows, lengths[:, None] - 1
            state = (x[last][:, 0] for x in (opened, inner))
            return hidden, BlankCache(new.layers, new.lengths, masks, *state)
        source = batch["source"]
        longest = max(source.shape[1], tokens.shape[1])
        check_length(longest, self.decoder.embed.places.num_rows)
        places = jnp.broadcast_to(jnp.arange(source.shape[1]), source.shape)
        first = {"tokens": source, "places": places, "inner": 0 * places}
        room = (0, 0), (0, tokens.shape[1])
        row = {name: jnp.pad(x, room).at[rows, there].set(own[name]) for name, x in first.items()}
        every = jnp.arange(row["tokens"].shape[1])[None]
        row |= beside | {"lengths": starts + lengths} | _visible(every, starts)
        hidden, _ = self.decoder(row, train=train, step=step)
        return hidden[rows, there], None

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., E], table [V, E] and bias [V] or None, as `Decoder`."""
        return self.decoder.token_features(hidden)


def _visible(places: jax.Array, starts: jax.Array) -> Batch:
    """Returns the mask of a row: each token sees itself, its left, and Part A.

    Args:
      places: [B, T] or [1, T], of each token in Parts A and B together.
      starts: [B], the place where Part B begins, or goes on.
    """
    stop = jnp.maximum(places + 1, starts[:, None])
    return {"visible": jnp.stack([jnp.zeros_like(stop), stop], axis=-1)}
