"""One training step and one evaluation step, pure functions of (state, batch), and blocks of them.

Losses are passed as (sum, weight) and divided once. With microbatches the weights of the whole
batch are computed first, so that the split does not change the loss. The compiler removes all
computations of that pass that the weights do not need.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.typing import ArrayPytree
from jax.sharding import Mesh, PartitionSpec

from scalelab import sharding
from scalelab.config.pretraining import NUM_DRAWS
from scalelab.objectives import (
    CARRIED,
    Batch,
    Pairs,
    Pass,
    Term,
    forward,
    init_variables,
    named_key,
    prepare,
)
from scalelab.state import Model, TrainState

Metrics = dict[str, tuple[jax.Array, jax.Array]]
Evaluate = Callable[[TrainState], list[Metrics]]

EVAL_SEED = 0


def _flatten(terms: dict[str, dict[str, tuple[jax.Array, jax.Array]]]) -> Metrics:
    """Flattens {"mlm": {"loss": x}} to {"mlm_loss": x}."""
    return {f"{name}_{key}": value for name, group in terms.items() for key, value in group.items()}


def _sum_parts(compute: Callable[[Batch], ArrayPytree], batch: Batch, count: int) -> ArrayPytree:
    """Sums the results of `compute` over `count` parts of a batch, one after another.

    Each part [B / count, ...] is spread over all devices.
    """

    def accumulate(total: ArrayPytree, part: Batch) -> tuple[ArrayPytree, None]:
        return jax.tree.map(jnp.add, total, compute(part)), None

    parts = {
        name: x.reshape(len(x) // count, count, *x.shape[1:]).swapaxes(0, 1)
        for name, x in batch.items()
    }
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
    """Builds train_step(state, batch, learning_rate, alive=True) -> (state, metrics).

    Args:
      net: unbound.
      terms: the summands of the loss.
      tx: the optimizer at learning rate 1.
      num_microbatches: number of parts of the batch over which gradients are accumulated; see
        `state.check_phases`.

    Returns:
      A pure function. `batch` has arrays [B, ...], `learning_rate` is float32 []. The metrics are
      (sum, weight) pairs of float32 scalars: "loss", "<objective>_loss", "grad_norm", "finite". If
      loss or gradient is not finite, "finite" is 0 and only the step number changes. If `alive` is
      False, nothing changes.
    """

    def train_step(
        state: TrainState, batch: Batch, learning_rate: jax.Array, alive: bool | jax.Array = True
    ) -> tuple[TrainState, Metrics]:
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
            if "mask_ids" in batch:  # static masks (config.mask_copies)
                drawn, key = batch | {"examples": batch["mask_ids"]}, root
            prepared = prepare(drawn, terms, named_key(key, "mask"))
            prepared["examples"] = batch["examples"]
            grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
            if num_microbatches == 1:
                (loss, (found, carried)), grads = grad_fn(state.params, prepared, {})
            else:  # weights are computed before gradients, so that parts add up to the whole batch
                weights = _sum_parts(
                    lambda part: {n: t["loss"][1] for n, t in run(state.params, part)[0].items()},
                    prepared,
                    num_microbatches,
                )
                (loss, (found, carried)), grads = _sum_parts(
                    lambda part: grad_fn(state.params, part, weights), prepared, num_microbatches
                )
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & alive
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = jax.tree.map(lambda p, u: p + learning_rate * u, state.params, updates)
        keep = functools.partial(jax.tree.map, lambda new, old: jnp.where(finite, new, old))
        state = state.replace(
            step=state.step + jnp.int32(alive),
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
      weights: name -> weight of the whole batch, if `found` is from a part of it.
    """
    means = [
        (term.weight, pairs["loss"][0], (weights or {}).get(term.name, pairs["loss"][1]))
        for term in terms
        for pairs in [found[term.name]]
    ]
    return sum(weight * total / jnp.maximum(count, 1) for weight, total, count in means)  # pyright: ignore[reportReturnType]


def make_eval_step(
    net: nn.Module, terms: Sequence[Term]
) -> Callable[..., tuple[Metrics, ArrayPytree]]:
    """Builds eval_step(params, batch, rng, carried, frozen) -> (metrics, carried).

    The metrics are (sum, weight) pairs: "<objective>_loss", "<objective>_accuracy", "num_bytes",
    "num_text_tokens". `rng` determines masks and samples.
    """

    def eval_step(
        params: ArrayPytree,
        batch: Batch,
        rng: jax.Array,
        carried: ArrayPytree = None,
        frozen: ArrayPytree = None,
    ) -> tuple[Metrics, ArrayPytree]:
        with nn.logical_axis_rules(sharding.activation_rules()):
            prepared = prepare(batch, terms, named_key(rng, "mask"))
            ctx = Pass(rng, accuracy=True, frozen=frozen or {})
            found, carried = forward(net, params, prepared, terms, ctx, carried)
        text = {
            name: (jnp.sum(batch[name]).astype(jnp.float32), jnp.ones((), jnp.float32))
            for name in ("num_bytes", "num_text_tokens")
        }
        return _flatten(found) | text, carried

    return eval_step


