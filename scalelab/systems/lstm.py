"""Recurrent language models: Zaremba et al. 2014, "Recurrent Neural Network Regularization".

Elman's network (Mikolov et al. 2010), GRU and LSTM, with dropout on the non-recurrent connections
alone. The gates are those of torch.nn.RNN, LSTM and GRU.

Departs from the paper:
  - the table of inputs also scores tokens (Press and Wolf 2017); `model.output_embedding=untied` is
    the paper's model;
  - inputs are multiplied by sqrt(D), as in Transformer-XL: a table that also scores tokens begins
    with small numbers, and the first gates would hardly depend on them;
  - initial weights are torch.nn's, uniform within D^-1/2, tables within 0.1; all biases are 0;
  - a state ends with its document (format `segments`), as in evaluation; the paper reads one text;
  - the optimizer and its schedule are the protocol's; the paper has SGD.

`attention` lets the last layer's states read the earlier ones of their segment (Luong et al. 2015;
Daniluk et al. 2017 do so in a language model). Heads and FFN width of the shape are ignored.
"""

import dataclasses
from typing import Annotated

from scalelab.config.fields import choice
from scalelab.nets.decoder import Decoder
from scalelab.nets.recurrent import EarlierStates, RecurrentDecoder, RecurrentStack
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.heads import PlainHead
from scalelab.nn.recurrence import CELLS, Recurrent, uniform
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes, refuse

DEPARTURES = (
    Departure("objective", "clm", "Zaremba et al. 2014, 4.1"),
    Departure("data.format", "segments", "Zaremba et al. 2014, 4.1"),
    Departure("long.example_rate", 0.0, "the state is the longer context"),
    Departure("optim.learning_rate", 1e-3, "Adam's own; the paper has SGD"),
)
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
# The paper does not fine-tune. This is GPT's input (Radford et al. 2018, 3.3).
ADDED = ("<|start|>", "<|delimiter|>", "<|end|>")
ADAPTATION = Adaptation(
    *((token,) for token in ADDED), added_tokens=ADDED, reads="last", both_orders=True
)
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "contiguous"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    cell: Annotated[str, choice(*CELLS)] = "lstm"
    attention: bool = False  # the last layer's states read the earlier ones


def build(sizes: Sizes, options: Options, vocab_size: int) -> RecurrentDecoder:
    """Builds the model, as `System.build`."""
    refuse(sizes, "activation", "norm_epsilon")
    init, table_init = uniform(sizes.width**-0.5), uniform(0.1)
    layer = Recurrent(options.cell, sizes.width, sizes.dropout_rate, init, sizes.dtype)
    attention = EarlierStates(sizes.width, init, sizes.dtype) if options.attention else None
    table = Embed(vocab_size, sizes.width, table_init, factor=sizes.width**0.5)
    body = Decoder(
        embed=InputEmbed(table, None, sizes.dropout_rate, dtype=sizes.dtype),
        stack=RecurrentStack(Stack(layer, sizes.num_layers, sizes.remat), attention),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, table_init),
    )
    return RecurrentDecoder(body)


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of the layers without biases."""
    gates = 2 * CELLS[options.cell].num_gates * sizes.num_layers
    return (gates + 2 * options.attention) * sizes.width**2
