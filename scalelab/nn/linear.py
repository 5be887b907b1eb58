"""An affine map between axes that have names."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn.axes import parameter

ZEROS = nn.initializers.zeros_init()


@jax.custom_vjp
def rows_times_kernel(rows: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns the matrix product [R, O].

    The gradients are JAX's. For I > O the kernel's gradient is computed as (cotangent^T rows)^T: it
    transposes the narrower operand, which is faster on CPU (benchmarks/RESULTS.md).

    Args:
      rows: [R, I].
      kernel: [I, O].
    """
    return rows @ kernel


def _forward(rows: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return rows @ kernel, (rows, kernel)


def _backward(
    operands: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    rows, kernel = operands
    if kernel.shape[0] > kernel.shape[1]:
        # The barrier keeps XLA from folding the transposition into the product again.
        kernel_grad = jax.lax.optimization_barrier(cotangent.T @ rows).T
    else:
        kernel_grad = rows.T @ cotangent
    return cotangent @ kernel.T, kernel_grad


rows_times_kernel.defvjp(_forward, _backward)


class Linear(nn.Module):
    """y = x W + b over the last axes of x.

    Attributes:
      in_axes: logical names of the contracted axes, the last ones of x.
      out_axes: logical names of the new axes.
      out_shape: sizes of the new axes.
      kernel_init: initializer of the kernel.
      dtype: dtype of the computation; parameters are float32.
      bias_init: initializer of the bias; None: no bias.
    """

    in_axes: tuple[str, ...]
    out_axes: tuple[str, ...]
    out_shape: tuple[int, ...]
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32
    bias_init: nn.initializers.Initializer | None = ZEROS

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps x [..., *in] to [..., *out]."""
        num_in = len(self.in_axes)
        names, shape = self.in_axes + self.out_axes, x.shape[-num_in:] + self.out_shape
        kernel = parameter(self, "kernel", self.kernel_init, names, shape)
        # Always one product of two matrices: for products with more axes XLA on CPU transposes and
        # copies the gradients.
        rows = x.shape[: x.ndim - num_in]
        size_in, size_out = math.prod(x.shape[-num_in:]), math.prod(self.out_shape)
        flat = x.reshape(-1, size_in).astype(self.dtype)
        y = rows_times_kernel(flat, kernel.reshape(size_in, size_out).astype(self.dtype))
        y = y.reshape(rows + self.out_shape)
        if self.bias_init is None:
            return y
        bias = parameter(self, "bias", self.bias_init, self.out_axes, self.out_shape)
        # Added in float32, the dtype of the bias: its gradient then sums over all rows in float32.
        return (y + bias).astype(self.dtype)
