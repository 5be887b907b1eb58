"""Position-wise feed-forward networks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import constrain
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import ZEROS, Linear
from scalelab.nn.masks import Context


def gelu_exact(x: jax.Array) -> jax.Array:
    """GELU: x Phi(x), by the error function (Hendrycks and Gimpel 2016); BERT and RoBERTa.

    `jax.nn.gelu` computes the same with erfc, which takes longer on CPU.
    """
    return 0.5 * x * (1.0 + jax.lax.erf(x * 0.5**0.5))


def gelu_tanh(x: jax.Array) -> jax.Array:
    """GELU in its tanh form, off by less than 5e-4; GPT and GPT-2."""
    return jax.nn.gelu(x, approximate=True)


ACTIVATIONS = {  # the values of config.net.activation
    "gelu": gelu_exact,
    "gelu_tanh": gelu_tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


class FeedForward(nn.Module):
    """Two affine maps with an activation between (Vaswani et al. 2017, 3.3).

    Attributes:
      ffn_width: F.
      activation: the function between.
      kernel_init: initialiser of the first kernel.
      out_kernel_init: initialiser of the second kernel.
      dtype: dtype of the computation.
      bias_init: initialiser of both biases; None: no biases.
      dropout_rate: of the dropout on the activation's output (Raffel et al. 2020, T5).
    """

    ffn_width: int
    activation: Callable[[jax.Array], jax.Array]
    kernel_init: nn.initializers.Initializer
    out_kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32
    bias_init: nn.initializers.Initializer | None = ZEROS
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """Maps x [B, T, D] to [B, T, D]; dropout applies if `ctx` is of a training step."""
        inner = (axes.WIDTH,), (axes.FFN,), (self.ffn_width,), self.kernel_init
        outer = (axes.FFN,), (axes.WIDTH,), (x.shape[-1],), self.out_kernel_init
        given = self.dtype, self.bias_init
        h = Linear(*inner, *given, name="inner")(x)
        # The backward pass needs the activation's input and output. What lies between is four times
        # the size of the residual stream: a loop of layers does not keep it; without a loop XLA
        # does, which on CPU takes no longer than computing it again (benchmarks/RESULTS.md).
        h = jax.checkpoint(self.activation, prevent_cse=False)(h)
        h = constrain(h, axes.BATCH, axes.LENGTH, axes.FFN)
        h = Dropout(self.dropout_rate, name="dropout")(h, ctx)
        return Linear(*outer, *given, name="outer")(h)
