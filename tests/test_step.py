"""The step on a net small enough to work out by hand: one table, squared errors."""

import dataclasses
import functools
import types
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from scalelab import objectives as objectives_lib
from scalelab import state, step

V, T, B = 5, 3, 8


class Table(nn.Module):
    """One number for each token."""

    @nn.compact
    def __call__(self, batch: dict[str, jax.Array], *, train: bool) -> tuple[jax.Array, None]:
        named = nn.with_logical_partitioning(nn.initializers.normal(1.0), ("vocab",))
        table = self.param("table", named, (V,))
        hidden = table[batch["tokens"]]
        if train:
            examples = jax.vmap(lambda i: jax.random.fold_in(self.make_rng("dropout"), i))
            keys = examples(batch["examples"])
            hidden = hidden * jax.vmap(lambda k: jax.random.bernoulli(k, 0.5, (T,)))(keys)
        return hidden, None


@dataclasses.dataclass(frozen=True)
class Squares:
    """Sum of (hidden - target)^2 over the tokens, the target drawn for each example."""

    name: str
    needs: ClassVar[tuple[str, ...]] = ()

    def prepare(self, batch: dict[str, jax.Array], rng: jax.Array) -> dict[str, jax.Array]:
        draw = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(rng, i)))
        return batch | {f"{self.name}_targets": draw(batch["examples"])}

    def weight(self, batch: dict[str, jax.Array]) -> jax.Array:
        return jnp.sum(batch["lengths"]).astype(jnp.float32)

    def terms(self, model: Any, hidden: jax.Array, batch: Any, *, accuracy: bool = False) -> dict:
        valid = jnp.arange(T) < batch["lengths"][:, None]
        errors = jnp.square(hidden - batch[f"{self.name}_targets"][:, None]) * valid
        terms = {"loss": (jnp.sum(errors), jnp.sum(valid).astype(jnp.float32))}
        return terms | ({"accuracy": terms["loss"]} if accuracy else {})


OBJECTIVES = (Squares("near"), Squares("far"))


