"""BERT from left to right: Devlin et al. 2019, 5.1, "LTR & No NSP".

An ablation: BERT's data and model, but each token sees only the tokens to its left, in fine-tuning
too, and all tokens but the first are predicted. "No NSP" is BERT with `objective=mlm`, in BERT's
format. "+ BiLSTM" is a fine-tuning with `--config.head.lstm_width=W`.

Reference code: none is published for the ablation; BERT's is google-research/bert.

Departs from it:
  - tasks read the last token, because the first token sees only itself; the paper names no token;
  - the differences that `systems/bert.py` lists.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Devlin et al. 2019, 3"),
    Departure("data.format", "segment_pair", "Devlin et al. 2019, 5.1: as BERT"),
    Departure("objective", "clm", "Devlin et al. 2019, 5.1"),
    Departure("optim.total_epochs", 6.0, "protocol: thesis 7.2, as BERT"),
)
ROLES = ("pad", "unk", "cls", "sep", "mask")
SPECIAL_TOKENS = tuple((role, f"[{role.upper()}]") for role in ROLES)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME, reads="last")
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "shuffled"

NUM_SEGMENTS = 2
INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12


def build(sizes: Sizes, options: None, vocab_size: int) -> Decoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu"]
    rest = sizes.dropout_rate, INIT, INIT, sizes.dtype
    layer = PostNorm(
        attention=SelfAttention(sizes.num_heads, head_size(sizes.width, sizes.num_heads), *rest),
        ffn=FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=sizes.dropout_rate,
    )
    return Decoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, sizes.width, INIT),
            positions=LearnedPositions(sizes.max_len, sizes.width, INIT),
            segments=Embed(NUM_SEGMENTS, sizes.width, INIT, axes.SEGMENTS),
            norm=norm(),
            dropout_rate=sizes.dropout_rate,
            dtype=sizes.dtype,
        ),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=TransformHead(vocab_size, activation, norm(), INIT, sizes.dtype),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )
