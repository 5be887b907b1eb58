"""GPT-BERT: Charpentier and Samuel 2024, "GPT or BERT: why not both?".

Reference code: ltgoslo/gpt-bert, model_pretraining/dataset.py, train_multi_gpu.py.

One model learns from masked examples, which it reads from both sides, and from causal examples
(`objectives/mntp.py`). In tasks and evaluations a token sees its left, and PREDICTS and SEES equal
GPT-2's: evaluations sum next-token scores, `sample` continues texts, `fill_mask` refuses the model,
and a task reads the last token. With `--rule=pll` it scores sentences as a masked model, as in the
paper.

Departs from it:
  - the model is GPT-2's, so that only the objective differs from GPT-2; the paper's is LTG-BERT
    with relative positions, gated feed-forward and attention, and learned weights of the layers;
  - masks are single tokens at `config.mask_rate`; the paper masks spans of up to three tokens, more
    of them at the beginning of training;
  - examples are DOC-SENTENCES without a start token, as for GPT-2 here; the paper has <s>;
  - the optimizer is the base config's AdamW, not LAMB; no z-loss; batch size and budget are the
    protocol's;
  - the head scores all positions of a masked example, although few have a loss. FLOPs count all of
    them and the whole attention matrix: a step costs about as much as GPT-2's.
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
    Departure("objective", "mntp", "Charpentier and Samuel 2024"),
    Departure("optim.learning_rate", 2.5e-4, "protocol: thesis 7.2, as GPT-2"),
)
SPECIAL_TOKENS = (("eos", "<|endoftext|>"), ("mask", "<mask>"))
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
ADAPTATION = GPT_INPUT  # as GPT-2
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
    rest = sizes.dropout_rate, INIT, residual_init, sizes.dtype
    layer = PreNorm(
        attention=SelfAttention(sizes.num_heads, head_size(sizes.width, sizes.num_heads), *rest),
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
