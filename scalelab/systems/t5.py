"""T5: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified ...".

Reference code: google-research/text-to-text-transfer-transformer, and its model in
tensorflow/mesh, mesh_tensorflow/transformer.

Departs from it:
  - 64 sentinels are at the beginning of the vocabulary; the published one has 100 at its end;
  - a text comes from one document and is not packed;
  - the optimizer is the base config's AdamW, not Adafactor; batch size and budget are the
    protocol's.

Version 1.1 (the reference code's released_checkpoints.md) has `model.activation=gelu_tanh`,
`model.output_embedding=untied` and `system_options.ffn=gated`: GeGLU (Shazeer 2020, "GLU
Variants").
"""

import dataclasses
import math
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.config.fields import choice
from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn import axes
from scalelab.nn.attention import CrossAttention, SelfAttention, head_size
from scalelab.nn.dropout import Dropout
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PreNorm
from scalelab.nn.masks import Context
from scalelab.nn.product import product
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
PREDICTS = "next"
SEES = "source + left"
HAS_SOURCE = True
START = "pad"
ORDER = "shuffled"
# A single text is the target; the source is one dropped span. Pre-training drops less of a text.
READING = Reading(begin=("sentinel_0",), source=("sentinel_0", "eos"), trained=False)

NORM_EPSILON = 1e-6
NUM_BUCKETS, MAX_DISTANCE = 32, 128


@dataclasses.dataclass(frozen=True)
class Options:
    """The settings of T5 alone."""

    # "gated": in the feed-forward networks a second map of the input multiplies the activation's
    # output; None: it does not.
    ffn: Annotated[str, choice("gated")] | None = None


class RMSNorm(nn.Module):
    """Layer normalization without mean and shift (Zhang and Sennrich 2019), in float32.

    Attributes:
      epsilon: added to the mean square.
    """

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes x [..., D] over D; returns the dtype of x."""
        ones = nn.initializers.ones_init()
        scale = axes.parameter(self, "scale", ones, (axes.NORM,), x.shape[-1:])
        wide = x.astype(jnp.float32)
        mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(x.dtype)


class ScaledHead(nn.Module):
    """Hidden states times D^-0.5, for the table that also embeds tokens (mesh_tensorflow)."""

    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, None]:
        """Returns features [..., D] and no bias."""
        return hidden * hidden.shape[-1] ** -0.5, None


def unscaled(query: jax.Array, keys: jax.Array, ctx: Context) -> jax.Array:
    """Returns attention scores without the factor K^-0.5, as an `nn.attention.Score`.

    Args:
      query: [B, T, N, K].
      keys: [B, S, N, K].
      ctx: unused.
    """
    del ctx
    return product("btnk,bsnk->bnts", query, keys)


def bucket(distance: jax.Array, causal: bool) -> jax.Array:
    """Returns the bucket of distances, int32 in [0, NUM_BUCKETS).

    Half of the buckets have one distance each, the others grow exponentially up to MAX_DISTANCE
    (Raffel et al. 2020, 2.1).

    Args:
      distance: [...] int32, key position minus query position.
      causal: whether queries see no later keys; if not, later keys have the second half of all.
    """
    count = NUM_BUCKETS if causal else NUM_BUCKETS // 2
    exact = count // 2
    far = np.arange(MAX_DISTANCE + 1, dtype=np.float32)  # a table, so that no device rounds
    growth = np.log(np.maximum(far, 1) / exact) / math.log(MAX_DISTANCE / exact)
    large = np.minimum(exact + (growth * (count - exact)).astype(np.int32), count - 1)
    table = jnp.asarray(np.where(far < exact, far, large), jnp.int32)
    near = jnp.maximum(-distance, 0) if causal else jnp.abs(distance)
    first = 0 if causal else jnp.where(distance > 0, count, 0)
    return first + jnp.take(table, jnp.minimum(near, MAX_DISTANCE))


class RelativeStack(nn.Module):
    """A stack and a last norm; the layers share one bias for each head and bucket of distance.

    Attributes:
      stack: (carry, ctx, cache) -> (carry, cache).
      norm: the last norm.
      num_heads: N.
      table_init: initializer of the biases.
      dropout_rate: after the norm.
    """

    stack: Stack
    norm: RMSNorm
    num_heads: int
    table_init: nn.initializers.Initializer
    dropout_rate: float

    def init_cache(self, *sizes: int) -> ArrayPytree:
        """Returns the empty cache of the stack."""
        return self.stack.init_cache(*sizes)

    @nn.compact
    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Applies the stack.

        Args:
          carry: [B, T, D].
          ctx: mask and positions.
          cache: a decoder's; None: there is none.

        Returns:
          [B, T, D] and the cache.
        """
        names, shape = (axes.POSITIONS, axes.HEADS), (NUM_BUCKETS, self.num_heads)
        table = axes.parameter(self, "buckets", self.table_init, names, shape)
        num_keys = carry.shape[1] if cache is None else cache[0].keys.shape[3]
        distance = jnp.arange(num_keys) - ctx.positions[:, :, None]
        bias = jnp.moveaxis(jnp.take(table, bucket(distance, ctx.mask.causal), axis=0), -1, 1)
        x, cache = self.stack(carry, dataclasses.replace(ctx, bias=bias), cache)
        return Dropout(self.dropout_rate, name="dropout")(self.norm(x), ctx), cache


def build(sizes: Sizes, options: Options, vocab_size: int) -> EncoderDecoder:
    """Builds the model, as `System.build`."""
    rate, K = sizes.dropout_rate, head_size(sizes.width, sizes.num_heads)  # noqa: N806
    normal = nn.initializers.normal
    norm = partial(RMSNorm, sizes.norm_epsilon or NORM_EPSILON)
    inner = normal(sizes.width**-0.5)
    heads = (
        sizes.num_heads, K, rate, (normal((sizes.width * K) ** -0.5), inner, inner),
        normal((sizes.num_heads * K) ** -0.5), sizes.dtype, unscaled, None,
    )  # fmt: skip

    def stack(cross: CrossAttention | None = None) -> RelativeStack:
        ffn = FeedForward(
            sizes.ffn_width, ACTIVATIONS[sizes.activation or "relu"],
            (inner, inner) if options.ffn else inner,
            normal(sizes.ffn_width**-0.5), sizes.dtype, bias_init=None, dropout_rate=rate,
        )  # fmt: skip
        layer = PreNorm(SelfAttention(*heads), ffn, norm(), norm(), rate, cross, cross and norm())
        layers = Stack(layer, sizes.num_layers, sizes.remat)
        return RelativeStack(layers, norm(), sizes.num_heads, inner, rate)

    untied = sizes.output_embedding
    decoder = Decoder(
        embed=InputEmbed(
            Embed(vocab_size, sizes.width, normal(1.0)), None, rate, dtype=sizes.dtype
        ),
        stack=stack(CrossAttention(*heads)),
        token_head=PlainHead() if untied else ScaledHead(),
        output_embed=output_table(untied, vocab_size, sizes.width, inner),
    )
    return EncoderDecoder(encoder=stack(), decoder=decoder)


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of both stacks without norms and biases of positions."""
    attention, ffn = 4 * sizes.width**2, (3 if options.ffn else 2) * sizes.width * sizes.ffn_width
    return sizes.num_layers * (3 * attention + 2 * ffn)
