"""The product of Linear: its gradients, and the way in which they are computed."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.nn.linear import rows_times_kernel

R, WIDE, NARROW = 96, 24, 8


def operands(size_in: int, size_out: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))  # noqa: E731
    return draw(R, size_in), draw(size_in, size_out)


@pytest.mark.parametrize("sizes", [(WIDE, NARROW), (NARROW, WIDE), (NARROW, NARROW)], ids=str)
def test_value_and_gradients_are_those_of_numpy(sizes: tuple[int, int]) -> None:
    rows, kernel = operands(*sizes)
    cotangent = np.random.default_rng(1).standard_normal((R, sizes[1])).astype(np.float32)
    value, back = jax.vjp(rows_times_kernel, rows, kernel)
    rows_grad, kernel_grad = back(jnp.asarray(cotangent))
    np.testing.assert_allclose(value, np.asarray(rows) @ kernel, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows_grad, cotangent @ np.asarray(kernel).T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kernel_grad, np.asarray(rows).T @ cotangent, rtol=1e-5, atol=1e-5)


def test_gradients_keep_their_dtypes() -> None:
    given = [x.astype(jnp.bfloat16) for x in operands(WIDE, NARROW)]
    total = lambda rows, kernel: rows_times_kernel(rows, kernel).sum().astype(jnp.float32)  # noqa: E731
    assert {g.dtype for g in jax.grad(total, (0, 1))(*given)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("turned", [True, False])
def test_a_narrowing_kernels_gradient_is_computed_turned(turned: bool) -> None:
    """Also in the compiled program: XLA folds a transposition into a product where it may."""
    multiply = rows_times_kernel if turned else jnp.matmul
    rows, kernel = operands(WIDE, NARROW)
    gradient = jax.grad(lambda k: jnp.sin(multiply(rows, k)).sum())
    program = jax.jit(gradient).lower(kernel).compile().as_text()
    shapes = set(re.findall(r"f32\[(\d+),(\d+)\]\S* (?:dot|fusion)\(", program))
    assert ((str(NARROW), str(WIDE)) in shapes) == turned
