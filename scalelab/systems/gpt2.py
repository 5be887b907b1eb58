"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

Reference code: openai/gpt-2, src/model.py.

Departs from it:
  - kernels that write into the residual stream start at 0.02 / sqrt(number of residual layers), two
    a layer: the paper says so (2.3), the published code, which never trains, does not;
  - dropout, which the published code leaves out, is the protocol's;
  - DOC-SENTENCES without special tokens and 30,000 tokens, as the benchmark protocol has it; the
    paper packs documents with <|endoftext|> between and has 50,257;
  - the optimizer is the protocol's throughout: the paper says little of its own.
"""

from functools import partial

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nets.decoder import Decoder
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import FeedForward, gelu_tanh
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PreNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure

DEPARTURES = (
    Departure("objective", "clm", "Radford et al. 2019, 2"),
    Departure("optim.learning_rate", 2.5e-4, "protocol: thesis 7.2"),
)
# One token marks the end of a text and serves every other role; pre-training on one document an
# example uses it nowhere.
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
# The GPT-2 paper does not fine-tune: as Radford et al. 2018, 3.3 (protocol, "Fine-tuning").
ADAPTATION = Adaptation(
    ("<|start|>",),
    ("<|delimiter|>",),
    ("<|end|>",),
    added_tokens=("<|start|>", "<|delimiter|>", "<|end|>"),
    reads="last",
    both_orders=True,
)
OBJECTIVES = ("clm",)
CAUSAL = True
ORDER = "shuffled"

STDDEV = 0.02
INIT = nn.initializers.normal(stddev=STDDEV)
POSITION_INIT = nn.initializers.normal(stddev=0.01)
LAYER_NORM_EPSILON = 1e-5


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
) -> Decoder:
    """Builds the net; see `scalelab.systems` for the arguments."""
    norm = partial(LayerNorm, epsilon=LAYER_NORM_EPSILON)
    residual_init = nn.initializers.normal(stddev=STDDEV / (2 * num_layers) ** 0.5)
    layer = PreNorm(
        attention=SelfAttention(
            num_heads, head_size(width, num_heads), dropout_rate, INIT, residual_init, dtype
        ),
        ffn=FeedForward(ffn_width, gelu_tanh, INIT, residual_init, dtype),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=dropout_rate,
    )
    return Decoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, width, INIT),
            positions=LearnedPositions(max_len, width, POSITION_INIT),
            dropout_rate=dropout_rate,
            dtype=dtype,
        ),
        stack=Stack(layer, num_layers, remat),
        norm=norm(),
        token_head=PlainHead(),
        output_embed=output_table(output_embedding, vocab_size, width, INIT),
    )
