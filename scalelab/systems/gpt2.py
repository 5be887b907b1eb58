"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

Reference code: openai/gpt-2, src/model.py.

Departs from it:
  - kernels that write into the residual stream are initialized with 0.02 / sqrt(2 L), as in the
    paper (2.3); the published code does not scale them, but it never trains;
  - dropout is the protocol's; the published code has none;
  - DOC-SENTENCES without special tokens and 30,000 tokens, as in the benchmark protocol; the
    paper packs documents with <|endoftext|> between and has 50,257;
  - the optimizer is the protocol's; the paper describes its own only in part.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PreNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import GPT_INPUT, Departure, Sizes

DEPARTURES = (
    Departure("objective", "clm", "Radford et al. 2019, 2"),
    Departure("optim.learning_rate", 2.5e-4, "protocol: thesis 7.2"),
)
# One token ends a text and serves every other role. Pre-training with one document per example does
# not use it.
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
ADAPTATION = GPT_INPUT  # protocol, "Fine-tuning"; the GPT-2 paper does not fine-tune
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "shuffled"

STDDEV = 0.02
INIT = nn.initializers.normal(stddev=STDDEV)
POSITION_INIT = nn.initializers.normal(stddev=0.01)
LAYER_NORM_EPSILON = 1e-5


def build(sizes: Sizes, options: None, vocab_size: int) -> Decoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu_tanh"]
    residual_init = nn.initializers.normal(stddev=STDDEV / (2 * sizes.num_layers) ** 0.5)
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads)
    layer = PreNorm(
        attention=SelfAttention(*heads, sizes.dropout_rate, INIT, residual_init, sizes.dtype),
        ffn=FeedForward(sizes.ffn_width, activation, INIT, residual_init, sizes.dtype),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=sizes.dropout_rate,
    )
    return Decoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, sizes.width, INIT),
            positions=LearnedPositions(sizes.max_len, sizes.width, POSITION_INIT),
            dropout_rate=sizes.dropout_rate,
            dtype=sizes.dtype,
        ),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        norm=norm(),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )
