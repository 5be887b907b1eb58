"""One training step and one evaluation step: pure functions of (state, batch).

Losses travel as (sum, weight) and are divided once. The weights are known before the gradient is
taken, because they depend on the prepared batch alone; so the split into microbatches cannot move
the loss.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from scalelab import sharding
from scalelab.objectives import Objective, apply_objectives, named_key, prepare
from scalelab.state import Model, TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, tuple[jax.Array, jax.Array]]
Evaluate = Callable[[Any, Iterable[dict[str, np.ndarray]]], list[Metrics]]


NUM_EVAL_DRAWS = 4
EVAL_SEED = 0


def _flatten(terms: dict[str, dict[str, tuple[jax.Array, jax.Array]]]) -> Metrics:
    """{"mlm": {"loss": x}} -> {"mlm_loss": x}."""
    return {f"{name}_{key}": value for name, group in terms.items() for key, value in group.items()}


def _split(batch: Batch, count: int) -> Batch:
    """Cuts [B, ...] into [count, B / count, ...], each microbatch spread over all devices."""
    return {
        k: v.reshape(v.shape[0] // count, count, *v.shape[1:]).swapaxes(0, 1)
        for k, v in batch.items()
    }


def _sum_over_parts(compute: Callable[[Batch], Any], batch: Batch, count: int) -> Any:
    """Sums what `compute` returns for each of `count` parts of a batch, one after another."""
    if count == 1:
        return compute(batch)

    def accumulate(total: Any, part: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, compute(part)), None

    parts = _split(batch, count)
    first = jax.tree.map(lambda v: v[0], parts)
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(compute, first))
    total, _ = jax.lax.scan(accumulate, zeros, parts)
    return total


def make_train_step(
    net: nn.Module,
    objectives: Sequence[Objective],
    tx: optax.GradientTransformation,
    num_microbatches: int = 1,
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]:
    """Builds train_step(state, batch, learning_rate) -> (state, metrics).

    Args:
      net: unbound.
      objectives: their mean losses are summed.
      tx: the optimizer at learning rate 1.
      num_microbatches: gradients are accumulated over so many parts of the batch.

    Returns:
      A pure function. Its metrics are (sum, weight) pairs: "loss", "<objective>_loss", "grad_norm",
      and "finite": 0 if loss or gradient were not; the parameters are then left as they were.
    """

    def loss_fn(
        params: Any, part: Batch, rng: jax.Array, weights: dict[str, jax.Array]
    ) -> tuple[jax.Array, Any]:
        terms = net.apply(
            {"params": params}, part, objectives, train=True, accuracy=False,
            method=apply_objectives,
            rngs={"dropout": rng},
        )  # fmt: skip
        loss = sum(terms[name]["loss"][0] / jnp.maximum(weights[name], 1) for name in terms)
        return loss, _flatten(terms)

    def train_step(
        state: TrainState, batch: Batch, learning_rate: jax.Array
    ) -> tuple[TrainState, Metrics]:
        rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        with nn.logical_axis_rules(sharding.activation_rules()):
            prepared = prepare(batch, objectives, named_key(rng, "mask"))
            weights = {o.name: o.weight(prepared) for o in objectives}
            dropout = named_key(rng, "dropout")
            grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, terms), grads = _sum_over_parts(
                lambda part: grad_fn(state.params, part, dropout, weights),
                prepared,
                num_microbatches,
            )
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = jax.tree.map(lambda p, u: p + learning_rate * u, state.params, updates)
        keep = functools.partial(jax.tree.map, lambda new, old: jnp.where(finite, new, old))
        state = state.replace(
            step=state.step + 1,
            params=keep(params, state.params),
            opt_state=keep(opt_state, state.opt_state),
        )
        weight = jnp.ones((), jnp.float32)
        return state, terms | {
            "loss": (loss, weight),
            "grad_norm": (grad_norm, weight),
            "finite": (finite * weight, weight),
        }

    return train_step


def make_eval_step(
    net: nn.Module, objectives: Sequence[Objective]
) -> Callable[[Any, Batch, jax.Array], Metrics]:
    """Builds eval_step(params, batch, rng) -> metrics.

    The metrics are (sum, weight) pairs: "<objective>_loss", "<objective>_accuracy", "num_bytes",
    "num_text_tokens". `rng` decides the masks; see `evaluate`.
    """

    def eval_step(params: Any, batch: Batch, rng: jax.Array) -> Metrics:
        with nn.logical_axis_rules(sharding.activation_rules()):
            prepared = prepare(batch, objectives, named_key(rng, "mask"))
            terms = net.apply(
                {"params": params},
                prepared,
                objectives,
                train=False,
                accuracy=True,
                method=apply_objectives,
            )
        text = {
            name: (jnp.sum(batch[name]).astype(jnp.float32), jnp.ones((), jnp.float32))
            for name in ("num_bytes", "num_text_tokens")
        }
        return _flatten(terms) | text

    return eval_step


def evaluate(
    eval_step: Callable[..., Metrics],
    params: Any,
    batches: Iterable[dict[str, np.ndarray]],
    objectives: Iterable[Objective],
    mesh: Mesh,
) -> list[Metrics]:
    """Evaluates parameters; several draws of each batch where an objective samples.

    The keys of the draws are the same for all runs and steps, so that losses compare.

    Args:
      eval_step: compiled, from compile_eval.
      params: of the net.
      batches: global ones, on the host.
      objectives: those of the step.
      mesh: the devices.

    Returns:
      The metrics of each draw of each batch, on the host.
    """
    key = named_key(jax.random.key(EVAL_SEED), "eval")
    num_draws = NUM_EVAL_DRAWS if any(o.samples for o in objectives) else 1
    found = []
    for k, batch in enumerate(batches):
        size = len(batch["examples"])
        rows = sharding.host_rows(mesh, size)
        put = sharding.put_batch({name: v[rows] for name, v in batch.items()}, mesh, size)
        for draw in range(num_draws):
            found.append(eval_step(params, put, jax.random.fold_in(key, k * num_draws + draw)))
    return jax.device_get(found)


def _replicated(mesh: Mesh) -> jax.NamedSharding:
    return jax.NamedSharding(mesh, PartitionSpec())


def compile_train(
    step: Callable[..., Any],
    mesh: Mesh,
    placed: TrainState,
    state: TrainState,
    batch: Batch,
    num_runs: int = 1,
) -> Any:
    """Compiles a train step ahead of time, its state donated.

    Args:
      step: from make_train_step; for several runs, from vmapped.train_step.
      mesh: the devices.
      placed: shardings of the state.
      state: the state, concrete or abstract.
      batch: a batch, concrete or abstract.
      num_runs: K, see `runs.vmapped`; state, batch and learning rate are then stacked.

    Returns:
      run(state, batch, learning_rate), with XLA's own cost_analysis() and memory_analysis().
    """
    replicated = _replicated(mesh)
    jitted = jax.jit(
        step,
        in_shardings=(placed, sharding.batch_sharding(mesh, num_runs), replicated),
        out_shardings=(placed, replicated),
        donate_argnums=0,
    )
    with jax.set_mesh(mesh):
        rate = jnp.zeros((num_runs,) if num_runs > 1 else (), jnp.float32)
        return jitted.lower(state, batch, rate).compile()


def compile_eval(
    step: Callable[..., Any], mesh: Mesh, placed: Any, params: Any, batch: Batch, rng: jax.Array
) -> Any:
    """Compiles an eval step ahead of time: run(params, batch, rng); see compile_train."""
    replicated = _replicated(mesh)
    jitted = jax.jit(
        step,
        in_shardings=(placed, sharding.batch_sharding(mesh), replicated),
        out_shardings=replicated,
    )
    with jax.set_mesh(mesh):
        return jitted.lower(params, batch, rng).compile()


def compile_evaluation(
    model: Model, mesh: Mesh, placed: Any, params: Any, batch: Batch
) -> Evaluate:
    """Compiles an evaluation of one run: (params, global host batches) -> as of `evaluate`.

    Args:
      model: the parts of the program.
      mesh: the devices.
      placed: shardings of the parameters.
      params: the parameters, concrete or abstract.
      batch: a batch, concrete or abstract.
    """
    step = make_eval_step(model.net, model.objectives)
    eval_step = compile_eval(step, mesh, placed, params, batch, jax.random.key(0))
    return functools.partial(evaluate, eval_step, objectives=model.objectives, mesh=mesh)
