"""GCNN: Dauphin et al. 2017, "Language Modeling with Gated Convolutional Networks".

Reference code: facebookresearch/fairseq, models/fconv.py and fconv_lm.py.

Departs from them:
  - no weight normalization, no adaptive softmax, and no bottlenecks: every layer has one width;
  - the table of inputs also scores tokens; `model.output_embedding=untied` is the paper's model;
  - DOC-SENTENCES and 30,000 tokens, as in the benchmark protocol; the optimizer and its schedule
    are the protocol's; dropout is that of the residual branches.

`dilation=2` doubles the dilation from layer to layer, as WaveNet (van den Oord et al. 2016) and
ByteNet do. Heads and FFN width of the shape are ignored.
"""

import dataclasses

from flax import linen as nn

from scalelab.config.fields import Count
from scalelab.nets.decoder import Decoder
from scalelab.nn.convolution import GatedConvolution
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.heads import PlainHead
from scalelab.nn.stack import Stack
from scalelab.systems import GPT_INPUT, Departure, Sizes, refuse

DEPARTURES = (
    Departure("objective", "clm", "Dauphin et al. 2017, 2"),
    Departure("optim.learning_rate", 1e-3, "Adam's own; the paper has Nesterov's momentum"),
)
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
ADAPTATION = GPT_INPUT  # the paper does not fine-tune
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "shuffled"

TABLE_INIT = nn.initializers.normal(stddev=0.1)  # fconv.py


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    num_taps: Count = 4  # K, the width of the kernel
    dilation: Count = 1  # factor from a layer to the next; 1: no dilation


def build(sizes: Sizes, options: Options, vocab_size: int) -> Decoder:
    """Builds the model, as `System.build`."""
    refuse(sizes, "activation", "norm_epsilon")
    if options.num_taps > sizes.max_len:
        raise ValueError(
            f"system_options.num_taps = {options.num_taps} exceeds the model's positions,"
            f" config.model.max_len = {sizes.max_len}"
        )
    # Gehring et al. 2017, 3.5: variance 4 p / n for GLU layers (p: keep rate, n: fan-in).
    variance = 4 * (1 - sizes.dropout_rate) / (options.num_taps * sizes.width)
    layer = GatedConvolution(
        sizes.width, options.num_taps, options.dilation, sizes.num_layers, sizes.dropout_rate,
        nn.initializers.normal(variance**0.5), sizes.dtype,
    )  # fmt: skip
    table = Embed(vocab_size, sizes.width, TABLE_INIT)
    return Decoder(
        embed=InputEmbed(table, None, sizes.dropout_rate, dtype=sizes.dtype),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, TABLE_INIT),
    )


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of the layers without biases."""
    return sizes.num_layers * 2 * options.num_taps * sizes.width**2
