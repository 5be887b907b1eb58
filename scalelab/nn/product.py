"""Matrix products whose sums are float32, whatever their operands are."""

import functools

import jax
import jax.numpy as jnp


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """An einsum of two arrays of one dtype, its result in float32.

    Its gradient takes the operands' dtype before it is multiplied: left to itself it would stay
    float32, and so would both products of the backward pass, which matrix units for bfloat16 then
    cannot take.

    Args:
      subscripts: as of jnp.einsum.
      a: the first operand.
      b: the second.
    """
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


product = jax.custom_vjp(_product, nondiff_argnums=(0,))


def _forward(subscripts: str, a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple]:
    return _product(subscripts, a, b), (a, b)


def _backward(subscripts: str, operands: tuple, gradient: jax.Array) -> tuple:
    _, pullback = jax.vjp(functools.partial(jnp.einsum, subscripts), *operands)
    return pullback(gradient.astype(operands[0].dtype))


product.defvjp(_forward, _backward)
