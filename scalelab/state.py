"""The training state as one value, made sharded from abstract shapes."""

import dataclasses
import math
import warnings
from collections.abc import Collection, Mapping
from typing import Protocol

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.typing import ArrayPytree
from jax.sharding import Mesh

from scalelab import objectives, sharding, systems
from scalelab.config.fields import frozen_names
from scalelab.config.pretraining import Config, LongPhase, ShortPhase
from scalelab.objectives import CARRIED, Setting, Term, init_variables, named_key
from scalelab.optim import adamw
from scalelab.systems import System

BYTES_PER_PARAMETER = 16  # float32: weight, gradient and AdamW's two moments


@flax.struct.dataclass
class TrainState:
    """The state of training: everything that a step reads and changes, except its batch."""

    step: jax.Array  # int32 [], steps taken so far
    params: ArrayPytree  # the model's parameters, float32; layers stacked on axis 0
    opt_state: optax.OptState  # the optimizer's state
    rng: jax.Array  # key data of the run's root key, uint32; each step folds its number in
    # Memories, queues, averages: changed by steps, not by the optimizer; {} for most models.
    carried: ArrayPytree = dataclasses.field(default_factory=dict)
    # Name -> parameters of another run's model, which no step changes; {} for most runs.
    frozen: ArrayPytree = dataclasses.field(default_factory=dict)


class Trained(Protocol):
    """A model of another run; `training.pretrained.Pretrained` is one."""

    @property
    def net(self) -> nn.Module: ...  # noqa: D102
    @property
    def params(self) -> ArrayPytree: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class Model:
    """The parts of a training program."""

    system: System  # the module of the family
    net: nn.Module  # unbound
    terms: tuple[Term, ...]  # the summands of the loss
    tx: optax.GradientTransformation  # the optimizer, at learning rate 1
    frozen: Mapping[str, ArrayPytree]  # name -> parameters of another run's model

    @property
    def token_losses(self) -> dict[str, bool]:
        """{name of a loss that is a mean over tokens: whether it covers the text}."""
        made = [term.objective for term in self.terms if term.objective.predicts]
        return {f"{own.name}_loss": getattr(own, "covers_text", False) for own in made}

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weight of each loss in the sum, by names such as "mlm_loss"."""
        return {f"{term.name}_loss": term.weight for term in self.terms}


def make_model(
    config: Config,
    special_ids: Mapping[str, int] | None = None,
    frozen: Mapping[str, Trained] | None = None,
    joins: bytes | None = None,
) -> Model:
    """Makes the parts of a training program from a config.

    Args:
      config: the run's config.
      special_ids: role -> token id; None: as in a tokenizer trained for the system.
      frozen: name -> model of another run, from `training.pretrained.load_frozen`.
      joins: as in `objectives.Setting`.

    Raises:
      ValueError: model, format and objectives do not go together, or one of them is unknown.
    """
    system, size = systems.load(config.system), config.tokenizer.vocab_size
    frozen = frozen or {}
    objectives.check(
        list(config.objective_weights),
        heads=system.HEADS,
        sees=system.SEES,
        format=config.data.format,
    )
    check_frozen(config, frozen)
    nets = {name: trained.net for name, trained in frozen.items()}
    return Model(
        system,
        systems.make_net(
            system,
            config.model,
            config.system_options,
            vocab_size=size,
            remat=config.machine.remat,
            frozen=nets,
            ids=special_ids,
        ),
        make_terms(config, special_ids, nets, joins),
        adamw.adamw(**config.optim.without_rate),
        {name: trained.params for name, trained in frozen.items()},
    )


def make_terms(
    config: Config,
    special_ids: Mapping[str, int] | None,
    nets: Mapping[str, nn.Module] | None = None,
    joins: bytes | None = None,
) -> tuple[Term, ...]:
    """Makes the terms of a config's loss; the arguments are as in `make_model`.

    Args:
      config: config of the pre-training.
      special_ids: role -> id; None: those of a new tokenizer.
      nets: models of other runs, by name; None: none.
      joins: `data.tokenizers.Tokenizer.joins`; None: there is no tokenizer yet.
    """
    size, form = config.tokenizer.vocab_size, config.data.format
    ids = systems.special_ids(systems.load(config.system), special_ids)
    options = config.format_options
    setting = Setting(size, ids, config.mask_rate, nets or {}, form, joins, options)
    return objectives.make(config.objective_weights, setting, config.objective_options)


def check_frozen(config: Config, given: Collection[str]) -> None:
    """Raises ValueError if a config's models of other runs are not the ones of `FROZEN`."""
    users = {f"system {config.system!r}": systems.load(config.system)}
    users |= {f"objective {name!r}": objectives.load(name) for name in config.objective_weights}
    known = {name: user for user, module in users.items() for name in frozen_names(module)}
    given_names = ", ".join(given) or "none"
    places = ",".join(f"{name}=RUN" for name in known)
    hint = f"set --config.machine.frozen={places}" if known else "leave it out"
    for name, user in known.items():
        if name not in given:
            raise ValueError(
                f"{user} needs a trained model named {name!r}, but config.machine.frozen names"
                f" {given_names}: {hint}"
            )
    for name in given:
        if name not in known:
            raise ValueError(
                f"config.machine.frozen names {name!r}, which neither {' nor '.join(users)} uses:"
                f" {hint}"
            )


