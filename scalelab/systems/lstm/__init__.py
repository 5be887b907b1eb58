"""Recurrent language models: Zaremba et al. 2014, "Recurrent Neural Network Regularization".

Elman's network (Mikolov et al. 2010), GRU and LSTM, with dropout on the non-recurrent connections
alone. The gates are those of torch.nn.RNN, LSTM and GRU.

Departs from the paper:
  - the table of inputs also scores tokens (Press and Wolf 2017); `model.output_embedding=untied` is
    the paper's model;
  - inputs are multiplied by sqrt(D), as in Transformer-XL: a table that also scores tokens begins
    with small numbers, and the first gates would hardly depend on them;
  - the first token of a segment is predicted by `eval.lm` alone, not in training and validation;
  - initial weights are torch.nn's, uniform within D^-1/2, tables within 0.1; all biases are 0;
  - a state ends with its document (format `segments`), as in evaluation; the paper reads one text;
  - the optimizer and its schedule are the protocol's; the paper has SGD.

`attention` lets the last layer's states read the earlier ones of their segment (Luong et al. 2015;
Daniluk et al. 2017 do so in a language model). Heads and FFN width of the shape are ignored.

`cell=lstmn` is the long short-term memory-network of Cheng et al. 2016 (3.2): each layer keeps all
its states, on a tape, and attends to them in place of reading the last one. Departs from the paper:
the tape begins anew with each segment, as no state is carried; gates have biases; a layer reads
the states of the layer below. Memory in training grows with the square of the segment's length.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.config.fields import choice
from scalelab.nets.decoder import Decoder
from scalelab.nn import axes
from scalelab.nn.attention import MASKED_SCORE
from scalelab.nn.axes import constrain, parameter
from scalelab.nn.dropout import Dropout
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.heads import PlainHead
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context
from scalelab.nn.recurrence import CELLS, Recurrent, recurrent_parameters, uniform
from scalelab.nn.stack import Stack
from scalelab.systems import GPT_INPUT, Departure, Sizes, refuse
from scalelab.systems.lstm.net import EarlierStates, RecurrentDecoder, RecurrentStack

DEPARTURES = (
    Departure("objective", "clm", "Zaremba et al. 2014, 4.1"),
    Departure("data.format", "segments", "Zaremba et al. 2014, 4.1"),
    Departure("long.example_rate", 0.0, "the state is the longer context"),
    Departure("optim.learning_rate", 1e-3, "Adam's own; the paper has SGD"),
)
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
ADAPTATION = GPT_INPUT  # the paper does not fine-tune
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "contiguous"
TAPE = "lstmn"  # the cell that attends to all its earlier states


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    cell: Annotated[str, choice(*CELLS, TAPE)] = "lstm"
    attention: bool = False  # the last layer's states read the earlier ones


class TapeLayer(nn.Module):
    """An LSTM whose gates read a mean of all earlier states, chosen by attention.

    Cheng et al. 2016, equations 4 to 9. For token t, with v a vector and W matrices:

      a_i = v tanh(W_h h_i + W_x x_t + W_r r_{t-1}), s = softmax of a_i over i < t
      r_t = sum_i s_i h_i, m_t = sum_i s_i c_i; both are 0 for the first token
      h_t, c_t: the LSTM's, with r_t and m_t in place of the last state and the last cell

    Attributes:
      width: D.
      dropout_rate: on the states that the layer gives, not on the tape.
      kernel_init: initializer of all kernels.
      dtype: dtype of the products with inputs; the tape is float32.
    """

    width: int
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    def init_cache(self, batch_size: int, max_len: int) -> jax.Array:
        """Returns an empty tape for `max_len` tokens: h, c, r and W_h h, [B, max_len, 4 D]."""
        return jnp.zeros((batch_size, max_len, 4 * self.width), jnp.float32)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Reads x [B, T, E] from left to right: states [B, T, D], and the tape with x.

        Args:
          x: [B, T, E].
          ctx: positions of the tokens of x, [B or 1, T].
          cache: [B, S, 4 D], the tape of the tokens before x; None: there are none.
        """
        (B, T, _), D = x.shape, self.width  # noqa: N806
        names, init, matrix = (axes.WIDTH, axes.TRANSFORM), self.kernel_init, (D, D)
        maps = names[:1], names[1:]
        x = x.swapaxes(0, 1)
        given = Linear(*maps, (4 * D,), init, self.dtype, name="input")(x)
        query = Linear(*maps, (D,), init, self.dtype, None, name="query")(x)
        kernel, bias = recurrent_parameters(self, CELLS["lstm"], D, init)
        state_key = parameter(self, "state_kernel", init, names, matrix)
        read_key = parameter(self, "read_kernel", init, names, matrix)
        score = parameter(self, "score_kernel", init, names[1:], (D,))
        rows, places = jnp.arange(B), jnp.broadcast_to(ctx.positions, (B, T))
        start = self.init_cache(B, T) if cache is None else cache
        before = jnp.arange(start.shape[1])

        def step(tape: jax.Array, at: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            given, query, place = at
            hidden, cell, read, keys = jnp.split(tape, 4, axis=-1)
            last = jnp.where((place > 0)[:, None], read[rows, place - 1], 0)
            query = query.astype(jnp.float32) + last @ read_key
            seen = before < place[:, None]
            scores = jnp.where(seen, jnp.tanh(keys + query[:, None]) @ score, MASKED_SCORE)
            weights = jnp.where(seen, jax.nn.softmax(scores, axis=-1), 0)
            read, memory = (jnp.einsum("bs,bsd->bd", weights, x) for x in (hidden, cell))
            gates = given.astype(jnp.float32), read @ kernel + bias
            new = CELLS["lstm"].update(*gates, {"hidden": read, "cell": memory})
            state = new["hidden"]
            made = jnp.concatenate([state, new["cell"], read, state @ state_key], axis=-1)
            return tape.at[rows, place].set(made, mode="drop"), state

        tape, states = jax.lax.scan(step, start, (given, query, places.T))
        y = Dropout(self.dropout_rate)(states.swapaxes(0, 1).astype(self.dtype), ctx)
        y = constrain(y, axes.BATCH, axes.LENGTH, axes.WIDTH)
        return y, None if cache is None else tape


def build(sizes: Sizes, options: Options, vocab_size: int) -> Decoder | RecurrentDecoder:
    """Builds the model, as `System.build`."""
    refuse(sizes, "activation", "norm_epsilon")
    init, table_init = uniform(sizes.width**-0.5), uniform(0.1)
    rest = sizes.width, sizes.dropout_rate, init, sizes.dtype
    has_tape = options.cell == TAPE
    if has_tape and options.attention:
        raise ValueError(
            "system_options.cell = 'lstmn' attends to earlier states itself: set"
            " system_options.attention to False"
        )
    layer = TapeLayer(*rest) if has_tape else Recurrent(options.cell, *rest)
    attention = EarlierStates(sizes.width, init, sizes.dtype) if options.attention else None
    table = Embed(vocab_size, sizes.width, table_init, factor=sizes.width**0.5)
    body = Decoder(
        embed=InputEmbed(table, None, sizes.dropout_rate, dtype=sizes.dtype),
        stack=RecurrentStack(Stack(layer, sizes.num_layers, sizes.remat), attention),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, table_init),
    )
    return body if has_tape else RecurrentDecoder(body)


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of the layers without biases."""
    if options.cell == TAPE:  # four gates, and the attention's three matrices and its vector
        return sizes.num_layers * (11 * sizes.width**2 + sizes.width)
    gates = 2 * CELLS[options.cell].num_gates * sizes.num_layers
    return (gates + 2 * options.attention) * sizes.width**2
