"""GPT: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".

Reference code: openai/finetune-transformer-lm, train.py.

Departs from it:
  - dropout applies to the summed embeddings of each position; the published code drops elements of
    the embedding matrix itself, the same for all positions of a batch;
  - DOC-SENTENCES and 30,000 tokens, as in the benchmark protocol; the paper reads contiguous
    text with 40,478 tokens;
  - one token ends a text if a format asks for it; the paper's pre-training has none;
  - text is lower-cased, stripped of accents and split at punctuation by BERT's rules; the paper has
    ftfy and spaCy;
  - the schedule and warm-up are the protocol's, linear over 1,000 steps; the paper has a cosine
    after 2,000.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import GPT_INPUT, Departure, Sizes

DEPARTURES = (
    Departure("objective", "clm", "Radford et al. 2018, 3.1"),
    Departure("tokenizer.kind", "bpe", "Radford et al. 2018, 4.1"),
    Departure("tokenizer.lowercase", True, "reference code, text_utils.py"),
    Departure("optim.learning_rate", 2.5e-4, "Radford et al. 2018, 4.1"),
)
SPECIAL_TOKENS = (("unk", "<unk>"), ("eos", "<|endoftext|>"))
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
ADAPTATION = GPT_INPUT  # Radford et al. 2018, 3.3
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "shuffled"

INIT = nn.initializers.normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-5


def build(sizes: Sizes, options: None, vocab_size: int) -> Decoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu_tanh"]
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads)
    layer = PostNorm(
        attention=SelfAttention(*heads, sizes.dropout_rate, INIT, INIT, sizes.dtype),
        ffn=FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=sizes.dropout_rate,
    )
    return Decoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, sizes.width, INIT),
            positions=LearnedPositions(sizes.max_len, sizes.width, INIT),
            dropout_rate=sizes.dropout_rate,
            dtype=sizes.dtype,
        ),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )
