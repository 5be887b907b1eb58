"""The step on a model small enough to work out by hand: one table, squared errors."""

import dataclasses
import functools
import pathlib
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
from scalelab.data.store import Layout
from scalelab.objectives import Pass, Term
from scalelab.training.checkpoint import Checkpoints

V, T, B = 5, 3, 8
TRACED: list[bool] = []


class Table(nn.Module):
    """One number for each token; notes each time that it is traced."""

    @nn.compact
    def __call__(self, batch: Any, *, train: bool, step: Any = None) -> tuple[jax.Array, None]:
        TRACED.append(train)
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
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = None

    def prepare(self, batch: dict[str, jax.Array], rng: jax.Array) -> dict[str, jax.Array]:
        draw = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(rng, i)))
        return batch | {f"{self.name}_targets": draw(batch["examples"])}

    def losses(self, model: Any, batch: Any, ctx: Pass) -> dict:
        valid = jnp.arange(T) < batch["lengths"][:, None]
        targets = batch[f"{self.name}_targets"][:, None]
        errors = jnp.square(ctx.hidden(model, batch) - targets) * valid
        terms = {"loss": (jnp.sum(errors), jnp.sum(valid).astype(jnp.float32))}
        return terms | ({"accuracy": terms["loss"]} if ctx.accuracy else {})


TABLE, TERMS = Table(), (Term(Squares("near")), Term(Squares("far"), 3.0))


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

    def losses(self, model: Any, batch: Any, ctx: Pass) -> dict:
        total, weight = super().losses(model, batch, ctx)["loss"]
        return {"loss": (jnp.sqrt(0 * total), weight)}


SGD, ADAM = optax.scale(-1.0), optax.adam(1.0)
copy = functools.partial(jax.tree.map, jnp.copy)
equal = functools.partial(jax.tree.map, np.testing.assert_array_equal)


@functools.cache
def created(tx: Any, terms: Any, net: Any) -> tuple[state.TrainState, Any]:
    model = tiny.model(net, terms, tx)
    return state.create(model, max_len=T, seed=0, mesh=tiny.one_device())


def fresh(tx: Any, terms: Any = TERMS, net: Any = TABLE) -> tuple[state.TrainState, Any]:
    begun, placed = created(tx, tuple(terms), net)
    return copy(begun), placed


@functools.cache
def compiled_once(tx: Any, num_microbatches: int, terms: Any, net: Any) -> tuple[Any, Any]:
    begun, placed = fresh(tx, terms, net)
    made = step.make_train_step(net, terms, tx, num_microbatches)
    return step.compile_train(made, tiny.one_device(), placed, begun, batch_of(0)), begun


def compiled(tx: Any, num_microbatches: int = 1, terms: Any = TERMS, net: Any = TABLE) -> tuple:
    """The compiled step and a fresh state to give to it."""
    run, begun = compiled_once(tx, num_microbatches, terms, net)
    return run, copy(begun)


def evaluation(tx: Any, terms: Any = TERMS, net: Any = TABLE, num_batches: int = 1) -> Any:
    """The compiled evaluation: state -> metrics of each draw of batch_of(1), batch_of(2), ..."""
    begun, placed = fresh(tx, terms, net)
    system = types.SimpleNamespace(ORDER="shuffled")
    model = types.SimpleNamespace(system=system, net=net, terms=terms)
    batches = [batch_of(k + 1) for k in range(num_batches)]
    return step.compile_evaluation(model, tiny.one_device(), placed, begun, batches)


def blocks(size: int, has_loop: bool | None = None) -> tuple[Any, state.TrainState, Layout]:
    """Compiled blocks of up to `size` steps, a fresh state, and how rows are packed."""
    begun, placed = fresh(ADAM)
    made, layout = step.make_train_step(TABLE, TERMS, ADAM), Layout(batch_of(0), B)
    row = {"packed": layout.pack(batch_of(0))}
    given = tiny.one_device(), placed, begun, {}, row, size, B
    parts = step.BlockParts(made, layout.batch, *given, has_loop)
    return step.compile_blocks(parts), begun, layout


def worked_out(begun: state.TrainState, batch: dict[str, np.ndarray]) -> tuple[dict, np.ndarray]:
    """Losses and gradient of the step on `batch` in NumPy; the draws alone come from JAX."""
    rng = jax.random.fold_in(jax.random.wrap_key_data(begun.rng), begun.step)
    prepared = objectives_lib.prepare(batch, TERMS, objectives_lib.named_key(rng, "mask"))
    # What the model keeps, read off by running it on a table of ones.
    ones = {"params": {"table": jnp.ones(V)}}
    dropout = objectives_lib.named_key(rng, "dropout")
    kept, _ = Table().apply(ones, prepared, train=True, rngs={"dropout": dropout})
    kept, table = np.asarray(kept), np.asarray(begun.params["table"])
    sums, gradient, weight = {}, np.zeros(V), batch["lengths"].sum()
    real = np.arange(T) < batch["lengths"][:, None]
    for term in TERMS:
        targets = np.asarray(prepared[f"{term.name}_targets"])[:, None]
        errors = (table[batch["tokens"]] * kept - targets) * real
        sums[term.name] = np.square(errors).sum()
        np.add.at(gradient, batch["tokens"], term.weight * 2 * errors * kept / weight)
    return sums, gradient


@pytest.mark.parametrize("num_microbatches", [1, 2, 4, 8])
def test_loss_and_gradient_are_those_worked_out(num_microbatches: int) -> None:
    run, begun = compiled(SGD, num_microbatches)
    sums, gradient = worked_out(begun, batch_of(1))
    before = np.asarray(begun.params["table"]).copy()
    after, metrics = run(begun, batch_of(1), jnp.float32(0.5))
    for name, total in sums.items():
        np.testing.assert_allclose(metrics[f"{name}_loss"], (total, 10.0), rtol=1e-5)
    loss = (sums["near"] + 3 * sums["far"]) / 10.0
    np.testing.assert_allclose(metrics["loss"], (loss, 1.0), rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"][0], np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_array_equal(metrics["finite"], (1, 1))
    np.testing.assert_allclose(after.params["table"], before - 0.5 * gradient, atol=1e-6)
    assert int(after.step) == 1


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
    run, begun = compiled(SGD, terms=(Term(Root("near")),))
    before = np.asarray(begun.params["table"]).copy()
    after, metrics = run(begun, batch_of(1), jnp.float32(0.5))
    assert metrics["loss"][0] == 0 and np.isnan(metrics["grad_norm"][0])
    np.testing.assert_array_equal(metrics["finite"], (0, 1))
    np.testing.assert_array_equal(after.params["table"], before)


@pytest.mark.parametrize("has_loop", [True, False])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_blocks_are_single_steps_bit_for_bit(size: int, has_loop: bool) -> None:
    """Five steps in blocks that are full or not."""
    run, begun = compiled(ADAM)
    many, start, layout = blocks(size, has_loop)
    alive, place = np.True_, 0
    while place < 5:
        count = min(size, 5 - place)
        rows = [{"packed": layout.pack(batch_of(k))} for k in range(place, place + count)]
        rates = [0.1 / (k + 1) for k in range(place, place + count)]
        start, found, alive = many(start, {}, rows, rates, alive)
        for k in range(count):
            rate = np.float32(0.1 / (place + k + 1))
            begun, expected = run(begun, batch_of(place + k), rate)
            equal(jax.tree.map(lambda x, k=k: x[k], found), expected)
        place += count
    assert alive
    equal(start, begun)


@pytest.mark.parametrize("has_loop", [True, False])
def test_a_block_ends_at_a_step_that_is_not_finite_and_so_do_later_ones(has_loop: bool) -> None:
    many, start, layout = blocks(8, has_loop)
    good = {"packed": layout.pack(batch_of(0))}
    start, _, alive = many(start, {}, [good], [0.1], np.True_)
    before = jax.device_get(start)
    rates = [np.inf, 0.1, 0.1]  # the first leaves infinite parameters, the second has no loss
    start, found, alive = many(start, {}, [good] * 3, rates, alive)
    assert found["finite"][0][:3].tolist() == [1, 0, 0] and not alive
    assert int(start.step) == int(before.step) + 2
    stopped = jax.device_get(start)
    start, found, alive = many(start, {}, [good], [0.1], alive)
    assert not alive and not np.any(found["finite"][0])
    equal(start, stopped)


def test_evaluation_gives_sums_weights_and_no_dropout() -> None:
    run, (begun, _) = evaluation(SGD), fresh(SGD)
    (found,) = run(begun)
    key = jax.random.fold_in(objectives_lib.named_key(jax.random.key(step.EVAL_SEED), "eval"), 0)
    batch, table = batch_of(1), np.asarray(begun.params["table"])
    prepared = objectives_lib.prepare(batch, TERMS, objectives_lib.named_key(key, "mask"))
    real = np.arange(T) < batch["lengths"][:, None]
    for name in ("near", "far"):
        errors = table[batch["tokens"]] - np.asarray(prepared[f"{name}_targets"])[:, None]
        total = np.square(errors)[real].sum()
        np.testing.assert_allclose(found[f"{name}_loss"], (total, 10.0), rtol=1e-5)
        assert f"{name}_accuracy" in found
    assert found["num_bytes"][0] == 50 and found["num_text_tokens"][0] == 20
    assert jax.tree.map(float, run(begun)) == [jax.tree.map(float, found)]


class Nosy(Squares):
    """Returns, beside its loss, what the pass tells it."""

    def losses(self, model: Any, batch: Any, ctx: Pass) -> dict:
        assert ctx.hidden(model, batch) is ctx.hidden(model, batch)
        draw = jax.random.uniform(ctx.key(f"sample {self.name}"))
        facts = {"draw": draw, "step": -1 if ctx.step is None else ctx.step, "train": ctx.train}
        pairs = {name: (jnp.float32(value), jnp.ones(())) for name, value in facts.items()}
        return super().losses(model, batch, ctx) | pairs


@pytest.mark.parametrize(("samples", "num_draws"), [((False, True), 4), ((False, False), 1)])
def test_an_evaluation_draws_several_times_where_that_changes_something(samples, num_draws) -> None:
    """Its keys are always the same ones, and differ from draw to draw."""
    terms = [Term(Nosy(name)) for name in ("near", "far")]
    for term, each in zip(terms, samples, strict=True):
        object.__setattr__(term.objective, "samples", each)
    evaluate, begun = evaluation(SGD, tuple(terms), num_batches=2), fresh(SGD)[0]
    key = objectives_lib.named_key(jax.random.key(step.EVAL_SEED), "eval")
    keys = [jax.random.fold_in(key, k) for k in range(2 * num_draws)]
    draws = [jax.random.uniform(objectives_lib.named_key(k, "sample near")) for k in keys]
    for _ in range(2):
        found = evaluate(begun)
        assert [pairs["near_draw"][0] for pairs in found] == draws
    assert len({*map(float, draws)}) == 2 * num_draws


def test_a_pass_has_keys_by_name_and_step_and_one_forward_for_all_objectives() -> None:
    terms = Term(Nosy("near")), Term(Nosy("far"))
    run, begun = compiled(SGD, terms=terms)
    TRACED.clear()
    jax.eval_shape(step.make_train_step(TABLE, terms, SGD), begun, batch_of(1), 0.0)
    assert TRACED == [True]
    after, first = run(begun, batch_of(1), jnp.float32(0))
    last, second = run(after, batch_of(1), jnp.float32(0))
    evaluated = evaluation(SGD, terms)
    (third,), (again,) = (evaluated(now) for now in (fresh(SGD, terms)[0], last))
    for found, number, train in ((first, 0, 1), (second, 1, 1), (third, -1, 0), (again, -1, 0)):
        for name in ("near", "far"):
            assert (found[f"{name}_step"][0], found[f"{name}_train"][0]) == (number, train)
    names = ("near_draw", "far_draw")
    draws = {float(found[name][0]) for found in (first, second, third) for name in names}
    assert len(draws) == 6 and again["near_draw"][0] == third["near_draw"][0]


def test_a_state_the_step_of_a_block_and_an_evaluation_are_traced_once() -> None:
    created.cache_clear()
    TRACED.clear()
    fresh(ADAM)
    assert TRACED == [False]
    TRACED.clear()
    blocks(3)
    evaluation(ADAM)
    assert TRACED == [True, False]


class Memory(Table):
    """Adds a tenth of the tokens that it has seen before to its states."""

    @nn.compact
    def __call__(self, batch: Any, **kwargs: Any) -> tuple[jax.Array, None]:
        hidden, _ = super().__call__(batch, **kwargs)
        seen = self.variable("carried", "seen", lambda: jnp.zeros(()))
        hidden = hidden + seen.value / 10
        if not self.is_initializing():
            seen.value += jnp.sum(batch["lengths"])
        return hidden, None


def test_what_a_net_carries_is_changed_by_steps_and_saved(tmp_path: pathlib.Path) -> None:
    run, begun = compiled(ADAM, net=Memory())
    assert begun.carried == {"seen": 0}
    after, _ = run(begun, batch_of(1), jnp.float32(0.5))
    assert after.carried == {"seen": 10}
    evaluated = evaluation(ADAM, net=Memory())
    empty = after.replace(carried={"seen": jnp.zeros(())})
    losses = [evaluated(now)[0]["near_loss"] for now in (after, empty)]
    assert losses[0] != losses[1] and after.carried == {"seen": 10}
    kept = Checkpoints(tmp_path / "checkpoints", 1)
    kept.save(after, {})
    restored, _ = kept.restore(fresh(ADAM, net=Memory())[0])
    kept.close()
    ends = [run(now, batch_of(2), jnp.float32(0.5)) for now in (copy(after), restored)]
    assert ends[0][0].carried == {"seen": 20}
    jax.tree.map(np.testing.assert_array_equal, *ends)
    bad = after.replace(params={"table": after.params["table"] * np.nan})
    assert run(bad, batch_of(1), jnp.float32(0.5))[0].carried == {"seen": 10}


class Average(Squares):
    """Keeps a running mean of its own loss beside the parameters."""

    def losses(self, model: Any, batch: Any, ctx: Pass) -> dict:
        pairs = super().losses(model, batch, ctx)
        before = jnp.zeros(())
        if model.has_variable("carried", "average"):
            before = model.get_variable("carried", "average")
        total, weight = pairs["loss"]
        now = 0.5 * before + 0.5 * jax.lax.stop_gradient(total / weight) if ctx.train else before
        model.put_variable("carried", "average", now)
        return pairs | {"before": (before, jnp.ones(()))}


def test_an_objective_may_carry_state_of_its_own() -> None:
    terms = (Term(Average("near")),)
    run, begun = compiled(SGD, terms=terms)
    assert begun.carried == {"average": 0}
    after, first = run(begun, batch_of(1), jnp.float32(0.0))
    mean = first["near_loss"][0] / first["near_loss"][1]
    np.testing.assert_allclose(after.carried["average"], 0.5 * mean, rtol=1e-6)
    (found,) = evaluation(SGD, terms)(after)
    assert found["near_before"][0] == after.carried["average"] > 0
    last, second = run(after, batch_of(2), jnp.float32(0.0))
    assert second["near_before"][0] == found["near_before"][0] != last.carried["average"]
