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

Heads and FFN width of the shape are ignored.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.typing import DTypeLike

from scalelab.config.fields import Count, choice
from scalelab.nets.decoder import Decoder
from scalelab.nn import axes
from scalelab.nn.axes import constrain
from scalelab.nn.dropout import Dropout
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.heads import BiasHead
from scalelab.nn.layer import Unchanged
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context
from scalelab.nn.memory import last_inputs
from scalelab.nn.stack import Stack
from scalelab.systems import GPT_INPUT, Departure, Sizes, refuse

DEPARTURES = (
    Departure("objective", "clm", "Bengio et al. 2003, 2"),
    Departure("optim.learning_rate", 1e-3, "Adam's own; the paper has SGD"),
)
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
ADAPTATION = GPT_INPUT  # the papers do not fine-tune
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


class TanhLayer(nn.Module):
    """z -> W tanh(z) + b.

    Attributes:
      width: D.
      dropout_rate: dropout behind tanh.
      dtype: dtype of the computation.
    """

    width: int
    dropout_rate: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, z: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Maps [B, T, D] to [B, T, D]; there is no cache.

        Args:
          z: [B, T, D].
          ctx: whether dropout is on.
          cache: unused.
        """
        hidden = Dropout(self.dropout_rate)(jnp.tanh(z), ctx)
        out, init = (axes.TRANSFORM,), nn.initializers.normal(self.width**-0.5)
        dense = Linear((axes.WIDTH,), out, (self.width,), init, self.dtype, name="dense")
        return dense(hidden), cache


class WindowStack(nn.Module):
    """A map of the last K tokens' vectors, and layers on its result.

    Attributes:
      stack: (z [B, T, D], ctx, None) -> (z, None).
      width: D.
      num_taps: K.
      direct: whether a second map of the window is added to the result.
      dtype: dtype of the computation.
    """

    stack: nn.Module
    width: int
    num_taps: int
    direct: bool = False
    dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        """Makes the maps from [..., K D] to [..., D]."""
        init = nn.initializers.normal((self.num_taps * self.width) ** -0.5)
        given = (axes.WIDTH,), (axes.TRANSFORM,), (self.width,), init, self.dtype
        self.window = Linear(*given)
        self.added = Linear(*given, bias_init=None) if self.direct else None

    def init_cache(self, batch_size: int, max_len: int) -> jax.Array:
        """Returns the vectors before a text: zeros [1, B, K - 1, D].

        Args:
          batch_size: B.
          max_len: unused; the window alone decides.
        """
        del max_len
        return jnp.zeros((1, batch_size, self.num_taps - 1, self.width), self.dtype)

    def __call__(
        self, x: jax.Array, ctx: Context, cache: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the predicted vectors [B, T, D], and the cache with the newest vectors.

        Args:
          x: [B, T, D], vectors of the tokens.
          ctx: what the pass gives to layers.
          cache: [1, B, K - 1, D], the vectors before x, the newest last; None: there are none.
        """
        (B, T, D), size = x.shape, self.num_taps - 1  # noqa: N806
        before = jnp.zeros((B, size, D), x.dtype) if cache is None else cache[0]
        joined = jnp.concatenate([before, x], axis=1)
        taps = [joined[:, size - k : size - k + T] for k in range(self.num_taps)]
        read = jnp.concatenate(taps, axis=-1)  # the newest first
        with axes.part("body"):
            made, _ = self.stack(self.window(read), ctx, None)
            if self.added is not None:
                made = made + self.added(read)
        cache = None if cache is None else last_inputs(joined, size, ctx.num_real)[None]
        return constrain(made, axes.BATCH, axes.LENGTH, axes.WIDTH), cache


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
