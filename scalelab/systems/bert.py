"""BERT: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers".

Reference code: google-research/bert, modeling.py and create_pretraining_data.py.

Departs from it, as the benchmark protocol does:
  - masks are drawn anew at every step, not once before training (protocol, "Masking");
  - random replacements come from the vocabulary without its special tokens, as in RoBERTa's code;
  - the vocabulary is trained on the corpus and has 30,000 pieces;
  - batch size, warm-up and budget are the protocol's; the paper has 256, 10,000 steps, a million.
"""

from functools import partial

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import FeedForward, gelu_exact
from scalelab.nn.heads import FirstTokenHead, TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Devlin et al. 2019, 3"),
    Departure("data.format", "segment_pair", "Devlin et al. 2019, A.2"),
    Departure("objective", "mlm+nsp", "Devlin et al. 2019, 3.1"),
    Departure("optim.total_epochs", 6.0, "protocol: thesis 7.2"),
)
SPECIAL_TOKENS = (
    ("pad", "[PAD]"),
    ("unk", "[UNK]"),
    ("cls", "[CLS]"),
    ("sep", "[SEP]"),
    ("mask", "[MASK]"),
)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME)  # Devlin et al. 2019, figure 4: as in pre-training
OBJECTIVES = ("mlm", "nsp")
CAUSAL = False
ORDER = "shuffled"

NUM_SEGMENTS = 2
# modeling.py: tf.truncated_normal_initializer, cut at two standard deviations and not scaled back.
INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12


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
            tokens=Embed(vocab_size, width, INIT),
            positions=LearnedPositions(max_len, width, INIT),
            segments=Embed(NUM_SEGMENTS, width, INIT, axes.SEGMENTS),
            norm=norm(),
            dropout_rate=dropout_rate,
            dtype=dtype,
        ),
        stack=Stack(layer, num_layers, remat),
        token_head=TransformHead(vocab_size, gelu_exact, norm(), INIT, dtype),
        output_embed=output_table(output_embedding, vocab_size, width, INIT),
        pair_head=FirstTokenHead(2, INIT, dtype),
    )
