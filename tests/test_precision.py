"""bfloat16: what is computed in it, and what never is, read from the traced training step."""

import types
from collections.abc import Iterator
from typing import Any

import declared
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.extend.core import jaxprs_in_params

from scalelab import step
from scalelab.nn import norm
from scalelab.training import blueprint

CLASSES = {1, 2}  # scores of heads whose last product is float32 by their own declaration


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a traced program, those of loops and inner functions too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def traced(system: str, dtype: str) -> tuple[Any, Any, Any]:
    """The training step's jaxpr, and its state before and after in the abstract."""
    plan = blueprint.draw(tiny.config(system, model__dtype=dtype))
    made = step.make_train_step(plan.net, plan.terms, plan.tx)
    batch = plan.batch(tiny.LENGTH, tiny.BATCH)
    jaxpr, (after, _) = jax.make_jaxpr(made, return_shape=True)(plan.state, batch, jnp.float32(0))
    return jaxpr.jaxpr, plan.state, after


def narrow(jaxpr: Any) -> list[str]:
    """Operations on bfloat16 that softmax, norms, losses and sums consist of.

    Of exponentials those of a negation are left out: exp(-x^2) is the slope of GELU's erf.
    """
    negated = {e.outvars[0] for e in equations(jaxpr) if e.primitive.name == "neg"}
    wide_only = {"exp", "log", "log1p", "rsqrt", "sqrt", "div", "reduce_sum", "reduce_max"}
    return [
        f"{e.primitive} {e.invars[0].aval}"
        for e in equations(jaxpr)
        if e.primitive.name in wide_only
        and not (e.primitive.name == "exp" and e.invars[0] in negated)
        and any(getattr(v.aval, "dtype", None) == jnp.bfloat16 for v in e.invars)
    ]


def products(jaxpr: Any) -> tuple[int, list[str]]:
    """How many matrix products there are, and those with an operand that is not bfloat16."""
    found = [e for e in equations(jaxpr) if e.primitive.name == "dot_general"]
    wide = [
        f"{[str(v.aval) for v in e.invars]} -> {e.outvars[0].aval}"
        for e in found
        if any(v.aval.dtype != jnp.bfloat16 for v in e.invars)
        and not any(CLASSES & {*v.aval.shape} for v in (*e.invars, *e.outvars))
    ]
    return len(found), wide


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_bfloat16_multiplies_and_float32_sums(system: str) -> None:
    jaxpr, before, after = traced(system, "bfloat16")
    assert not narrow(jaxpr)
    count, wide = products(jaxpr)
    # In one traced layer: four projections, scores and sums, two of the FFN; each three times.
    least = 8 if declared.get(system).transformer else 1 - declared.get(system).counted
    assert count >= 3 * least and not wide, wide
    # A memory has states of layers, which are as narrow as the computation.
    before, after = (state.replace(carried=None) for state in (before, after))
    for leaf, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert leaf.dtype == new.dtype != jnp.bfloat16


def test_what_is_not_so_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(products(traced("gpt2", "float32")[0])[1]) >= 3 * 8
    softmax = jax.nn.softmax
    narrowed = lambda x, axis: softmax(x.astype(jnp.bfloat16), axis=axis)  # noqa: E731
    monkeypatch.setattr(jax.nn, "softmax", narrowed)
    assert any(found.startswith("exp") for found in narrow(traced("gpt2", "bfloat16")[0]))
    monkeypatch.undo()
    narrowed = types.SimpleNamespace(float32=jnp.bfloat16, square=jnp.square)
    monkeypatch.setattr(norm, "jnp", narrowed)
    assert any(found.startswith("rsqrt") for found in narrow(traced("gpt2", "bfloat16")[0]))


def losses(system: str, dtype: str, num_steps: int, **fields: Any) -> np.ndarray:
    """Of each step on one batch, from the same parameters."""
    plan = blueprint.draw(tiny.config(system, model__dtype=dtype, **fields))
    mesh = tiny.one_device()
    now, run = plan.start(mesh), plan.compile(tiny.LENGTH, tiny.BATCH, mesh)
    batch, found = tiny.batch(plan.system, 1), []
    for _ in range(num_steps):
        now, metrics = run(now.replace(step=jnp.zeros((), jnp.int32)), batch, jnp.float32(1e-2))
        found.append(float(metrics["loss"][0]))
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_a_bfloat16_step_has_the_loss_of_a_float32_step(system: str) -> None:
    """Over fifteen steps on one batch; its numbers have two to three digits."""
    wide, rounded = (losses(system, dtype, 15) for dtype in ("float32", "bfloat16"))
    assert wide[-1] < 0.9 * wide[0]
    np.testing.assert_allclose(rounded, wide, rtol=0.01)
    assert not np.allclose(rounded, wide, rtol=1e-6)
