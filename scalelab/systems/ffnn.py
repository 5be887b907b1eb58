"""Feed-forward language models: Bengio et al. 2003, "A neural probabilistic language model".

The vectors of the last n - 1 = K tokens, side by side, give z = H x + d. Each layer computes
W tanh(z) + b from z, and a table and a bias score tokens by the result. So the paper's U is that
table times W. `kind=log_bilinear` is the model of Mnih and Hinton 2007 (3), in which z, one matrix
for each place of the window, is itself the predicted vector.

Departs from them:
  - the table of inputs also scores tokens, as in Mnih and Hinton; Bengio et al. have
    `model.output_embedding=untied`;
  - the layers are as wide as the vectors; a shape may have several, the papers have one;
  - `direct` connections (Bengio et al., equation 1: W x) are added to the last layer's result, so
    that they have rank D; the paper's W has V rows of its own. Frozen features do not have them;
  - places before the first token are zeros, as in `gcnn`;
  - DOC-SENTENCES and 30,000 tokens, as in the benchmark protocol; the optimizer, its schedule and
    dropout, on the vectors and behind tanh, are the protocol's.

The heads and the ffn width of the shape mean nothing.
"""

import dataclasses
from typing import Annotated

from flax import linen as nn

from scalelab.config.fields import Count, choice
from scalelab.nets.decoder import Decoder
from scalelab.nets.window import TanhLayer, WindowStack
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.heads import BiasHead
from scalelab.nn.layer import Unchanged
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes, refuse

DEPARTURES = (
    Departure("objective", "clm", "Bengio et al. 2003, 2"),
    Departure("optim.learning_rate", 1e-3, "Adam's own; the paper has SGD"),
)
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
# The papers do not fine-tune. This is GPT's input (Radford et al. 2018, 3.3).
ADDED = ("<|start|>", "<|delimiter|>", "<|end|>")
ADAPTATION = Adaptation(
    *((token,) for token in ADDED), added_tokens=ADDED, reads="last", both_orders=True
)
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "shuffled"

TABLE_INIT = nn.initializers.normal(stddev=0.1)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    num_taps: Count = 4  # K = n - 1, the tokens that a prediction reads
    kind: Annotated[str, choice("tanh", "log_bilinear")] = "tanh"
    direct: bool = False  # also a linear map from the window to the predicted vector


def build(sizes: Sizes, options: Options, vocab_size: int) -> Decoder:
    """Builds the model, as `System.build`."""
    refuse(sizes, "activation", "norm_epsilon")
    K, D = options.num_taps, sizes.width  # noqa: N806
    if sizes.max_len < K:
        raise ValueError(
            f"system_options.num_taps = {K} exceeds the model's positions,"
            f" config.model.max_len = {sizes.max_len}"
        )
    layer: nn.Module = TanhLayer(D, sizes.dropout_rate, sizes.dtype)
    if options.kind == "log_bilinear":
        layer = Unchanged()
        if options.direct or sizes.num_layers != 1:
            raise ValueError(
                "a log-bilinear model has no hidden layers beside its map: config.model.num_layers"
                f" = {sizes.num_layers}, expected 1; system_options.direct = {options.direct},"
                " expected False"
            )
    table = Embed(vocab_size, D, TABLE_INIT)
    return Decoder(
        embed=InputEmbed(table, None, sizes.dropout_rate, dtype=sizes.dtype),
        stack=WindowStack(
            Stack(layer, sizes.num_layers, sizes.remat), D, K, options.direct, sizes.dtype
        ),
        token_head=BiasHead(vocab_size),
        output_embed=output_table(sizes.output_embedding, vocab_size, D, TABLE_INIT),
    )


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of the layers without biases."""
    maps = options.num_taps * (1 + options.direct)
    layers = sizes.num_layers if options.kind == "tanh" else 0
    return (maps + layers) * sizes.width**2
