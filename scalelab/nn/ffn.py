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
    """Returns the exact GELU of x [...], x Phi(x) (Hendrycks and Gimpel 2016); BERT, RoBERTa.

    It uses erf. `jax.nn.gelu` computes the same function with erfc, which is slower on CPU.
    """
    return 0.5 * x * (1.0 + jax.lax.erf(x * 0.5**0.5))


def gelu_tanh(x: jax.Array) -> jax.Array:
    """Returns the tanh approximation of the GELU, error below 5e-4; GPT, GPT-2.

    Hendrycks and Gimpel 2016, 2.
    """
    return jax.nn.gelu(x, approximate=True)


ACTIVATIONS = {  # the values of config.model.activation
    "gelu": gelu_exact,
    "gelu_tanh": gelu_tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


Pair = tuple[nn.initializers.Initializer, nn.initializers.Initializer]


class FeedForward(nn.Module):
    """Two affine maps with an activation between (Vaswani et al. 2017, 3.3), and perhaps a gate.

    Attributes:
      ffn_width: F.
      activation: applied between the two maps.
      kernel_init: initializer of the first kernel; a pair: with a gate, a map of the input that
        multiplies the activation's output (Shazeer 2020, equation 5), and its kernel's initializer.
      out_kernel_init: initializer of the second kernel.
      dtype: dtype of the computation.
      bias_init: initializer of both biases; None: no biases.
      dropout_rate: dropout on the activation's output (Raffel et al. 2020, T5).
      adapter: (x, ctx) -> x, whose output is added to this network's (Houlsby et al. 2019); None:
        off.
    """

    ffn_width: int
    activation: Callable[[jax.Array], jax.Array]
    kernel_init: nn.initializers.Initializer | Pair
    out_kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32
    bias_init: nn.initializers.Initializer | None = ZEROS
    dropout_rate: float = 0.0
    adapter: nn.Module | None = None

    @nn.compact
    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """Maps [B, T, D] to [B, T, D].

        Args:
          x: [B, T, D].
          ctx: whether dropout is on.
        """
        into = (axes.WIDTH,), (axes.FFN,), (self.ffn_width,)
        outer = (axes.FFN,), (axes.WIDTH,), (x.shape[-1],), self.out_kernel_init
        given = self.dtype, self.bias_init
        init, *gates = (
            self.kernel_init if isinstance(self.kernel_init, tuple) else (self.kernel_init,)
        )
        h = Linear(*into, init, *given, name="inner")(x)
        # The backward pass needs the activation's input and output. Values computed inside the
        # activation are as wide as the FFN. A loop of layers recomputes them. Without a loop XLA
        # keeps them, which on CPU is not slower than recomputing (benchmarks/RESULTS.md).
        h = jax.checkpoint(self.activation, prevent_cse=False)(h)
        for gate_init in gates:
            h = h * Linear(*into, gate_init, *given, name="gate")(x)
        h = constrain(h, axes.BATCH, axes.LENGTH, axes.FFN)
        h = Dropout(self.dropout_rate, name="dropout")(h, ctx)
        y = Linear(*outer, *given, name="outer")(h)
        return y if self.adapter is None else y + self.adapter(y, ctx)
