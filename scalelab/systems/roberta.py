"""RoBERTa: Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach".

Reference code: fairseq, models/roberta/model.py and modules/transformer_sentence_encoder.py.

Departs from it:
  - positions count from 0; fairseq starts after the padding index and leaves two rows unused;
  - DOC-SENTENCES and 30,000 tokens, as in the benchmark protocol; the paper ended with
    FULL-SENTENCES and 50,265;
  - optimization as in the protocol, the same for all systems.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.encoder import Encoder
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table, with_zero_row
from scalelab.nn.ffn import ACTIVATIONS, FeedForward, gelu_exact
from scalelab.nn.heads import TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes

DEPARTURES: tuple[Departure, ...] = ()  # this system is the base config
SPECIAL_TOKENS = (
    ("bos", "<s>"),
    ("pad", "<pad>"),
    ("eos", "</s>"),
    ("unk", "<unk>"),
    ("mask", "<mask>"),
)
FRAME = (("<s>",), ("</s>",), ("</s>",))
# fairseq, models/roberta/hub_interface.py, encode: two separators between two texts.
ADAPTATION = Adaptation(("<s>",), ("</s>", "</s>"), ("</s>",))
HEADS = ("token",)
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"

INIT = nn.initializers.normal(stddev=0.02)
# The row of padding is 0 (fairseq, init_bert_params).
TOKENS_INIT = with_zero_row(INIT, [role for role, _ in SPECIAL_TOKENS].index("pad"))
LAYER_NORM_EPSILON = 1e-5


def build(sizes: Sizes, options: None, vocab_size: int) -> Encoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu"]
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads)
    layer = PostNorm(
        attention=SelfAttention(*heads, sizes.dropout_rate, INIT, INIT, sizes.dtype),
        ffn=FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=sizes.dropout_rate,
    )
    return Encoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, sizes.width, TOKENS_INIT),
            positions=LearnedPositions(sizes.max_len, sizes.width, INIT),
            norm=norm(),
            dropout_rate=sizes.dropout_rate,
            dtype=sizes.dtype,
        ),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=TransformHead(vocab_size, gelu_exact, norm(), INIT, sizes.dtype),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, TOKENS_INIT),
    )
