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

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.config.fields import Count
from scalelab.nets.decoder import Decoder
from scalelab.nn import axes
from scalelab.nn.axes import constrain
from scalelab.nn.dropout import Dropout
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.heads import PlainHead
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context
from scalelab.nn.memory import last_inputs
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
SHRINK = 0.5**0.5  # keeps the variance of a residual sum


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    num_taps: Count = 4  # K, the width of the kernel
    dilation: Count = 1  # factor from a layer to the next; 1: no dilation


class GatedConvolution(nn.Module):
    """y = sqrt(1/2) (x + (x * W + b) sigmoid(x * V + c)), where * sees a token and those before it.

    Places before the first token are zeros. Tap k of the convolution, counted from the last one,
    reads the token k * dilation places back. The dilation of layer n is `growth` ** n.

    Attributes:
      width: D.
      num_taps: K, the width of the kernel.
      growth: 1: no dilation; 2: it doubles from layer to layer.
      num_layers: L, of the stack.
      dropout_rate: dropout before the residual sum.
      kernel_init: initializer of the kernel [K D, 2 D] of W and V.
      dtype: dtype of the computation.
    """

    width: int
    num_taps: int
    growth: int
    num_layers: int
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    @property
    def reach(self) -> int:
        """M, the number of earlier tokens that the last layer reads at most."""
        return (self.num_taps - 1) * self.growth ** (self.num_layers - 1)

    def init_cache(self, batch_size: int, max_len: int) -> jax.Array:
        """Returns inputs of zeros [B, M, D], at most for `max_len` tokens."""
        return jnp.zeros((batch_size, min(self.reach, max_len), self.width), self.dtype)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Reads x [B, T, D].

        Args:
          x: [B, T, D].
          ctx: index of the layer; with a cache also positions, and the lengths of the mask.
          cache: [B, M, D], the inputs of this layer for the last tokens before x, the newest last;
            None: there are none.

        Returns:
          [B, T, D], and the inputs behind the last real token of each row.
        """
        B, T, D = x.shape  # noqa: N806
        before = cache
        if before is None:
            before = jnp.zeros((B, min(self.reach, T), D), x.dtype)
        joined, size = jnp.concatenate([before, x], axis=1), before.shape[1]
        assert ctx.layer is not None  # a stack sets it

        def tap(number: int) -> jax.Array:
            # Beyond the array there would be zeros alone, as in its first rows.
            layers = range(self.num_layers)
            back = jnp.array([min(number * self.growth**n, size) for n in layers])[ctx.layer]
            return jax.lax.dynamic_slice_in_dim(joined, size - back, T, axis=1)

        taps = jnp.concatenate([tap(k) for k in range(self.num_taps)], axis=-1)
        out = (axes.TRANSFORM,), (2 * D,)
        both = Linear((axes.WIDTH,), *out, self.kernel_init, self.dtype, name="taps")(taps)
        values, gates = jnp.split(both, 2, axis=-1)
        y = Dropout(self.dropout_rate)(values * jax.nn.sigmoid(gates), ctx)
        if cache is not None:
            cache = last_inputs(joined, size, ctx.num_real)
        return constrain(SHRINK * (x + y), axes.BATCH, axes.LENGTH, axes.WIDTH), cache


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