def check_memory(model: Model, max_len: int, mesh: Mesh, free: int | None) -> None:
    """Raises ValueError if the training state cannot fit, before anything is allocated.

    Args:
      model: the parts of the program.
      max_len: length of an example.
      mesh: the devices.
      free: bytes of host memory that this process may use; None if not known.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # JAX warns of sizes beyond 32 bits
            variables = objectives.abstract_variables(
                model.net, model.terms, max_len=max_len, frozen=model.frozen
            )
    except (TypeError, OverflowError) as error:
        raise ValueError(f"the sizes of the model are out of range: {error}") from None
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(variables["params"]))
    stats = mesh.local_devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        free = stats["bytes_limit"] * mesh.size
    elif free is not None:
        free *= jax.process_count()
    if free is not None and BYTES_PER_PARAMETER * count > free:
        raise ValueError(
            f"training {count:,} parameters needs at least {BYTES_PER_PARAMETER} bytes for each"
            f" (weight, gradient and two moments): {BYTES_PER_PARAMETER * count / 1e9:,.1f} GB;"
            f" {free / 1e9:,.1f} GB are free: choose a smaller shape or tokenizer.vocab_size"
        )


def check_phases(model: Model, config: Config) -> None:
    """Refuses phases and microbatches that objectives and carried state do not allow.

    A batch cannot be split if an objective crosses examples, or if the model carries arrays.

    Raises:
      ValueError: a batch cannot be split, or the carried state's shape differs between the phases.
    """
    first, *later = config.phases
    num = config.machine.num_microbatches
    carried = _carried_shapes(model, first) if later or num > 1 else {}
    why = [
        f"the objective {term.name!r} compares all examples of a batch with each other, so the"
        " batch cannot be split"
        for term in model.terms
        if term.crosses_examples
    ]
    why += [
        f"the model carries state from step to step ({name}), which parts of a batch cannot share"
        for name in carried
    ]
    if num > 1 and why:
        raise ValueError(f"config.machine.num_microbatches = {num}: {why[0]}; set it to 1")
    for phase in later if carried else ():
        for name, shape in _carried_shapes(model, phase).items():
            if shape != (before := carried[name]):
                raise ValueError(
                    f"{config.system} carries an array {name} from step to step, whose shape"
                    f" changes from {before} to {shape} between the phases (length x batch size"
                    f" {first.max_len} x {first.batch_size}, then {phase.max_len} x"
                    f" {phase.batch_size}): set --config.long.example_rate=0 for a single phase"
                )


def _carried_shapes(model: Model, phase: ShortPhase | LongPhase) -> dict[str, tuple[int, ...]]:
    sizes = {"max_len": phase.max_len, "batch_size": phase.batch_size, "frozen": model.frozen}
    carried = objectives.abstract_variables(model.net, model.terms, **sizes)[CARRIED]
    leaves = jax.tree_util.tree_leaves_with_path(carried)
    return {adamw.parameter_name(path): leaf.shape for path, leaf in leaves}


def fresh(key: jax.Array, model: Model, *, max_len: int, batch_size: int = 1) -> TrainState:
    """Initializes a state, with parameters boxed with the names of their axes.

    Args:
      key: random key for the parameters and all later draws.
      model: the parts of the program; only parameters that its terms use are made.
      max_len: length of the example to trace with, at most the model's positions.
      batch_size: B; the shape of carried state may depend on it.
    """
    sizes = {"max_len": max_len, "batch_size": batch_size, "frozen": model.frozen}
    variables = init_variables(key, model.net, model.terms, **sizes)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables["params"],
        opt_state=model.tx.init(variables["params"]),
        rng=jax.random.key_data(named_key(key, "train")),
        carried=variables[CARRIED],
        frozen=model.frozen,
    )


def create(
    model: Model, *, max_len: int, batch_size: int = 1, seed: int, mesh: Mesh
) -> tuple[TrainState, TrainState]:
    """Initializes a run's state on its devices; no device ever holds a whole sharded array.

    Args:
      model: the parts of the program.
      max_len: as in `fresh`.
      batch_size: as in `fresh`.
      seed: seed of the parameters.
      mesh: the devices.

    Returns:
      The state, and its shardings as a tree of the same structure.
    """
    frozen = dict(model.frozen)

    @jax.jit  # traced once, for the shapes; the call reuses the trace
    def init(key: jax.Array, frozen: ArrayPytree) -> TrainState:
        own = dataclasses.replace(model, frozen=frozen)
        return fresh(key, own, max_len=max_len, batch_size=batch_size)

    with jax.set_mesh(mesh):
        placed = sharding.shardings(jax.eval_shape(init, jax.random.key(0), frozen), mesh)
        made = jax.jit(lambda key, frozen: nn.unbox(init(key, frozen)), out_shardings=placed)
        return made(jax.random.key(seed), jax.device_put(frozen, placed.frozen)), placed
