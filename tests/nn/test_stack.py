"""Layers and the stack: the scan against a loop in Python."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from parts import NORMAL, context, init, normal

from scalelab.nn.attention import SelfAttention
from scalelab.nn.ffn import FeedForward, gelu_tanh
from scalelab.nn.layer import PostNorm, PreNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.stack import REMAT_POLICIES, UNROLLED_LAYERS, Stack

B, T, D = 2, 5, 6


class Plain(nn.Module):
    """Stands for attention, which takes a cache, or for a feed-forward network or a norm."""

    function: Callable[[jax.Array], jax.Array]

    def __call__(self, x: jax.Array, *given: Any) -> Any:
        made = self.function(x)
        return (made, given[-1]) if len(given) == 2 else made  # attention: (ctx, cache)


def times(factor: float) -> Plain:
    return Plain(lambda x: factor * x)


@pytest.mark.parametrize(("layer", "expected"), [
    # x + 2x = 3x; norm x5 = 15x; + 7 * 15x = 120x; norm x11.
    (PostNorm, 15 * 8 * 11),
    # x + 2 * 5x = 11x; + 7 * 11 * 11x.
    (PreNorm, 11 + 7 * 11 * 11),
])  # fmt: skip
def test_order_of_sublayers_and_norms(layer: type, expected: float) -> None:
    module = layer(times(2), times(7), times(5), times(11), 0.5)
    out, _ = module.apply({}, jnp.ones((B, T, D)), context(B, T), None)
    np.testing.assert_allclose(out, expected)


@pytest.mark.parametrize("layer", [PostNorm, PreNorm])
def test_dropout_falls_on_sublayers_not_on_the_stream(layer: type) -> None:
    module = layer(times(2), times(3), times(1), times(1), 0.5)
    ctx = context(8, T, train=True)
    out, _ = module.apply({}, jnp.ones((8, T, D)), ctx, None, rngs={"dropout": jax.random.key(0)})
    # Sublayers give 0 or twice their value: 1 -> 1 or 5 -> that, or 7 times that.
    assert set(np.unique(out)) == {1.0, 5.0, 7.0, 35.0}


def make(num_layers: int, remat: str = "none") -> Stack:
    layer = PreNorm(
        attention=SelfAttention(2, 3, 0.3, NORMAL, NORMAL),
        ffn=FeedForward(8, gelu_tanh, NORMAL, NORMAL),
        attention_norm=LayerNorm(1e-5),
        ffn_norm=LayerNorm(1e-5),
        dropout_rate=0.3,
    )
    return Stack(layer, num_layers, remat)


@pytest.mark.parametrize("num_layers", [UNROLLED_LAYERS, UNROLLED_LAYERS + 2])
def test_the_scan_is_a_loop_over_layers(num_layers: int) -> None:
    x, ctx, stack = normal(B, T, D), context(B, T, causal=True), make(num_layers)
    variables = init(stack, x, ctx, None)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(variables)} == {num_layers}
    expected = x
    for i in range(num_layers):
        params = jax.tree.map(lambda p, i=i: p[i], variables["params"]["layer"])
        expected, _ = jax.jit(stack.layer.apply)({"params": params}, expected, ctx, None)
    out, cache = jax.jit(stack.apply)(variables, x, ctx, None)
    assert cache is None
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_layers", [2, UNROLLED_LAYERS + 1])
def test_layers_start_differently_and_drop_differently(num_layers: int) -> None:
    x, stack = jnp.ones((B, 40, D)), make(num_layers)
    start = jax.jit(lambda key: nn.unbox(stack.init(key, x, context(B, 40), None)))
    variables = start(jax.random.key(0))
    kernels = variables["params"]["layer"]["ffn"]["inner"]["kernel"]
    assert not np.allclose(kernels[0], kernels[1])
    # With sublayers that give 1 whatever comes, the stream counts what is kept, twice a layer.
    ctx = context(B, 40, train=True)
    ones = Plain(jnp.ones_like)
    count = Stack(PreNorm(ones, ones.clone(), times(1), times(1), 0.5), num_layers)
    out, _ = jax.jit(lambda key: count.apply({}, 0 * x, ctx, None, rngs={"dropout": key}))(
        jax.random.key(0)
    )
    # The same masks in every layer would leave multiples of two draws alone: 3 values.
    assert len(np.unique(out)) > 3


@pytest.mark.parametrize(
    "num_layers", [UNROLLED_LAYERS + 1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_remat_moves_neither_value_nor_gradient(num_layers: int) -> None:
    x, ctx = normal(B, T, D), context(B, T, train=True)
    variables = init(make(num_layers), x, context(B, T), None)

    def run(remat: str) -> Any:
        def loss(variables: Any) -> jax.Array:
            stack, key = make(num_layers, remat), {"dropout": jax.random.key(1)}
            return jnp.sum(jnp.square(stack.apply(variables, x, ctx, None, rngs=key)[0]))

        return jax.jit(jax.value_and_grad(loss))(variables)

    expected = run("none")
    for remat in set(REMAT_POLICIES) - {"none"}:
        for a, b in zip(jax.tree.leaves(run(remat)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def residuals(num_layers: int, remat: str) -> int:
    """Numbers that the forward pass keeps for the backward pass, parameters left out."""
    x, ctx, stack = normal(B, T, D), context(B, T), make(num_layers, remat)
    variables = init(stack, x, ctx, None)
    _, pullback = jax.vjp(lambda v: stack.apply(v, x, ctx, None)[0], variables)
    kept = sum(np.size(leaf) for leaf in jax.tree.leaves(pullback))
    return kept - sum(np.size(leaf) for leaf in jax.tree.leaves(variables))


def test_remat_keeps_less() -> None:
    deep = UNROLLED_LAYERS + 2
    assert residuals(deep, "full") < residuals(deep, "dots") < residuals(deep, "none")
    assert residuals(deep, "full") <= 2 * deep * B * T * D
