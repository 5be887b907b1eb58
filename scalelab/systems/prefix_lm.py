"""The decoder-only models of T5's study: a language model, and a prefix language model.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", 3.2.1. Reference code: tensorflow/mesh, mesh_tensorflow/transformer, `Unitransformer`.

One stack reads the source and, right behind it, the target. All else is `system=t5`: layers, biases
of distances, special tokens, format and objective, so that only the architecture differs. With
`system_options.mask=causal` each token sees its left. With the prefix mask, relative positions have
buckets for both directions, as in an encoder and in the reference code.

Departs from it:
  - the loss is on the target alone, as for T5. `data.format=denoising` with the style "lm" has the
    text as the target of an empty source: then all of it is predicted;
  - all other departures are T5's.
"""

import dataclasses
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config.fields import choice
from scalelab.nets.decoder import Batch, Decoder, DecoderCache
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.buckets import RelativeStack, unscaled
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead, ScaledHead
from scalelab.nn.layer import PreNorm
from scalelab.nn.masks import Step, bounds_of_texts, texts_of_places
from scalelab.nn.norm import RMSNorm
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Reading, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "unigram", "Raffel et al. 2020, 2.1: SentencePiece"),
    Departure("data.format", "span_corruption", "Raffel et al. 2020, 3.1.4 and 3.3.4"),
    Departure("objective", "seq2seq", "Raffel et al. 2020, 2.4: maximum likelihood"),
)
NUM_SENTINELS = 64
SPECIAL_TOKENS = (
    ("pad", "<pad>"),
    ("eos", "</s>"),
    ("unk", "<unk>"),
    *((f"sentinel_{i}", f"<extra_id_{i}>") for i in range(NUM_SENTINELS)),
)
FRAME: tuple[tuple[str, ...], ...] = ((), (), ("</s>",))
ADAPTATION = Adaptation(*FRAME)
HEADS = ("token",)
PREDICTS, SEES = "next", "source + left"
HAS_SOURCE, START, ORDER = True, "pad", "shuffled"
# As in T5, a single text is the target, and the source is one dropped span.
READING = Reading(begin=("sentinel_0",), source=("sentinel_0", "eos"), trained=False)

NORM_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Options:
    """The settings of the decoder-only models."""

    # "prefix": the tokens of the source see each other; "causal": a token sees itself and its left.
    mask: Annotated[str, choice("prefix", "causal")] = "prefix"


