"""RoBERTa: Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach".

Reference code: fairseq, models/roberta/model.py and modules/transformer_sentence_encoder.py.

Departs from it:
  - positions count from 0; fairseq starts behind the padding index and leaves two rows without use;
  - DOC-SENTENCES and 30,000 tokens, as the benchmark protocol has it; the paper ended with
    FULL-SENTENCES and 50,265;
  - optimisation as in the protocol, the same for all systems.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nets.encoder import Encoder
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import FeedForward, gelu_exact
from scalelab.nn.heads import TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure

DEPARTURES: tuple[Departure, ...] = ()  # this system is the control
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
OBJECTIVES = ("mlm",)
CAUSAL = False
ORDER = "shuffled"

PAD_ID = [role for role, _ in SPECIAL_TOKENS].index("pad")
INIT = nn.initializers.normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-5


def init_tokens(
    key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """Normal, with a zero row for padding (fairseq, init_bert_params)."""
    return INIT(key, shape, dtype).at[PAD_ID].set(0.0)


def build(
    *,
    num_heads: int,
    width: int,
    num_layers: int,
    ffn_width: int,
    vocab_size: int,
    max_len: int,
    dropout_rate: float,
    dtype: DTypeLike = jnp.float32,
    remat: str = "none",
    output_embedding: str | None = None,
) -> Encoder:
    """Builds the net; see `scalelab.systems` for the arguments."""
    norm = partial(LayerNorm, epsilon=LAYER_NORM_EPSILON)
    layer = PostNorm(
        attention=SelfAttention(
            num_heads, head_size(width, num_heads), dropout_rate, INIT, INIT, dtype
        ),
        ffn=FeedForward(ffn_width, gelu_exact, INIT, INIT, dtype),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=dropout_rate,
    )
    return Encoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, width, init_tokens),
            positions=LearnedPositions(max_len, width, INIT),
            norm=norm(),
            dropout_rate=dropout_rate,
            dtype=dtype,
        ),
        stack=Stack(layer, num_layers, remat),
        token_head=TransformHead(vocab_size, gelu_exact, norm(), INIT, dtype),
        output_embed=output_table(output_embedding, vocab_size, width, init_tokens),
    )
