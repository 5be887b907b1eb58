"""One training step and one evaluation step: pure functions of (state, batch).

Losses travel as (sum, weight) and are divided once. With microbatches the weights of the whole
batch are computed first, so that the split cannot move the loss; the compiler drops what weights do
not need.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.typing import ArrayPytree
from jax.sharding import Mesh, PartitionSpec

from scalelab import sharding
from scalelab.objectives import Batch, Pairs, Pass, Term, forward, named_key, prepare
from scalelab.state import Model, TrainState

Metrics = dict[str, tuple[jax.Array, jax.Array]]
Evaluate = Callable[[TrainState, Iterable[dict[str, np.ndarray]]], list[Metrics]]


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


def _sum_parts(compute: Callable[[Batch], ArrayPytree], batch: Batch, count: int) -> ArrayPytree:
    """Sums what `compute` returns for each of `count` parts of a batch, one after another."""
    if count == 1:
        return compute(batch)

    def accumulate(total: ArrayPytree, part: Batch) -> tuple[ArrayPytree, None]:
        return jax.tree.map(jnp.add, total, compute(part)), None

    parts = _split(batch, count)
    first = jax.tree.map(lambda v: v[0], parts)
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(compute, first))
    total, _ = jax.lax.scan(accumulate, zeros, parts)
    return total


def make_train_step(
    net: nn.Module,
    terms: Sequence[Term],
    tx: optax.GradientTransformation,
    num_microbatches: int = 1,
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]:
    """Builds train_step(state, batch, learning_rate) -> (state, metrics).

    Args:
      net: unbound.
      terms: the summands of the loss.
      tx: the optimizer at learning rate 1.
      num_microbatches: gradients are accumulated over so many parts of the batch.

    Returns:
      A pure function. Its metrics are (sum, weight) pairs: "loss", "<objective>_loss", "grad_norm",
      and "finite": 0 if loss or gradient were not; all but the step is then left as it was.
      It raises ValueError, when traced, for several microbatches of a state that carries something.
    """

    def train_step(
        state: TrainState, batch: Batch, learning_rate: jax.Array
    ) -> tuple[TrainState, Metrics]:
        if num_microbatches > 1 and (carried := jax.tree_util.tree_leaves_with_path(state.carried)):
            raise ValueError(
                f"config.machine.num_microbatches = {num_microbatches}: the net carries state from"
                f" step to step ({jax.tree_util.keystr(carried[0][0])}), which parts of a batch"
                " cannot share; set it to 1"
            )
        root = jax.random.wrap_key_data(state.rng)
        rng = jax.random.fold_in(root, state.step)

        def run(params: ArrayPytree, part: Batch) -> tuple[dict[str, Pairs], ArrayPytree]:
            ctx = Pass(rng, state.step, train=True, frozen=state.frozen)
            return forward(net, params, part, terms, ctx, state.carried)

        def loss_fn(params: ArrayPytree, part: Batch, weights: dict[str, jax.Array]) -> tuple:
            found, carried = run(params, part)
            loss = weighted_sum(terms, found, weights)
            return loss, (_flatten(found), carried)

        with nn.logical_axis_rules(sharding.activation_rules()):
            drawn, key = batch, rng
            if "mask_ids" in batch:  # static masks, see config.mask_copies
                drawn, key = batch | {"examples": batch["mask_ids"]}, root
            prepared = prepare(drawn, terms, named_key(key, "mask"))
            prepared["examples"] = batch["examples"]
            weights = {}
            if num_microbatches > 1:  # known before the gradient, so that parts add up to the whole
                weights = _sum_parts(
                    lambda part: {n: t["loss"][1] for n, t in run(state.params, part)[0].items()},
                    prepared,
                    num_microbatches,
                )
            grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, (found, carried)), grads = _sum_parts(
                lambda part: grad_fn(state.params, part, weights), prepared, num_microbatches
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
            carried=keep(carried, state.carried),
        )
        unit = jnp.ones((), jnp.float32)
        return state, found | {
            "loss": (loss, unit),
            "grad_norm": (grad_norm, unit),
            "finite": (finite * unit, unit),
        }

    return train_step


def weighted_sum(
    terms: Sequence[Term],
    found: dict[str, Pairs],
    weights: Mapping[str, jax.Array] | None = None,
) -> jax.Array:
    """Adds up the mean losses of the terms, each times its weight: float32 [].

    Args:
      terms: the summands.
      found: name -> {"loss": (sum, weight), ...}.
      weights: name -> weight of the whole batch, where `found` is of a part of it.
    """
    means = [
        (term.weight, pairs["loss"][0], (weights or {}).get(term.name, pairs["loss"][1]))
        for term in terms
        for pairs in [found[term.name]]
    ]
    return sum(weight * total / jnp.maximum(count, 1) for weight, total, count in means)  # pyright: ignore[reportReturnType]


def make_eval_step(net: nn.Module, terms: Sequence[Term]) -> Callable[..., Metrics]:
    """Builds eval_step(params, batch, rng, carried, frozen) -> metrics.

    The metrics are (sum, weight) pairs: "<objective>_loss", "<objective>_accuracy", "num_bytes",
    "num_text_tokens". `rng` decides masks and samples; see `evaluate`.
    """

    def eval_step(
        params: ArrayPytree,
        batch: Batch,
        rng: jax.Array,
        carried: ArrayPytree = None,
        frozen: ArrayPytree = None,
    ) -> Metrics:
        with nn.logical_axis_rules(sharding.activation_rules()):
            prepared = prepare(batch, terms, named_key(rng, "mask"))
            ctx = Pass(rng, accuracy=True, frozen=frozen or {})
            found, _ = forward(net, params, prepared, terms, ctx, carried)
        text = {
            name: (jnp.sum(batch[name]).astype(jnp.float32), jnp.ones((), jnp.float32))
            for name in ("num_bytes", "num_text_tokens")
        }
        return _flatten(found) | text

    return eval_step


def evaluate(
    eval_step: Callable[..., Metrics],
    state: TrainState,
    batches: Iterable[dict[str, np.ndarray]],
    terms: Iterable[Term],
    mesh: Mesh,
) -> list[Metrics]:
    """Evaluates a state; several draws of each batch where an objective samples.

    The keys of the draws are the same for all runs and steps, so that losses compare.

    Args:
      eval_step: compiled, from compile_eval.
      state: its parameters are evaluated; what it carries is read and not changed.
      batches: global ones, on the host.
      terms: those of the step.
      mesh: the devices.

    Returns:
      The metrics of each draw of each batch, on the host.
    """
    key = named_key(jax.random.key(EVAL_SEED), "eval")
    num_draws = NUM_EVAL_DRAWS if any(term.objective.samples for term in terms) else 1
    found = []
    for k, batch in enumerate(batches):
        size = len(batch["examples"])
        rows = sharding.host_rows(mesh, size)
        put = sharding.put_batch({name: v[rows] for name, v in batch.items()}, mesh, size)
        for draw in range(num_draws):
            rng = jax.random.fold_in(key, k * num_draws + draw)
            found.append(eval_step(state.params, put, rng, state.carried, state.frozen))
    return jax.device_get(found)


def compile_train(
    step: Callable[..., tuple[TrainState, Metrics]],
    mesh: Mesh,
    placed: TrainState,
    state: TrainState,
    batch: Batch,
    num_runs: int = 1,
) -> jax.stages.Compiled:
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
    replicated = jax.NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(
        step,
        in_shardings=(placed, sharding.batch_sharding(mesh, num_runs), replicated),
        out_shardings=(placed, replicated),
        donate_argnums=0,
    )
    with jax.set_mesh(mesh):
        rate = jnp.zeros((num_runs,) if num_runs > 1 else (), jnp.float32)
        return jitted.lower(state, batch, rate).compile()


def compile_evaluation(
    model: Model, mesh: Mesh, placed: TrainState, state: TrainState, batch: Batch
) -> Evaluate:
    """Compiles an evaluation of one run: (state, global host batches) -> as of `evaluate`.

    Args:
      model: the parts of the program.
      mesh: the devices.
      placed: shardings of the state.
      state: the state, concrete or abstract.
      batch: a training batch, concrete or abstract; no evaluation has its mask_ids.
    """
    batch = {name: values for name, values in batch.items() if name != "mask_ids"}
    replicated = jax.NamedSharding(mesh, PartitionSpec())
    rows = sharding.batch_sharding(mesh)
    jitted = jax.jit(
        make_eval_step(model.net, model.terms),
        in_shardings=(placed.params, rows, replicated, placed.carried, placed.frozen),
        out_shardings=replicated,
    )
    with jax.set_mesh(mesh):
        eval_step = jitted.lower(
            state.params, batch, jax.random.key(0), state.carried, state.frozen
        ).compile()
    return functools.partial(evaluate, eval_step, terms=model.terms, mesh=mesh)
