"""RNNsearch: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align ...".

Reference code: lisa-groundhog/GroundHog, experiments/nmt.

GRUs read the source in both directions. Before each token, the decoder's GRU attends to their
states (`search.py`). `score` chooses one of eight compatibility functions (`compatibility.py`).
`score=None` is RNNenc (Cho et al. 2014): the context of all tokens is the last state of each
direction. `query=current` compares s_i, as Luong et al. 2015, 3.1, without their input feeding
(3.3), in one layer.

Departs from the paper:
  - each direction is half as wide as the decoder's states, so that scores can multiply states;
  - a deeper decoder searches in each layer (Gehring et al. 2017, 3.3); the paper has one layer;
  - cells are those of torch.nn, whose GRU has the reset gate after the product;
  - RNNenc reads the source in both directions, too, and differs in the context alone;
  - scores compare s_{i-1}, as the paper's, or s_i with `query`; those of Luong et al. compare s_i;
  - the output reads s_i, as in the paper's equation 4; its A.2.2 has s_{i-1};
  - source, inputs and outputs have one table of tokens, inputs times sqrt(D), as in `lstm`, and
    initial weights are torch.nn's; `model.output_embedding=untied` has a table for the outputs;
  - dropout; the optimizer and its schedule are the protocol's, the paper has Adadelta;
  - it was trained to translate; here it fills dropped spans, as `transformer`.

Heads and FFN width of the shape are ignored.
"""

import dataclasses
import math
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.typing import DTypeLike

from scalelab.config.fields import choice
from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.axes import part
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.heads import PlainHead
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context
from scalelab.nn.recurrence import CELLS, Recurrent, uniform
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Reading, Sizes, refuse
from scalelab.systems.rnnsearch.compatibility import SCORES, shapes
from scalelab.systems.rnnsearch.search import NAMES, SearchLayer, TwoDirections

DEPARTURES = (
    Departure("data.format", "span_corruption", "Raffel et al. 2020, 3.1.4, for lack of pairs"),
    Departure("objective", "seq2seq", "Bahdanau et al. 2015, 2: the next token of the target"),
    Departure("optim.learning_rate", 1e-3, "Adam's own; the paper has Adadelta"),
)
NUM_SENTINELS = 32  # span corruption of 512 tokens needs 28
SPECIAL_TOKENS = (
    ("pad", "<pad>"),
    ("eos", "</s>"),
    ("unk", "<unk>"),
    ("mask", "<mask>"),
    *((f"sentinel_{i}", f"<extra_id_{i}>") for i in range(NUM_SENTINELS)),
)
FRAME: tuple[tuple[str, ...], ...] = ((), (), ("</s>",))
ADAPTATION = Adaptation(*FRAME)
HEADS = ("token",)
PREDICTS = "next"
SEES = "source + left"
HAS_SOURCE = True
START = "pad"
ORDER = "shuffled"
# As in T5, a single text is the target, and the source is one dropped span.
READING = Reading(begin=("sentinel_0",), source=("sentinel_0", "eos"), trained=False)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    # How well a state of the source fits a state of the decoder; None: no attention.
    score: Annotated[str, choice(*SCORES)] | None = "additive"
    cell: Annotated[str, choice(*CELLS)] = "gru"
    # The state that is compared: "current", s_i; None: s_{i-1}.
    query: Annotated[str, choice("current")] | None = None


class Readout(nn.Module):
    """A stack of search layers, and the state that predicts a token: maxout(W [s; x; c]).

    Bahdanau et al. 2015, A.2.2, with s_i as in equation 4, the input x and the last layer's
    context; each number is the larger one of two (Goodfellow et al. 2013).

    Attributes:
      stack: of search layers.
      width: D.
      kernel_init: initializer of W.
      dtype: dtype of the product.
    """

    stack: nn.Module
    width: int
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    def init_cache(self, *sizes: int) -> ArrayPytree:
        """Returns the empty cache of the stack."""
        return self.stack.init_cache(*sizes)

    @nn.compact
    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Applies the stack to the tokens' vectors [B, T, D], as `nn.layer.Layer`."""
        (states, contexts), cache = self.stack((carry, jnp.zeros_like(carry)), ctx, cache)
        joined = jnp.concatenate([states, carry, contexts], axis=-1)
        linear = Linear(*NAMES, (2 * self.width,), self.kernel_init, self.dtype, None, name="out")
        with part("body"):
            pairs = linear(joined)
        first, second = jnp.moveaxis(pairs.reshape(*carry.shape, 2), -1, 0)
        return jnp.where(first > second, first, second), cache


def build(sizes: Sizes, options: Options, vocab_size: int) -> EncoderDecoder:
    """Builds the model, as `System.build`."""
    refuse(sizes, "activation", "norm_epsilon")
    if options.score is None and options.query is not None:
        raise ValueError("system_options.query = 'current': set a system_options.score, too")
    if options.query is not None and sizes.num_layers > 1:
        raise ValueError(
            f"system_options.query = 'current' with {sizes.num_layers} layers: only the last one"
            " would use its context; choose a shape of one layer, such as 2x64x1"
        )
    init, table_init = uniform(sizes.width**-0.5), uniform(0.1)
    rule = sizes.dropout_rate, init, sizes.dtype
    forward, backward = (Recurrent(options.cell, width, *rule) for width in _halves(sizes.width))
    how = options.cell, options.score, options.query
    search = SearchLayer(*how, sizes.width, sizes.max_len, *rule)
    reader, searcher = (
        Stack(layer, sizes.num_layers, sizes.remat)
        for layer in (TwoDirections(forward, backward), search)
    )
    tokens = Embed(vocab_size, sizes.width, table_init, factor=sizes.width**0.5)
    decoder = Decoder(
        embed=InputEmbed(tokens, None, sizes.dropout_rate, dtype=sizes.dtype),
        stack=Readout(searcher, sizes.width, init, sizes.dtype),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, table_init),
    )
    return EncoderDecoder(encoder=reader, decoder=decoder)


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of the layers and of the output without biases."""
    D, gates = sizes.width, CELLS[options.cell].num_gates  # noqa: N806
    forward, backward = _halves(D)
    encoder = gates * (D**2 + forward**2 + backward**2)
    decoder = (3 if options.query is None else 2) * gates * D**2 + backward * D
    if options.score is not None:
        own = shapes(options.score, D, sizes.max_len)
        decoder += sum(math.prod(shape) for name, shape in own.items() if name != "bias")
    return sizes.num_layers * (encoder + decoder) + 6 * D**2


def _halves(width: int) -> tuple[int, int]:
    """Returns the widths of both directions of the encoder."""
    return width - width // 2, width // 2
