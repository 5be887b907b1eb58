"""AdamW with groups by name, against PyTorch's and against values worked out by hand."""

import declared
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from scalelab.nn import axes
from scalelab.optim import adamw

HYPER = dict(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01)


def parameters() -> dict:
    """A tree with all kinds of leaves: stacked kernels, biases and scales, a table."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return {
        "embed": {"table": draw(7, 4)},
        "stack": {
            "norm": {"scale": draw(3, 4), "bias": draw(3, 4)},
            "dense": {"kernel": draw(3, 4, 4), "bias": draw(3, 4)},
        },
    }


def gradients(t: int, params: dict) -> dict:
    """Of very different sizes, so that some steps are clipped and others are not."""
    rng = np.random.default_rng(t + 1)
    scale = 10.0 ** rng.integers(-3, 2)
    return jax.tree.map(lambda p: (scale * rng.normal(size=p.shape)).astype(np.float32), params)


@pytest.mark.parity
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_equals_torch_step_by_step(clip_norm: float | None) -> None:
    """With warm-up, linear decay, clipping and two groups, over 50 steps."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    params = parameters()
    tx = adamw.adamw(**HYPER, clip_norm=clip_norm)
    opt_state, update = tx.init(params), jax.jit(tx.update)

    def named(tree: dict) -> dict[str, np.ndarray]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {adamw.parameter_name(path): leaf for path, leaf in leaves}

    theirs = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in named(params).items()}
    decays, rate = {"embed/table": 0.01, "stack/dense/kernel": 0.01}, 1e-2
    groups = [{"params": [p], "weight_decay": decays.get(k, 0.0)} for k, p in theirs.items()]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-6)
    factors = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: t / 10 if t < 10 else (50 - t) / 40
    )
    for t in range(50):
        grads = gradients(t, params)
        updates, opt_state = update(grads, opt_state, params)
        ours = np.float32(rate * adamw.linear(t, 10, 50))
        params = jax.tree.map(lambda p, u, ours=ours: p + ours * u, params, updates)
        for name, gradient in named(grads).items():
            theirs[name].grad = torch.tensor(gradient)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(theirs.values(), clip_norm)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        factors.step()
        for name, value in named(params).items():
            expected = theirs[name].detach().numpy()
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=f"{t} {name}")


def test_the_first_step_by_hand() -> None:
    """m / sqrt(v) is the sign of the gradient; the kernel decays, the bias does not."""
    params = {"kernel": jnp.array([[2.0, -4.0]]), "bias": jnp.array([[2.0, -4.0]])}
    grads = {"kernel": jnp.array([[0.5, -0.1]]), "bias": jnp.array([[0.5, -0.1]])}
    tx = adamw.adamw(beta1=0.9, beta2=0.999, eps=0.0, weight_decay=0.1, clip_norm=None)
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(updates["bias"], [[-1.0, 1.0]], rtol=1e-5)
    np.testing.assert_allclose(updates["kernel"], [[-1.2, 1.4]], rtol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 0.1, 1.0, 1e6, np.inf, np.nan])
def test_clipping_is_that_of_optax(scale: float) -> None:
    """At every size of the gradients; not finite ones come out as they do there."""
    params = parameters()
    grads = jax.tree.map(lambda g: np.float32(scale) * np.sign(g), gradients(0, params))
    grads["stack"]["norm"]["bias"] = np.ones((3, 4), np.float32)  # one leaf is always finite
    for norm in (0.5, 1.0, 20.0):
        ours, theirs = adamw._clip(norm), optax.clip_by_global_norm(norm)
        made = jax.jit(ours.update)(grads, ours.init(params))[0]
        expected = jax.jit(theirs.update)(grads, theirs.init(params))[0]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), made, expected)


# --- Groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_the_decayed_are_exactly_the_declared_and_neither_bias_nor_scale(system: str) -> None:
    params = nn.unbox(tiny.parts(system).abstract_parameters())
    mask = jax.tree_util.tree_leaves_with_path(adamw.decay_mask(params))
    names = {adamw.parameter_name(path): decayed for path, decayed in mask}
    assert {name for name, decayed in names.items() if decayed} == declared.get(system).decayed
    undecayed = "bias", "scale", axes.UNDECAYED
    assert all(x != name.endswith(undecayed) for name, x in names.items())


def test_a_parameter_may_declare_that_no_decay_applies() -> None:
    class Temperature(nn.Module):
        @nn.compact
        def __call__(self) -> jax.Array:
            start = nn.initializers.constant(2.5)
            own = [axes.parameter(self, "temperature", start, (), (), decay=d) for d in (0, 1)]
            return own[0] + own[1]

    params = nn.unbox(Temperature().init(jax.random.key(0)))["params"]
    assert set(map(float, params.values())) == {2.5}
    still = adamw.adamw(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.1, clip_norm=None)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates = still.update(zeros, still.init(params), params)[0]
    assert {name: round(float(x), 6) for name, x in updates.items()} == {
        "temperature": -0.25, "temperature_undecayed": 0.0,
    }  # fmt: skip
