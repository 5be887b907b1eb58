"""GLM: Du et al. 2022, "GLM: General Language Model Pretraining with Autoregressive Blank ...".

Reference code: THUDM/GLM, blocklm_utils.py, model/modeling_glm.py, mpu/transformer.py.

One stack reads Part A, a text with a mask for each blank, and right behind it Part B, the blanks in
any order (`net.py`). Part A is the source, Part B the text behind START:

    Part A     [CLS] x1 x2 [M] x4 [M] [SEP]    Part B    [S] x5 x6 [S] x3
    place      0     1  2  3   4  5   6                  5   5  5  3   3
    in blank   0     0  0  0   0  0   0                  1   2  3  1   2
                                               predicts  x5  x6 [E] x3 [E]

Layers have norms before sublayers and a last norm, and one table embeds and scores tokens, as in
the reference code. A label is a blank behind the text (2.3): `--as=text` generates its words, and
chooses among labels of one token as a softmax over them does. A new head reads the state of [S].

Departs from it:
  - the paper also trains on one long blank, or on blanks of whole sentences (2.1.2);
  - the length of a blank is no Poisson draw (`formats/blank_infilling.py`);
  - a task that is solved by filling a blank has T5's prompt and its classes' names
    (`finetuning/prompts.py`); the paper writes a pattern and label words for each task;
  - the loss of `--as=text` is that of all tokens; the paper's softmax is over the labels' words;
  - the optimizer is the base config's; batch size, rate and budget are the protocol's.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PreNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Reading, Sizes
from scalelab.systems.glm.net import BlankEmbed, Infiller

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Du et al. 2022, 3.1: as BERT"),
    Departure("data.format", "blank_infilling", "Du et al. 2022, 2.1.1"),
    Departure("objective", "seq2seq", "Du et al. 2022, equation 1"),
)
ROLES = ("pad", "unk", "cls", "sep", "mask")
SPECIAL_TOKENS = (
    *((role, f"[{role.upper()}]") for role in ROLES),
    ("bos", "<|startofpiece|>"),
    ("eos", "<|endofpiece|>"),
)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
# The label is a blank behind the text (Du et al. 2022, 2.3).
ADAPTATION = Adaptation(("[CLS]",), ("[SEP]",), ("[MASK]", "[SEP]"), source="source")
HEADS = ("token",)
PREDICTS, SEES = "next", "source + left"
HAS_SOURCE, START, ORDER = True, "bos", "shuffled"
# A single text is one blank.
READING = Reading(source=("cls", "mask", "sep"), trained=False)

STDDEV = 0.02
INIT = nn.initializers.normal(stddev=STDDEV)
LAYER_NORM_EPSILON = 1e-5


def build(sizes: Sizes, options: None, vocab_size: int) -> Infiller:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    residual_init = nn.initializers.normal(stddev=STDDEV / (2 * sizes.num_layers) ** 0.5)
    rest = sizes.dropout_rate, INIT, residual_init, sizes.dtype
    activation = ACTIVATIONS[sizes.activation or "gelu_tanh"]
    layer = PreNorm(
        SelfAttention(sizes.num_heads, head_size(sizes.width, sizes.num_heads), *rest),
        FeedForward(sizes.ffn_width, activation, INIT, residual_init, sizes.dtype),
        norm(), norm(), sizes.dropout_rate,
    )  # fmt: skip
    # The longest blank is behind its start.
    places, inner = (Embed(n, sizes.width, INIT, axes.POSITIONS) for n in
                     (sizes.max_len, sizes.max_len + 1))  # fmt: skip
    tokens = Embed(vocab_size, sizes.width, INIT)
    decoder = Decoder(
        embed=BlankEmbed(tokens, places, inner, sizes.dropout_rate, sizes.dtype),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=PlainHead(),
        norm=norm(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )
    ids = sizes.special_ids or {role: i for i, (role, _) in enumerate(SPECIAL_TOKENS)}
    return Infiller(decoder, ids["mask"], ids["bos"], ids["eos"])


def n_model(sizes: Sizes, options: None) -> int:
    """Returns the parameters of the stack without norms and biases."""
    del options
    return sizes.num_layers * (4 * sizes.width**2 + 2 * sizes.width * sizes.ffn_width)