class OneStack(nn.Module):
    """Source and target -> one row of tokens -> a decoder -> the target's hidden states.

    Attributes:
      decoder: the decoder; its layers have no cross-attention.
      mask: as in Options.
    """

    EMBEDDING = ("decoder/embed",)
    TOKEN_TABLE = "decoder/embed/tokens/table"

    decoder: Decoder
    mask: str

    def encode(self, batch: Batch, max_len: int) -> DecoderCache:
        """Reads a source, without dropout.

        Args:
          batch: source, source_lengths and examples, as in `EncoderDecoder.encode`.
          max_len: T, positions of the target in the cache.

        Returns:
          The cache of source and target, with the source in it.
        """
        tokens, lengths = batch["source"], batch["source_lengths"]
        places = jnp.arange(tokens.shape[1])[None]
        read = self._row(tokens, lengths, batch["examples"], places, lengths[:, None])
        empty = self.decoder.init_cache(len(tokens), tokens.shape[1] + max_len)
        _, cache = self.decoder(read, train=False, cache=empty)
        assert cache is not None
        return cache

    def __call__(
        self, batch: Batch, *, train: bool, cache: DecoderCache | None = None, step: Step = None
    ) -> tuple[jax.Array, DecoderCache | None]:
        """Computes hidden states [B, T, D] of the target.

        Arguments and results are as in `EncoderDecoder`.
        """
        tokens, lengths, examples = batch["tokens"], batch["lengths"], batch["examples"]
        starts = (batch["source_lengths"] if cache is None else cache.lengths)[:, None]
        places, rows = starts + jnp.arange(tokens.shape[1]), jnp.arange(len(tokens))[:, None]
        if cache is not None:
            read = self._row(tokens, lengths, examples, places, starts)
            return self.decoder(read, train=train, cache=cache, step=step)
        if "text_ends" in batch:
            joined, places, starts, bounds = _place_texts(batch)
        else:
            joined, bounds = jnp.pad(batch["source"], ((0, 0), (0, tokens.shape[1]))), None
            joined = joined.at[rows, places].set(tokens)
        every, lengths = jnp.arange(joined.shape[1])[None], batch["source_lengths"] + lengths
        read = self._row(joined, lengths, examples, every, starts, bounds)
        hidden, _ = self.decoder(read, train=train, step=step)
        return hidden[rows, places], None

    def _row(
        self, tokens: jax.Array, lengths: jax.Array, examples: jax.Array, places: jax.Array,
        starts: jax.Array, bounds: jax.Array | None = None,
    ) -> Batch:  # fmt: skip
        """Returns a batch of the decoder, with its mask.

        Args:
          tokens: [B, T].
          lengths: [B], real tokens.
          examples: [B].
          places: [B, T] or [1, T], of each token in source and target together.
          starts: [B, T] or [B, 1], the place where the token's target begins, or goes on.
          bounds: [B, T, 2], of each token's text (`nn.masks`); None: a row is one text.
        """
        made = {"tokens": tokens, "lengths": lengths, "examples": examples}
        made |= {} if bounds is None else {"bounds": bounds}
        if self.mask == "causal":
            return made
        stop = jnp.maximum(places + 1, starts)
        first = jnp.zeros_like(stop) if bounds is None else bounds[..., 0]
        return made | {"visible": jnp.stack([first, stop], axis=-1)}

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., E], table [V, E] and bias [V] or None, as `Decoder`."""
        return self.decoder.token_features(hidden)


def _place_texts(batch: Batch) -> tuple[jax.Array, ...]:
    """Puts the target of each text right behind its source: all texts in one row [B, S + T].

    Returns:
      The row; the places [B, T] of the target's tokens in it; for each place of the row, where the
      target of its text begins [B, S + T], and the bounds of its text [B, S + T, 2].
    """
    source, tokens = batch["source"], batch["tokens"]
    (B, S), T, rows = source.shape, tokens.shape[1], jnp.arange(len(tokens))[:, None]  # noqa: N806
    first, second = jnp.moveaxis(batch["text_ends"], -1, 0)
    read = jnp.arange(S) + bounds_of_texts(second, texts_of_places(first, S))[..., 0]
    places = jnp.arange(T) + bounds_of_texts(first, texts_of_places(second, T))[..., 1]
    row = jnp.zeros((B, S + T), tokens.dtype).at[rows, read].set(source)
    row = row.at[rows, places].set(tokens)  # also over the padding of the source
    texts = texts_of_places(first + second, S + T)
    starts = bounds_of_texts(first, texts)[..., 1] + bounds_of_texts(second, texts)[..., 0]
    return row, places, starts, bounds_of_texts(first + second, texts)


def build(sizes: Sizes, options: Options, vocab_size: int) -> OneStack:
    """Builds the model, as `System.build`."""
    rate, K = sizes.dropout_rate, head_size(sizes.width, sizes.num_heads)  # noqa: N806
    normal = nn.initializers.normal
    norm = partial(RMSNorm, sizes.norm_epsilon or NORM_EPSILON)
    inner = normal(sizes.width**-0.5)
    attention = SelfAttention(
        sizes.num_heads, K, rate, (normal((sizes.width * K) ** -0.5), inner, inner),
        normal((sizes.num_heads * K) ** -0.5), sizes.dtype, unscaled, None,
    )  # fmt: skip
    ffn = FeedForward(
        sizes.ffn_width, ACTIVATIONS[sizes.activation or "relu"], inner,
        normal(sizes.ffn_width**-0.5), sizes.dtype, bias_init=None, dropout_rate=rate,
    )  # fmt: skip
    layers = Stack(PreNorm(attention, ffn, norm(), norm(), rate), sizes.num_layers, sizes.remat)
    untied = sizes.output_embedding
    tokens = Embed(vocab_size, sizes.width, normal(1.0))
    decoder = Decoder(
        embed=InputEmbed(tokens, None, rate, dtype=sizes.dtype),
        stack=RelativeStack(layers, norm(), sizes.num_heads, inner, rate),
        token_head=PlainHead() if untied else ScaledHead(),
        output_embed=output_table(untied, vocab_size, sizes.width, inner),
    )
    return OneStack(decoder, options.mask)


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of the stack without norms and biases of positions."""
    del options
    return sizes.num_layers * (4 * sizes.width**2 + 2 * sizes.width * sizes.ffn_width)
