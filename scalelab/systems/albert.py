"""ALBERT: Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning of Language ...".

Reference code: google-research/albert, modeling.py.

Departs from it:
  - masks are single tokens, 80/10/10, as in the base config; the paper masks n-grams of up to three
    words (4.1);
  - tokens are drawn anew at every step;
  - the optimizer is the base config's AdamW, not LAMB; batch size and budget are the protocol's.
"""

import dataclasses
from functools import partial
from typing import Annotated

from flax import linen as nn

from scalelab.config.fields import Count, choice
from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import FirstTokenHead, TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.linear import Linear
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Sharing, Stack
from scalelab.systems import Adaptation, Departure, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "unigram", "Lan et al. 2020, 4.1: SentencePiece"),
    Departure("data.format", "sentence_order", "Lan et al. 2020, 3.1"),
    Departure("objective", "mlm+sop", "Lan et al. 2020, 3.1"),
    Departure("model.dropout_rate", 0.0, "Lan et al. 2020, 4.8"),
)
SPECIAL_TOKENS = (
    ("pad", "<pad>"),
    ("unk", "<unk>"),
    ("cls", "[CLS]"),
    ("sep", "[SEP]"),
    ("mask", "[MASK]"),
)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME)
HEADS = ("token", "pair")
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"
RECIPE = {"dropout_rate": 0.0}  # Lan et al. 2020, table 14, most tasks

NUM_SEGMENTS = 2
INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12
PARTS = {  # parts of a layer that layers may share
    "all": None,
    "attention": ("attention", "attention_norm"),
    "ffn": ("ffn", "ffn_norm"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the system."""

    embed_width: Count | None = 128  # E; None: the model's width, without a projection
    shared: Annotated[str, choice("all", "attention", "ffn", "none")] = "all"  # shared layer parts
    num_groups: Count = 1  # groups of layers; each group has its own shared parameters


def build(sizes: Sizes, options: Options, vocab_size: int) -> Encoder:
    """Builds the model, as `System.build`."""
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu_tanh"]
    width = options.embed_width or sizes.width
    projection = None
    if options.embed_width is not None:
        projection = Linear((axes.WIDTH,), (axes.TRANSFORM,), (sizes.width,), INIT, sizes.dtype)
    sharing = None
    if options.shared != "none":
        sharing = Sharing(options.num_groups, PARTS[options.shared])
    layer = PostNorm(
        attention=SelfAttention(
            sizes.num_heads, head_size(sizes.width, sizes.num_heads), sizes.dropout_rate,
            INIT, INIT, sizes.dtype,
        ),
        ffn=FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=sizes.dropout_rate,
    )  # fmt: skip
    return Encoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, width, INIT),
            positions=LearnedPositions(sizes.max_len, width, INIT),
            segments=Embed(NUM_SEGMENTS, width, INIT, axes.SEGMENTS),
            norm=norm(),
            dropout_rate=sizes.dropout_rate,
            dtype=sizes.dtype,
            projection=projection,
        ),
        stack=Stack(layer, sizes.num_layers, sizes.remat, sharing),
        token_head=TransformHead(vocab_size, activation, norm(), INIT, sizes.dtype, width),
        output_embed=output_table(sizes.output_embedding, vocab_size, width, INIT),
        pair_head=FirstTokenHead(2, INIT, sizes.dtype),
    )


def n_model(sizes: Sizes, options: Options) -> int:
    """Counts the layers' parameters without biases and norms; shared ones count once."""
    attention, ffn = 4 * sizes.width**2, 2 * sizes.width * sizes.ffn_width
    copies = {part: sizes.num_layers for part in ("attention", "ffn")}
    for part in copies:
        if options.shared in ("all", part):
            copies[part] = options.num_groups
    return copies["attention"] * attention + copies["ffn"] * ffn
