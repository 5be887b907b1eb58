"""Parameters and FLOPs, against published tables, the traced program, XLA's analysis."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import declared
import flax.linen as nn
import guests
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax.traverse_util import flatten_dict

from scalelab import objectives as objectives_lib
from scalelab import state, step
from scalelab.config.pretraining import Shape
from scalelab.nn import recurrence
from scalelab.nn.axes import forward_only, part, useful
from scalelab.objectives import clm
from scalelab.resources import flops

# N = 12 L H^2 of the thesis's shapes (A, H, L), tables 7.2 to 7.8.
PUBLISHED = {
    "2x128x2": 393_216, "2x192x2": 884_736, "2x288x2": 1_990_656, "2x384x2": 3_538_944,
    "2x544x2": 7_102_464, "2x128x5": 983_040, "2x128x10": 1_966_080, "2x128x18": 3_538_944,
    "2x128x36": 7_077_888, "2x204x7": 3_495_744, "2x256x9": 7_077_888, "8x544x2": 7_102_464,
    "2x104x3": 389_376, "2x90x4": 388_800, "2x74x6": 394_272, "2x64x8": 393_216,
    "2x58x10": 403_680, "2x52x12": 389_376, "2x48x14": 387_072, "2x46x16": 406_272,
    "7x469x4": 10_558_128, "9x585x5": 20_533_500, "13x832x5": 41_533_440,
}  # fmt: skip


def test_n_model_of_the_published_shapes() -> None:
    for shape, expected in PUBLISHED.items():
        assert Shape.parse(shape).n_model == expected


def test_the_body_costs_two_flops_a_parameter_and_position() -> None:
    """Protocol 7.1, by hand for 2x128x2 in a batch of 64 x 128; see also tests/golden."""
    sizes = dict(model__width=128, model__num_layers=2, model__max_len=128)
    sizes |= dict(short__max_len=128, short__batch_size=64)
    cost, both = (cost_of(tiny.parts(system, **sizes)) for system in ("gpt2", "roberta"))
    assert cost.body == 2 * 393_216 * 64 * 128
    assert cost.attention == 2 * 2 * 128 * 128 * 64 * 128  # 2 L n H a token
    assert cost.head == 2 * tiny.VOCAB * 128 * 64 * 127
    assert cost.embedding == 0
    assert cost.forward == cost.body + cost.attention + cost.head
    assert cost.train == 3 * cost.forward
    assert both.attention == 2 * cost.attention and both.body == cost.body


squared = jax.custom_vjp(lambda x: x @ x)
squared.defvjp(lambda x: (x @ x, x), lambda x, g: (g @ x.T + x.T @ g,))


def test_a_program_by_hand() -> None:
    """Each turn of a loop, the costliest branch; remat, a custom gradient, no gradient: once."""

    def program(x: jax.Array) -> jax.Array:
        with part("body"):
            x, _ = jax.lax.scan(lambda x, _: (x @ x, None), x, length=3)
            x = jax.checkpoint(lambda x: jnp.sin(x @ x))(x)
            with part("attention"), useful(0.5):
                x = jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x @ x @ x @ x, x)
                with useful(0.25):
                    x = x @ x
        with part("embedding"):
            x = jnp.einsum("ij,ij->ij", x, x)
        with part("head"), forward_only():
            teacher = x @ x
        return squared(x) + teacher

    product = 2.0 * 4 * 4 * 4
    found = flops.of_program(program, jax.ShapeDtypeStruct((4, 4), "float32"))
    shares = 4.0, 1.5 + 0.125, 2.0, 0.0, 1.0
    assert found == flops.Flops(*(share * product for share in shares))
    assert found.train == 3 * found.forward - 2 * product == (3 * 7.625 - 2) * product


def dot_flops(jaxpr: jax.extend.core.Jaxpr) -> float:
    """FLOPs of all matrix products of a traced program; the body of a scan counts at each turn."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            contracted, _ = equation.params["dimension_numbers"][0]
            sizes = [equation.invars[0].aval.shape[axis] for axis in contracted]
            total += 2.0 * equation.outvars[0].aval.size * np.prod(sizes)
        turns = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            total += turns * dot_flops(inner)
    return total


def params_of(parts: tiny.Parts) -> Any:
    return nn.unbox(parts.abstract_parameters(parts.config.short.max_len))


def batch_of(parts: tiny.Parts) -> Any:
    phase = parts.config.short
    return objectives_lib.example_batch(phase.max_len, parts.arrays, phase.batch_size)


def evaluation(parts: tiny.Parts) -> tuple:
    """The evaluation step, and abstract arguments for it."""
    made = step.make_eval_step(parts.net, parts.terms)
    return made, (params_of(parts), batch_of(parts), jax.random.key(0))


def cost_of(parts: tiny.Parts) -> flops.Flops:
    return flops.count_phases(params_of(parts), parts.net, parts.terms, parts.config)[0]


def masked_half(parts: tiny.Parts, cost: flops.Flops) -> float:
    """The attention scores that a causal model computes and does not use."""
    expected, length = declared.get(parts.config.system), parts.config.short.max_len
    if parts.module.SEES == "both" or expected.mixed_masks or not expected.transformer:
        return 0
    if parts.module.HAS_SOURCE:  # encoder, cross-attention, and half of the decoder
        S, T = (batch_of(parts)[name].shape[1] for name in ("source", "tokens"))  # noqa: N806
        return cost.attention * T**2 / (2 * S**2 + 2 * S * T + T**2)
    return cost.attention * length / (2 * expected.memory_len + length)


