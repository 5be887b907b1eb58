"""Layers that share parameters: a model with explicit copies is the oracle."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from parts import context, init, normal
from test_stack import make

from scalelab.nn import axes
from scalelab.nn.masks import Context
from scalelab.nn.stack import UNROLLED_LAYERS, Sharing, Stack

B, T, D = 2, 5, 6
ATTENTION = ("attention", "attention_norm")
SHARINGS = [Sharing(), Sharing(2), Sharing(1, ATTENTION), Sharing(2, ("ffn",)), Sharing(3)]
DEEP = UNROLLED_LAYERS + 2
CASES = [(SHARINGS[0], 3, "none"), (SHARINGS[3], 3, "none"), (SHARINGS[1], DEEP, "none")]
SLOW = [(sharing, 3, "none") for sharing in (SHARINGS[1], SHARINGS[2], SHARINGS[4])]
SLOW += [(SHARINGS[0], DEEP, "none"), (SHARINGS[3], DEEP, "full")]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]


def groups(sharing: Sharing, num_layers: int) -> np.ndarray:
    """The group of each layer, as transformers' AlbertTransformer has it."""
    return np.array([int(i / (num_layers / sharing.num_groups)) for i in range(num_layers)])


def copies(params: Any, sharing: Sharing, group_of: np.ndarray) -> Any:
    """Parameters of a model that shares none, from those of one that does."""
    parts = sharing.parts or params["layer"]
    return {"layer": {
        name: jax.tree.map(lambda x: x[group_of], part) if name in parts else part
        for name, part in params["layer"].items()
    }}  # fmt: skip


def run(stack: Stack, params: Any) -> Any:
    """The output with dropout, and the gradient of a scalar of it."""
    ctx, key = context(B, T, causal=True, train=True), {"dropout": jax.random.key(1)}

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        out, _ = stack.apply({"params": params}, normal(B, T, D), ctx, None, rngs=key)
        return jnp.sum(jnp.square(out)), out

    (_, out), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return out, grads


def close(a: Any, b: Any) -> bool:
    ours, theirs = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (a, b))
    return np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize(("sharing", "num_layers", "remat"), CASES, ids=str)
def test_sharing_is_copies_whose_gradients_are_summed(sharing, num_layers, remat) -> None:
    stack = make(num_layers, remat).clone(sharing=sharing)
    params = init(stack, normal(B, T, D), context(B, T), None)["params"]
    out, grads = run(stack, params)

    def by_copies(group_of: np.ndarray) -> Any:
        whole, back = jax.vjp(lambda p: copies(p, sharing, group_of), params)
        out, copied = run(make(num_layers), whole)
        return out, back(copied)[0]  # sums the copies' gradients

    group_of = groups(sharing, num_layers)
    expected, summed = by_copies(group_of)
    assert close(out, expected) and close(grads, summed)
    if 1 < sharing.num_groups < num_layers:
        assert not close(out, by_copies(np.roll(group_of, 1))[0])


@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
def test_axes_and_first_values(sharing: Sharing) -> None:
    """A group starts as its first layer would without sharing."""
    x, ctx = normal(B, T, D), context(B, T)
    shared, plain = (
        make(6).clone(sharing=s).init(jax.random.key(0), x, ctx, None)["params"]
        for s in (sharing, None)
    )
    first = [groups(sharing, 6).tolist().index(g) for g in range(sharing.num_groups)]
    theirs = nn.unbox(plain)["layer"]
    for name, part in nn.unbox(shared)["layer"].items():
        is_shared = sharing.parts is None or name in sharing.parts
        rows = np.array(first if is_shared else range(6))
        for ours, whole in zip(*map(jax.tree.leaves, (part, theirs[name])), strict=True):
            np.testing.assert_array_equal(ours, whole[rows])
        axis = axes.GROUPS if is_shared else axes.LAYERS
        assert {n[0] for n in axes.names_by_path(shared["layer"][name]).values()} == {axis}


def test_a_loop_over_one_group_keeps_no_copy_for_its_backward_pass() -> None:
    given = normal(B, T, D), context(B, T), None

    def kept(sharing: Sharing | None) -> set[tuple[int, ...]]:
        stack = make(DEEP).clone(sharing=sharing)
        _, back = jax.vjp(lambda p: stack.apply(p, *given)[0], init(stack, *given))
        return {np.shape(leaf) for leaf in jax.tree.leaves(back)}

    kernel = (DEEP, D, 8)
    assert kernel in kept(None) and kernel not in kept(Sharing())


@pytest.mark.parametrize("num_groups", [0, 4, 2**31 - 1])
def test_refused(num_groups: int) -> None:
    stack = make(3).clone(sharing=Sharing(num_groups))
    with pytest.raises(ValueError, match=f"num_groups={num_groups}: expected 1 to 3"):
        stack.init(jax.random.key(0), normal(B, T, D), context(B, T), None)


class Reads(nn.Module):
    """Adds 10^layer times the step."""

    def __call__(self, carry: jax.Array, ctx: Context, cache: Any) -> tuple[jax.Array, Any]:
        assert ctx.layer is not None and ctx.step is not None
        return carry + ctx.step * 10.0**ctx.layer, cache


@pytest.mark.parametrize("num_layers", [4, UNROLLED_LAYERS + 1])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_layers_see_the_step_and_their_index(num_layers: int, remat: str) -> None:
    ctx = context(B, T).replace(step=jnp.int32(3))
    out, _ = Stack(Reads(), num_layers, remat).apply({}, jnp.zeros(()), ctx, None)
    assert int(out) // 10 ** (num_layers - 4) == 3333