def batch_of(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch = {k: np.array(v) for k, v in objectives_lib.example_batch(T, (), B).items()}
    batch["tokens"] = rng.integers(0, V, (B, T)).astype(np.int32)
    batch["lengths"] = np.array([3, 0, 1, 2, 0, 0, 3, 1], np.int32)  # two microbatches are empty
    batch["num_bytes"], batch["num_text_tokens"] = 5 * batch["lengths"], 2 * batch["lengths"]
    batch["examples"] = np.arange(B, dtype=np.int32)
    return batch


class Root(Squares):
    """The root of nothing: its value is 0 and its gradient is not a number."""

    def terms(self, model: Any, hidden: jax.Array, batch: Any, *, accuracy: bool = False) -> dict:
        total, weight = super().terms(model, hidden, batch)["loss"]
        return {"loss": (jnp.sqrt(0 * total), weight)}


SGD, ADAM = optax.scale(-1.0), optax.adam(1.0)


def fresh(tx: Any, objectives: Any = OBJECTIVES) -> tuple[state.TrainState, Any]:
    return state.create(Table(), objectives, tx, max_len=T, seed=0, mesh=tiny.one_device())


@functools.cache
def compiled_once(tx: Any, num_microbatches: int, objectives: Any) -> tuple[Any, state.TrainState]:
    mesh = tiny.one_device()
    begun, placed = fresh(tx, objectives)
    made = step.make_train_step(Table(), objectives, tx, num_microbatches)
    return step.compile_train(made, mesh, placed, begun, batch_of(0)), begun


def compiled(
    tx: Any, num_microbatches: int = 1, objectives: Any = OBJECTIVES
) -> tuple[Any, state.TrainState]:
    """The compiled step and a fresh state to give to it."""
    run, begun = compiled_once(tx, num_microbatches, objectives)
    return run, jax.tree.map(jnp.copy, begun)


def worked_out(begun: state.TrainState, batch: dict[str, np.ndarray]) -> tuple[dict, np.ndarray]:
    """Losses and gradient of the step on `batch` in NumPy; the draws alone come from JAX."""
    rng = jax.random.fold_in(jax.random.wrap_key_data(begun.rng), begun.step)
    prepared = objectives_lib.prepare(batch, OBJECTIVES, objectives_lib.named_key(rng, "mask"))
    # What the net keeps, read off by running it on a table of ones.
    ones = {"params": {"table": jnp.ones(V)}}
    dropout = objectives_lib.named_key(rng, "dropout")
    kept, _ = Table().apply(ones, prepared, train=True, rngs={"dropout": dropout})
    kept, table = np.asarray(kept), np.asarray(begun.params["table"])
    sums, gradient, weight = {}, np.zeros(V), batch["lengths"].sum()
    for objective in OBJECTIVES:
        targets, total = np.asarray(prepared[f"{objective.name}_targets"]), 0.0
        for i in range(B):
            for t in range(batch["lengths"][i]):
                token = batch["tokens"][i, t]
                error = table[token] * kept[i, t] - targets[i]
                total += error**2
                gradient[token] += 2 * error * kept[i, t] / weight
        sums[objective.name] = total
    return sums, gradient


@pytest.mark.parametrize("num_microbatches", [1, 2, 4, 8])
def test_loss_and_gradient_are_those_worked_out(num_microbatches: int) -> None:
    run, begun = compiled(SGD, num_microbatches)
    sums, gradient = worked_out(begun, batch_of(1))
    before = np.asarray(begun.params["table"]).copy()
    after, metrics = run(begun, batch_of(1), jnp.float32(0.5))
    for name, total in sums.items():
        np.testing.assert_allclose(metrics[f"{name}_loss"], (total, 10.0), rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], (sum(sums.values()) / 10.0, 1.0), rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"][0], np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_array_equal(metrics["finite"], (1, 1))
    np.testing.assert_allclose(after.params["table"], before - 0.5 * gradient, atol=1e-6)
    assert int(after.step) == 1


def test_each_step_draws_anew_and_the_draw_belongs_to_the_step() -> None:
    run, begun = compiled(SGD)
    copy = lambda s: jax.tree.map(jnp.copy, s)  # noqa: E731
    _, first = run(copy(begun), batch_of(1), jnp.float32(0))
    after, again = run(copy(begun), batch_of(1), jnp.float32(0))
    _, second = run(after, batch_of(1), jnp.float32(0))
    assert first["loss"] == again["loss"]
    assert first["loss"][0] != second["loss"][0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_step_that_is_not_finite_changes_nothing_and_says_so(bad: float) -> None:
    """At 1e30 the loss overflows to infinity though every number before it is finite."""
    run, begun = compiled(ADAM)
    begun = begun.replace(params={"table": begun.params["table"].at[:].set(bad)})
    before = jax.device_get((begun.params, begun.opt_state))
    after, metrics = run(begun, batch_of(1), jnp.float32(0.5))
    np.testing.assert_array_equal(metrics["finite"], (0, 1))
    assert not np.isfinite(metrics["loss"][0])
    jax.tree.map(np.testing.assert_array_equal, (after.params, after.opt_state), before)


def test_a_finite_loss_with_a_gradient_that_is_not_counts_as_not_finite() -> None:
    run, begun = compiled(SGD, objectives=(Root("near"),))
    before = np.asarray(begun.params["table"]).copy()
    after, metrics = run(begun, batch_of(1), jnp.float32(0.5))
    assert metrics["loss"][0] == 0 and np.isnan(metrics["grad_norm"][0])
    np.testing.assert_array_equal(metrics["finite"], (0, 1))
    np.testing.assert_array_equal(after.params["table"], before)


def test_evaluation_gives_sums_weights_and_no_dropout() -> None:
    begun, placed = fresh(SGD)
    mesh, key = tiny.one_device(), jax.random.key(3)
    made = step.make_eval_step(Table(), OBJECTIVES)
    run = step.compile_eval(made, mesh, placed.params, begun.params, batch_of(1), key)
    metrics = run(begun.params, batch_of(1), key)
    batch, table = batch_of(1), np.asarray(begun.params["table"])
    prepared = objectives_lib.prepare(batch, OBJECTIVES, objectives_lib.named_key(key, "mask"))
    for name in ("near", "far"):
        total = sum(
            (table[batch["tokens"][i, t]] - prepared[f"{name}_targets"][i]) ** 2
            for i in range(B)
            for t in range(batch["lengths"][i])
        )
        np.testing.assert_allclose(metrics[f"{name}_loss"], (total, 10.0), rtol=1e-5)
        assert f"{name}_accuracy" in metrics
    assert metrics["num_bytes"][0] == 50 and metrics["num_text_tokens"][0] == 20
    assert jax.tree.map(float, run(begun.params, batch_of(1), key)) == jax.tree.map(float, metrics)


def test_the_seed_decides_parameters_and_draws_apart() -> None:
    mesh = tiny.one_device()
    made = [
        state.create(Table(), OBJECTIVES, SGD, max_len=T, seed=seed, mesh=mesh)[0]
        for seed in (0, 0, 1)
    ]
    assert (made[0].params["table"] == made[1].params["table"]).all()
    assert (made[0].rng == made[1].rng).all()
    assert (made[0].params["table"] != made[2].params["table"]).all()
    assert (made[0].rng != made[2].rng).any()


@pytest.mark.parametrize(("samples", "num_draws"), [((False, True), 4), ((False, False), 1)])
def test_an_evaluation_draws_several_times_where_that_changes_something(
    samples: tuple[bool, bool], num_draws: int
) -> None:
    """Its keys are always the same ones, and differ from draw to draw."""
    seen: list[list[int]] = []

    def eval_step(params: Any, batch: Any, key: jax.Array) -> dict:
        assert params == "params" and len(batch["examples"]) == B
        seen.append(jax.random.key_data(key).tolist())
        return {"near_loss": (jnp.ones(()), jnp.ones(()))}

    objectives = [types.SimpleNamespace(samples=each) for each in samples]
    for _ in range(2):
        batches = [batch_of(1), batch_of(2)]
        found = step.evaluate(eval_step, "params", batches, objectives, tiny.one_device())
        assert len(found) == 2 * num_draws
    assert seen[: 2 * num_draws] == seen[2 * num_draws :]
    assert len({tuple(key) for key in seen}) == 2 * num_draws
