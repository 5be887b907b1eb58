"""Matrix products that sum in float32 for operands of any dtype."""

import functools

import jax
import jax.numpy as jnp


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns the einsum of two arrays of one dtype, in float32.

    The backward pass casts the incoming gradient to the operands' dtype. Without the cast both
    products of the backward pass would run in float32, so bfloat16 matrix units could not run them.

    Args:
      subscripts: as in jnp.einsum.
      a: the first operand.
      b: the second operand, with the dtype of `a`.
    """
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


product = jax.custom_vjp(_product, nondiff_argnums=(0,))


def _forward(subscripts: str, a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple]:
    return _product(subscripts, a, b), (a, b)


def _backward(subscripts: str, operands: tuple, gradient: jax.Array) -> tuple:
    _, pullback = jax.vjp(functools.partial(jnp.einsum, subscripts), *operands)
    return pullback(gradient.astype(operands[0].dtype))


product.defvjp(_forward, _backward)
