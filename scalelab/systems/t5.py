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
from functools import partial
from typing import Annotated

from flax import linen as nn

from scalelab.config.fields import choice
from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.attention import CrossAttention, SelfAttention, head_size
from scalelab.nn.buckets import RelativeStack, unscaled
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead, ScaledHead
from scalelab.nn.layer import PreNorm
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
PREDICTS = "next"
SEES = "source + left"
HAS_SOURCE = True
START = "pad"
ORDER = "shuffled"
# A single text is the target; the source is one dropped span. Pre-training drops less of a text.
READING = Reading(begin=("sentinel_0",), source=("sentinel_0", "eos"), trained=False)

NORM_EPSILON = 1e-6
Parts = tuple[SelfAttention, FeedForward, RMSNorm, RMSNorm]


@dataclasses.dataclass(frozen=True)
class Options:
    """The settings of T5 alone."""

    # "gated": a gated FFN, activation(x W) * (x V) (Shazeer 2020). None: a plain FFN.
    ffn: Annotated[str, choice("gated")] | None = None
    # "shared": the layers of both stacks have the same parameters, but for the cross-attention with
    # its norm; the biases of distances and the last norms are each stack's own.
    layers: Annotated[str, choice("shared")] | None = None
    head_size: Annotated[int, ("at least 1", lambda n: n >= 1)] | None = None  # None: width / heads


def build(sizes: Sizes, options: Options, vocab_size: int) -> EncoderDecoder:
    """Builds the model, as `System.build`."""
    rate, K = sizes.dropout_rate, _head_size(sizes, options)  # noqa: N806
    normal = nn.initializers.normal
    norm = partial(RMSNorm, sizes.norm_epsilon or NORM_EPSILON)
    inner = normal(sizes.width**-0.5)
    heads = (
        sizes.num_heads, K, rate, (normal((sizes.width * K) ** -0.5), inner, inner),
        normal((sizes.num_heads * K) ** -0.5), sizes.dtype, unscaled, None,
    )  # fmt: skip

    def parts() -> Parts:
        ffn = FeedForward(
            sizes.ffn_width, ACTIVATIONS[sizes.activation or "relu"],
            (inner, inner) if options.ffn else inner,
            normal(sizes.ffn_width**-0.5), sizes.dtype, bias_init=None, dropout_rate=rate,
        )  # fmt: skip
        return SelfAttention(*heads), ffn, norm(), norm()

    def stack(own: Parts, cross: CrossAttention | None = None) -> RelativeStack:
        layer = PreNorm(*own, rate, cross, cross and norm())
        layers = Stack(layer, sizes.num_layers, sizes.remat)
        return RelativeStack(layers, norm(), sizes.num_heads, inner, rate)

    own, untied = parts(), sizes.output_embedding
    tokens = Embed(vocab_size, sizes.width, normal(1.0))
    decoder = Decoder(
        embed=InputEmbed(tokens, None, rate, dtype=sizes.dtype),
        stack=stack(own if options.layers else parts(), CrossAttention(*heads)),
        token_head=PlainHead() if untied else ScaledHead(),
        output_embed=output_table(untied, vocab_size, sizes.width, inner),
    )
    return EncoderDecoder(encoder=stack(own), decoder=decoder)


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of both stacks without norms and biases of positions."""
    attention = 4 * sizes.width * sizes.num_heads * _head_size(sizes, options)
    ffn = (3 if options.ffn else 2) * sizes.width * sizes.ffn_width
    stacks = 1 if options.layers else 2
    return sizes.num_layers * ((stacks + 1) * attention + stacks * ffn)


def _head_size(sizes: Sizes, options: Options) -> int:
    return options.head_size or head_size(sizes.width, sizes.num_heads)
