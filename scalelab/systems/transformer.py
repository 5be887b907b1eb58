"""The Transformer: Vaswani et al. 2017, "Attention Is All You Need".

Reference code: tensorflow/tensor2tensor, models/transformer.py with `transformer_base_v1`.

Departs from it:
  - it was trained to translate; here a source is a text with dropped spans, and the target these
    spans. Special tokens are as T5's, with a mask, so it can read any format with a source;
  - the loss has no label smoothing (5.4). That would be an option of the objective `seq2seq`;
    smoothed losses compare with no other losses;
  - the sinusoids have the paper's exponents 2i/D (3.5); the reference code has i / (D/2 - 1);
  - norms have the epsilon 1e-5 and projections of the attention have biases, as in `MarianMTModel`
    of `transformers`; the reference code has 1e-6 and, as the paper, no biases;
  - the optimizer is the base config's AdamW with its schedule, not Adam with the inverse square
    root of the step (5.3); batch size and budget are the protocol's.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.attention import CrossAttention, SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import SinusoidPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Reading, Sizes

DEPARTURES = (
    Departure("data.format", "span_corruption", "Raffel et al. 2020, 3.1.4, for lack of pairs"),
    Departure("objective", "seq2seq", "Vaswani et al. 2017, 3.4: the next token of the target"),
)
NUM_SENTINELS = 32  # span corruption of 512 tokens needs 28
SPECIAL_TOKENS = (
    ("pad", "<pad>"),
    ("eos", "</s>"),
    ("unk", "<unk>"),
    ("mask", "<mask>"),
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
# As in T5, a single text is the target, and the source is one dropped span.
READING = Reading(begin=("sentinel_0",), source=("sentinel_0", "eos"), trained=False)

LAYER_NORM_EPSILON = 1e-5
# Kernels at the start: uniform, of variance 2 / (inputs + outputs) ("uniform_unit_scaling").
glorot = partial(nn.initializers.variance_scaling, 1.0, "fan_avg", "uniform")


def build(sizes: Sizes, options: None, vocab_size: int) -> EncoderDecoder:
    """Builds the model, as `System.build`."""
    del options
    rate = sizes.dropout_rate
    norm = partial(LayerNorm, sizes.norm_epsilon or LAYER_NORM_EPSILON)
    # Dropout is on sublayers and embeddings (5.4), not on the attention's weights.
    heads = (
        sizes.num_heads, head_size(sizes.width, sizes.num_heads), 0.0,
        glorot(in_axis=0, out_axis=(1, 2)), glorot(in_axis=(0, 1), out_axis=2), sizes.dtype,
    )  # fmt: skip

    def stack(cross: CrossAttention | None = None) -> Stack:
        activation = ACTIVATIONS[sizes.activation or "relu"]
        ffn = FeedForward(sizes.ffn_width, activation, glorot(), glorot(), sizes.dtype)
        layer = PostNorm(SelfAttention(*heads), ffn, norm(), norm(), rate, cross, cross and norm())
        return Stack(layer, sizes.num_layers, sizes.remat)

    # Vectors have elements of variance 1, and scores, too (tensor2tensor, `modalities.py`).
    table = nn.initializers.normal(sizes.width**-0.5)
    tokens = Embed(vocab_size, sizes.width, table, factor=sizes.width**0.5)
    decoder = Decoder(
        embed=InputEmbed(tokens, SinusoidPositions(sizes.width), rate, dtype=sizes.dtype),
        stack=stack(CrossAttention(*heads)),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, table),
    )
    return EncoderDecoder(encoder=stack(), decoder=decoder)