# Heads of losses with targets.
PREDICTORS = ("token",), ("boundary",), ("query",), ("next", "previous")


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_every_matrix_product_of_the_forward_pass_is_counted(system: str) -> None:
    """Exactly, but for what the definition leaves out.

    That is the product of each prediction with its target's own row of the table, and for causal
    models the masked half of the attention scores, which dense attention computes, and the last
    position's prediction, which is computed to keep the length a round number.
    """
    parts = tiny.parts(system)
    made, arguments = evaluation(parts)
    counted, cost = dot_flops(jax.make_jaxpr(made)(*arguments).jaxpr), cost_of(parts)
    if declared.get(system).counted:
        assert counted == cost.forward == 0
        return
    if parts.module.SEES == "left":
        predictions = tiny.BATCH * tiny.LENGTH
        head = cost.head * tiny.LENGTH / (tiny.LENGTH - 1)
        expected = cost.body + cost.attention + masked_half(parts, cost) + head
    elif places := declared.get(system).all_places:
        predictions = places * tiny.BATCH * tiny.LENGTH
        expected = cost.body + cost.head * tiny.LENGTH / (tiny.LENGTH - 1)
    elif parts.module.HAS_SOURCE:
        predictions = batch_of(parts)["tokens"].size
        expected = cost.forward + masked_half(parts, cost)
    else:
        predictions = tiny.BATCH * 3  # 15% of 16, rounded up
        expected = cost.forward
    table = flatten_dict(arguments[0], sep="/")[parts.net.TOKEN_TABLE]
    heads = [objectives_lib.load(term.name).HEADS for term in parts.terms]
    predictions *= sum(names in PREDICTORS for names in heads)
    assert counted == expected + 2 * predictions * table.shape[1]


def training(parts: tiny.Parts) -> tuple:
    """The training step, and abstract arguments for it."""
    model = tiny.model(parts.net, parts.terms, tx := tiny.optimizer(parts.config))
    make = functools.partial(state.fresh, model=model, **vars(parts.config.short))
    fresh = jax.eval_shape(lambda key: nn.unbox(make(key)), jax.random.key(0))
    return step.make_train_step(parts.net, parts.terms, tx), (fresh, batch_of(parts), 1e-3)


class TrainedOnly(clm.CLM):
    """Multiplies the states by a matrix of ones, in training alone."""

    def losses(self, model: nn.Module, batch: Any, ctx: objectives_lib.Pass) -> Any:
        hidden = ctx.token_hidden(model, batch)
        if ctx.train:
            assert ctx.step is not None
            hidden = hidden @ jnp.ones((hidden.shape[-1],) * 2)
        return {"loss": (hidden.sum(), jnp.ones(()))}


def test_what_only_training_computes_is_counted() -> None:
    parts = tiny.parts("gpt2")
    parts = dataclasses.replace(parts, terms=(objectives_lib.Term(TrainedOnly()),))
    assert cost_of(parts).head == 2 * tiny.BATCH * tiny.LENGTH * parts.config.model.width**2


# Without layers the draws and the optimizer cost more than the products, which XLA counts as well.
CASES = [(system, {}) for system in tiny.SYSTEMS if not declared.get(system).static] + [
    ("electra", {"objective": "mlm+rtd", "objective_options": options})
    for options in ({"target": "token", "positions": "masked"}, {"target": "token"})
]
CASES += [("translator", {}), ("two_streams", {"system_options__memory_len": 32})]


@pytest.fixture
def systems_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    guests.add(monkeypatch)


@pytest.mark.usefixtures("systems_of_tests")
@pytest.mark.parametrize("kind", [evaluation, training])
@pytest.mark.parametrize(("system", "fields"), CASES)
def test_xlas_own_analysis_agrees(
    system: str, fields: Any, kind: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 1%: XLA also counts softmax, norms, activations and the optimizer, small at this size.

    One layer and no loop over time, because XLA counts the body of a loop once; and few pieces, so
    that the head is one
    product and no loop. Dense attention computes the masked half of a causal model's scores as
    well. XLA counts the program as it is written, before it merges what is computed twice.
    """
    monkeypatch.setattr(recurrence, "UNROLL", 64)
    parts = tiny.parts(
        system, model__width=2048, model__num_heads=4, model__num_layers=1, model__max_len=64,
        short__max_len=64, short__batch_size=32, tokenizer__vocab_size=2000, **fields,
    )  # fmt: skip
    made, arguments = kind(parts)
    analysis = jax.jit(made).lower(*arguments).cost_analysis()
    cost = cost_of(parts)
    expected = cost.forward + masked_half(parts, cost)
    times = 1 if kind is evaluation else cost.train / cost.forward
    # A loss over tokens at all positions scores the vocabulary again in the backward pass.
    again = fields.get("objective_options") == {"target": "token"} and kind is training
    expected = times * expected + again * 2 * 32 * 64 * 2048 * 2000
    assert analysis["flops"] == pytest.approx(expected, rel=0.01)