def compile_train(
    step: Callable[..., tuple[TrainState, Metrics]],
    mesh: Mesh,
    placed: TrainState,
    state: TrainState,
    batch: Batch,
) -> jax.stages.Compiled:
    """Compiles a single train step ahead of time, its state donated; runs use `compile_blocks`.

    Args:
      step: from make_train_step.
      mesh: the devices.
      placed: shardings of the state.
      state: the state, concrete or abstract.
      batch: a batch, concrete or abstract.

    Returns:
      run(state, batch, learning_rate), with XLA's own cost_analysis() and memory_analysis().
    """
    replicated = jax.NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(
        step,
        in_shardings=(placed, sharding.batch_sharding(mesh), replicated),
        out_shardings=(placed, replicated),
        donate_argnums=0,
    )
    with jax.set_mesh(mesh):
        return jitted.lower(state, batch, jnp.zeros((), jnp.float32)).compile()


# --- Blocks: many steps in one dispatch ----------------


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Up to `size` training steps, started at once.

    On a GPU the host starts the steps one by one, and no step waits for the host. A loop in the
    program would be slower there: it returns to the host for its condition. Elsewhere the program
    has the loop, and the number of steps is its argument. So the boundaries of blocks cannot change
    a result.
    """

    compiled: jax.stages.Compiled
    read: Callable[..., Batch]  # (arrays, rows [K, B, ...]) -> batches [K, B, ...]
    empty: Callable[[], Metrics]  # allocates the metrics of `size` steps
    mesh: Mesh
    size: int  # the largest number of steps, K, at least 2
    batch_size: int | None  # B or None, as in `sharding.put`
    has_loop: bool  # whether the program has the loop

    def __call__(
        self,
        state: TrainState,
        arrays: ArrayPytree,
        rows: Sequence[Mapping[str, np.ndarray]],
        rates: Sequence[float],
        alive: jax.Array,
    ) -> tuple[TrainState, Metrics, jax.Array]:
        """Starts the steps of some rows; does not wait for them.

        Args:
          state: donated.
          arrays: arrays on the devices, from which `read` makes batches.
          rows: one entry per step, 1 to K.
          rates: learning rate of each step.
          alive: bool []; False takes no step, because an earlier step was not finite.

        Returns:
          The state, metrics with (sum, weight) arrays [K], and whether all steps were finite. No
          step is taken after a step that is not finite.
        """
        count = len(rows)
        padded = [*rows, *[rows[0]] * (self.size - count)]
        stacked = {name: np.stack([row[name] for row in padded]) for name in rows[0]}
        placed = sharding.rows_sharding(self.mesh, self.batch_size)
        batches = self.read(arrays, sharding.put(stacked, placed, self.batch_size))
        lr = np.zeros(self.size, np.float32)
        lr[:count] = rates
        numbers = {"lr": lr, "place": np.int32(0), "count": np.int32(count)}
        numbers = sharding.put(numbers, sharding.rows_sharding(self.mesh, None))
        lr, place, last = (numbers[name] for name in ("lr", "place", "count"))
        found = self.empty()
        for _ in range(1 if self.has_loop else count):
            state, found, place, alive = self.compiled(
                state, found, place, alive, batches, lr, last
            )
        return state, found, alive


class BlockParts(NamedTuple):
    """The arguments of `compile_blocks`."""

    step: Callable[..., tuple[TrainState, Metrics]]  # from make_train_step
    read: Callable[..., Batch]  # (arrays, row) -> batch; device code
    mesh: Mesh  # the devices
    placed: TrainState  # shardings of the state
    state: TrainState  # concrete or abstract
    arrays: ArrayPytree  # arrays on the devices, from which `read` makes batches
    row: Mapping[str, np.ndarray]  # the row of one step, as the host makes it
    # K; a single step gets the metrics buffer of two steps, because XLA would compile it
    # differently with a buffer of one, and round differently.
    size: int
    batch_size: int | None = None  # as in `sharding.put`
    has_loop: bool | None = None  # as in `Blocks`; None: by the kind of device


def compile_blocks(parts: BlockParts) -> Blocks:
    """Compiles a program of up to K training steps.

    A second program reads the batches of a block. So the storage of batches cannot change how the
    steps are compiled and rounded.
    """
    step, read, mesh, placed, state, arrays, row, size, batch_size, has_loop = parts
    size = max(size, 2)
    if has_loop is None:
        has_loop = mesh.devices.flat[0].platform != "gpu"
    replicated = jax.NamedSharding(mesh, PartitionSpec())

    # Traced once, for the shapes of the metrics; the loop reuses the cached trace.
    one = jax.jit(functools.partial(step, alive=True) if has_loop else step)

    def take_step(
        state: TrainState, found: Metrics, place: jax.Array, alive: jax.Array,
        batches: Batch, rates: jax.Array,
    ) -> tuple[TrainState, Metrics, jax.Array, jax.Array]:  # fmt: skip
        batch, rate = jax.tree.map(lambda x: x[place], (batches, rates))
        given = () if has_loop else (alive,)
        state, pairs = one(state, sharding.split_batch(batch, mesh), rate, *given)
        found = jax.tree.map(lambda all, new: all.at[place].set(new), found, pairs)
        return state, found, place + 1, pairs["finite"][0] > 0

    def run(
        state: TrainState, found: Metrics, place: jax.Array, alive: jax.Array,
        batches: Batch, rates: jax.Array, count: jax.Array,
    ) -> tuple[TrainState, Metrics, jax.Array, jax.Array]:  # fmt: skip
        if not has_loop:
            return take_step(state, found, place, alive, batches, rates)
        return jax.lax.while_loop(
            lambda carry: carry[3] & (carry[2] < count),
            lambda carry: take_step(*carry, batches, rates),
            (state, found, place, alive),
        )

    rows = {
        name: jax.ShapeDtypeStruct((size, batch_size or len(x), *x.shape[1:]), x.dtype)
        for name, x in row.items()
    }
    sent, split = sharding.rows_sharding(mesh, batch_size), sharding.rows_sharding(mesh, size)
    reader = jax.jit(
        jax.vmap(read, in_axes=(None, 0)), in_shardings=(replicated, sent), out_shardings=split
    )
    # On the mesh, as in the loop: JAX reuses a trace only for the same types.
    on_mesh = functools.partial(jax.ShapeDtypeStruct, sharding=replicated)
    number, flag = on_mesh((), jnp.float32), on_mesh((), bool)
    with jax.set_mesh(mesh):
        batches = jax.eval_shape(reader, arrays, rows)
        first = {name: on_mesh(x.shape[1:], x.dtype) for name, x in batches.items()}
        _, pairs = jax.eval_shape(one, state, first, number, *() if has_loop else (flag,))
        zeros = jax.jit(
            lambda: jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), pairs),
            out_shardings=replicated,
        )
        jitted = jax.jit(
            run,
            in_shardings=(placed, *(replicated,) * 3, split, replicated, replicated),
            out_shardings=(placed, replicated, replicated, replicated),
            donate_argnums=(0, 1),
        )
        rates, count = jnp.zeros(size, jnp.float32), jnp.zeros((), jnp.int32)
        lowered = jitted.lower(state, zeros(), count, flag, batches, rates, count)
        return Blocks(lowered.compile(), reader, zeros, mesh, size, batch_size, has_loop)


def compile_evaluation(
    model: Model,
    mesh: Mesh,
    placed: TrainState,
    state: TrainState,
    batches: Iterable[Mapping[str, np.ndarray]],
) -> Evaluate:
    """Compiles an evaluation: state -> metrics of each draw of each batch, on the host.

    If an objective samples, each batch has several draws. Their keys are the same for all runs and
    steps, so that losses are comparable. If the system's order is contiguous, each draw begins with
    a fresh carried state (memory) and passes it from batch to batch. For other systems, every batch
    reads the carried state of `state`.

    Args:
      model: the parts of the program.
      mesh: the devices, on which the batches stay.
      placed: shardings of the state.
      state: concrete or abstract; it is not changed.
      batches: batches of all processes, on the host.
    """
    made = list(batches)
    stacked = {name: np.stack([batch[name] for batch in made]) for name in made[0]}
    num_draws = NUM_DRAWS if any(term.objective.samples for term in model.terms) else 1
    total = num_draws * len(made)
    there = sharding.put(stacked, sharding.rows_sharding(mesh, total))
    eval_step = make_eval_step(model.net, model.terms)

    is_contiguous = model.system.ORDER == "contiguous"

    def run(
        params: ArrayPytree, batches: Batch, carried: ArrayPytree, frozen: ArrayPytree
    ) -> Metrics:
        key = named_key(jax.random.key(EVAL_SEED), "eval")
        if is_contiguous:
            size, length = made[0]["tokens"].shape
            sizes = {"max_len": length, "batch_size": size, "frozen": frozen}
            fresh = init_variables(key, model.net, model.terms, **sizes)[CARRIED]
            carried = jax.lax.with_sharding_constraint(nn.unbox(fresh), placed.carried)

        def evaluate_at(
            carried: list[ArrayPytree], place: jax.Array
        ) -> tuple[list[ArrayPytree], Metrics]:
            batch = jax.tree.map(lambda x: x[place // num_draws], batches)
            drawn, (first, *rest) = jax.random.fold_in(key, place), carried
            batch = sharding.split_batch(batch, mesh)
            found, after = eval_step(params, batch, drawn, first, frozen)
            return [*rest, after if is_contiguous else first], found

        return jax.lax.scan(evaluate_at, [carried] * num_draws, jnp.arange(total))[1]

    jitted = jax.jit(run, out_shardings=jax.NamedSharding(mesh, PartitionSpec()))
    given = placed.params, placed.carried, placed.frozen
    shapes = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        (state.params, state.carried, state.frozen), given,
    )  # fmt: skip
    with jax.set_mesh(mesh):
        compiled = jitted.lower(shapes[0], there, *shapes[1:]).compile()

    def evaluate(state: TrainState) -> list[Metrics]:
        found = jax.device_get(compiled(state.params, there, state.carried, state.frozen))
        return [jax.tree.map(lambda x, k=k: x[k], found) for k in range(total)]

    return evaluate
