"""PEGASUS: Zhang et al. 2020, "Pre-training with Extracted Gap-sentences for Abstractive ...".

Reference code: google-research/pegasus, models/transformer.py; `transformers`' Pegasus classes.

Departs from it:
  - a text comes from one document; 30,000 tokens instead of 96,000;
  - the loss has no label smoothing, and no masked tokens beside the gap sentences, which the
    paper's large model does not have either (6.1.2);
  - projections of the attention have biases, as the classes of `transformers`, which start a
    target with the vector of `<pad>`; the reference code has no biases and starts with zeros.
    Exponents of the sinusoids and the norms' epsilon are those of these classes, too: 2i/D and
    1e-5 instead of i / (D/2 - 1) and 1e-12;
  - dropout draws each element; the reference code draws the same for all positions of a text;
  - the optimizer is the base config's AdamW, not Adafactor; batch size and budget are the
    protocol's.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.attention import CrossAttention, SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PreNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import SinusoidPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Reading, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "unigram", "Zhang et al. 2020, 6.1.3"),
    Departure("data.format", "gap_sentences", "Zhang et al. 2020, 3.1"),
    Departure("objective", "seq2seq", "Zhang et al. 2020, 3.1: generate the gap sentences"),
)
SPECIAL_TOKENS = (("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>"), ("mask", "<mask_1>"))
FRAME: tuple[tuple[str, ...], ...] = ((), (), ("</s>",))
ADAPTATION = Adaptation(*FRAME)
HEADS = ("token",)
PREDICTS = "next"
SEES = "source + left"
HAS_SOURCE = True
START = "pad"
ORDER = "shuffled"
# A single text is the target, and the source is one masked sentence.
READING = Reading(source=("mask", "eos"), trained=False)

LAYER_NORM_EPSILON = 1e-5
# Kernels at the start: uniform, of variance 2 / (inputs + outputs) (TensorFlow's `Dense`).
glorot = partial(nn.initializers.variance_scaling, 1.0, "fan_avg", "uniform")


def build(sizes: Sizes, options: None, vocab_size: int) -> EncoderDecoder:
    """Builds the model, as `System.build`."""
    del options
    rate = sizes.dropout_rate
    norm = partial(LayerNorm, sizes.norm_epsilon or LAYER_NORM_EPSILON)
    heads = (
        sizes.num_heads, head_size(sizes.width, sizes.num_heads), rate,
        glorot(in_axis=0, out_axis=(1, 2)), glorot(in_axis=(0, 1), out_axis=2), sizes.dtype,
    )  # fmt: skip

    def stack(cross: CrossAttention | None = None) -> Stack:
        activation = ACTIVATIONS[sizes.activation or "relu"]
        ffn = FeedForward(
            sizes.ffn_width, activation, glorot(), glorot(), sizes.dtype, dropout_rate=rate
        )
        layer = PreNorm(SelfAttention(*heads), ffn, norm(), norm(), rate, cross, cross and norm())
        return Stack(layer, sizes.num_layers, sizes.remat)

    # Vectors have elements of variance 1 (the reference code's layers/embedding.py).
    table = nn.initializers.normal(sizes.width**-0.5)
    tokens = Embed(vocab_size, sizes.width, table, factor=sizes.width**0.5)
    decoder = Decoder(
        embed=InputEmbed(tokens, SinusoidPositions(sizes.width), rate, dtype=sizes.dtype),
        stack=stack(CrossAttention(*heads)),
        norm=norm(),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, table),
    )
    return EncoderDecoder(encoder=stack(), decoder=decoder, source_norm=norm())
