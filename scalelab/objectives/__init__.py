"""Objectives: losses that training minimizes. Each file has one; none knows a model's modules."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab import formats
from scalelab.config.fields import make_options
from scalelab.formats import Array
from scalelab.helpers.names import load_module, module_names, nearest

Batch = dict[str, jax.Array]
Pairs = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight)
# Flax collections besides "params": the state that a pass changes, and `Pass.frozen`.
CARRIED, FROZEN = "carried", "frozen"


@dataclasses.dataclass
class Pass:
    """The inputs of an objective in one forward pass, in addition to model and batch.

    Attributes:
      rng: random key of the training step, or of one draw of an evaluation.
      step: int32 [], the number of the training step; None in an evaluation.
      train: whether dropout is on.
      accuracy: whether to add accuracies, which cost an argmax over the vocabulary.
      frozen: name -> parameters of another run's model, which `Setting.frozen` has.
    """

    rng: jax.Array
    step: jax.Array | None = None
    train: bool = False
    accuracy: bool = False
    frozen: Mapping[str, ArrayPytree] = dataclasses.field(default_factory=dict)
    _computed: dict[tuple[str, int], tuple[Any, Batch]] = dataclasses.field(default_factory=dict)

    def key(self, name: str) -> jax.Array:
        """Returns a random key of that name, in training and evaluation."""
        return named_key(self.rng, name)

    def hidden(self, model: nn.Module, batch: Batch) -> jax.Array:
        """Returns the states [B, T, D], computed once for each batch.

        Args:
          model: bound.
          batch: prepared.
        """
        return self._states("__call__", model, batch)[0]

    def token_hidden(self, model: nn.Module, batch: Batch) -> jax.Array:
        """Returns the states [B, T, D] that score tokens; for most models the same as `hidden`.

        Args:
          model: bound.
          batch: prepared.
        """
        if hasattr(model, "token_states"):
            return self._states("token_states", model, batch)
        return self.hidden(model, batch)

    def extend(self, batch: Batch, **arrays: jax.Array) -> Batch:
        """Returns the batch with more arrays, the same object each time, to share its states.

        Args:
          batch: prepared.
          **arrays: name -> array [B, ...].
        """
        key = "extend", id(batch)
        if key not in self._computed:
            self._computed[key] = batch | arrays, batch
        return self._computed[key][0]

    def _states(self, method: str, model: nn.Module, batch: Batch) -> Any:
        key = method, id(batch)
        if key not in self._computed:
            made = getattr(model, method)(batch, train=self.train, step=self.step)
            self._computed[key] = made, batch  # kept, so that no other batch gets its id
        return self._computed[key][0]


class Baseline(NamedTuple):
    """The score of a trivial predictor; a verdict needs models that beat it by the margin."""

    metric: str  # a key of `Objective.losses`: "loss" or "accuracy"
    # None means the unigram entropy of `array` in the training examples. A function gets the
    # metrics of a validation ("batch_size", "unigram_nats", and all objectives' metrics, such as
    # "mlm_loss"). It returns None if a metric is missing.
    value: float | Callable[[Mapping[str, float]], float | None] | None
    margin: float
    array: str | None = None  # the batch array with the predicted tokens; None means the text


class Objective(Protocol):
    """The methods of an objective: a frozen dataclass with methods that run on the device.

    Attributes:
      name: the module's name.
      samples: whether it draws at random, so that an evaluation averages several draws.
      predicts: "next" or "masked" if the loss is a mean over tokens, else None.
      covers_text: whether all tokens of the text are predicted, or all with the same probability.
        Bits per byte exist only then, because the mean loss estimates the mean over all tokens.
        Optional; absent means no.
      beside: names of other objectives that must be in the same sum; may be absent.
      shifts_masks: whether it also trains the model on masked texts, in which each state sees the
        whole row and predicts the next token; may be absent.
      crosses_examples: whether the loss of an example depends on the other examples of its batch,
        such as with in-batch negatives. Several microbatches are then refused, and every batch of
        a validation is full. Optional; absent means no.
      schedule: terms of the sum -> the terms, trained at some steps only; may be absent.
    """

    name: ClassVar[str]
    samples: ClassVar[bool]
    predicts: ClassVar[str | None]

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns {"loss": (sum, weight), ...}: float32 sums over the batch and their weights.

        Weights must not depend on parameters; padding examples have none.

        Args:
          model: the bound model (`systems.System`).
          batch: prepared by every objective.
          ctx: keys, step and shared states of the pass.
        """
        ...


class Preparing(Objective, Protocol):
    """An objective that changes the batch before the model reads it."""

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Changes the batch that all objectives of a pass see, such as by masks.

        Random draws are keyed by example, so that splitting a batch does not change them.

        Args:
          batch: arrays [B, ...] of the format, with "examples" [B], the index of each example.
          rng: random key of the pass and the objective.

        Returns:
          The batch, with changed or more arrays.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Setting:
    """The inputs of `make`: facts of a run from which objectives are made.

    Attributes:
      vocab_size: V.
      special_ids: role (pad, mask, ...) -> token id. In a run it is a `SpecialIds`, which raises
        ValueError for a missing role.
      mask_rate: share of tokens to predict.
      frozen: name -> model of another run, unbound; its parameters are in `Pass.frozen`.
      format: name of the format that makes the batches; None: any format that has the arrays.
      format_options: config.format_options.
      joins: `data.tokenizers.Tokenizer.joins`; None: there is no tokenizer yet.
    """

    vocab_size: int
    special_ids: Mapping[str, int]
    mask_rate: float
    frozen: Mapping[str, nn.Module] = dataclasses.field(default_factory=dict)
    format: str | None = None
    joins: bytes | None = None
    format_options: Mapping[str, object] = dataclasses.field(default_factory=dict)


class ObjectiveModule(Protocol):
    """The exports of a module in `objectives/`; a frozen dataclass `Options` is optional.

    It may also export `FROZEN`: names of the models of other runs that it uses, such as
    ("teacher",).

    Attributes:
      NEEDS: names of the arrays of a batch that it needs in addition to `formats.COMMON`.
      READS: names of the arrays that it reads if the format makes them; may be absent.
      HEADS: heads that the model must have (`systems.System`).
      SEES: the tokens that a position of the model must see, "left" or "both"; None: either.
      BASELINE: the trivial baseline, or a function of the Options that returns it.
    """

    NEEDS: tuple[str, ...]
    HEADS: tuple[str, ...]
    SEES: str | None
    BASELINE: Baseline | Callable[[Any], Baseline]

    @staticmethod
    def make(setting: Setting, options: Any) -> Objective:
        """Makes the objective.

        Args:
          setting: facts of the run.
          options: the module's `Options`; None if it has none.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Term:
    """A summand of the loss: weight * the mean of the objective's loss."""

    objective: Objective
    weight: float = 1.0
    arrays: tuple[Array, ...] = ()  # batch arrays that it reads besides `formats.COMMON`

    @property
    def name(self) -> str:
        """The objective's name."""
        return self.objective.name

    @property
    def crosses_examples(self) -> bool:
        """True if the loss of an example depends on the other examples of its batch."""
        return getattr(self.objective, "crosses_examples", False)


def load(name: str) -> ObjectiveModule:
    """Imports the objective `name`.

    Raises:
      ValueError: there is no such objective; the message names the nearest.
    """
    return cast(ObjectiveModule, load_module("objectives", name))


def load_baselines() -> dict[str, Callable[[Mapping[str, object]], Baseline]]:
    """Returns {objective: function from config.objective_options to its trivial baseline}."""
    return {name: functools.partial(_baseline, name) for name in module_names("objectives")}


def _baseline(name: str, options: Mapping[str, object]) -> Baseline:
    """Returns the baseline of an objective for config.objective_options."""
    module = load(name)
    found = module.BASELINE
    return found(make_options(module, options)) if callable(found) else found


def predicted_arrays(names: Iterable[str], options: Mapping[str, object]) -> list[str]:
    """Returns the arrays that objectives predict in place of the text, by their baselines.

    Args:
      names: names of the objectives.
      options: config.objective_options.
    """
    found = (_baseline(name, options).array for name in names)
    return list(dict.fromkeys(array for array in found if array))


def make(
    weights: Mapping[str, float],
    setting: Setting,
    options: Mapping[str, object] = {},  # noqa: B006
) -> tuple[Term, ...]:
    """Makes the terms of the loss.

    Args:
      weights: name -> weight, such as config.objective_weights.
      setting: facts of the run.
      options: config.objective_options; each objective reads its own.

    Raises:
      ValueError: an objective needs another one in the sum, or reads a row of several texts as one.
    """
    found, given = [], dict[str, Array]()
    if setting.format is not None:
        made = formats.arrays_of(setting.format, setting.format_options)
        given = {array.name: array for array in made}
    for name, weight in weights.items():
        module = load(name)
        objective = module.make(setting, make_options(module, options))
        for other in getattr(objective, "beside", ()):
            if other not in weights:
                raise ValueError(
                    f"objective {name!r} needs {other!r} in the same sum, such as {other}+{name}"
                )
        arrays = [_declared(array, setting) for array in module.NEEDS]
        reads = getattr(module, "READS", ())
        if "text_ends" in given and "text_ends" not in reads:
            raise ValueError(
                f"objective {name!r} reads a row as one text, but the format {setting.format!r}"
                " puts several texts into a row: set"
                " --config.format_options.across_documents=False, or choose another objective"
            )
        arrays += [array for array in given.values() if array.name in reads]
        found.append(Term(objective, weight, tuple(arrays)))
    for term in tuple(found):
        found = getattr(term.objective, "schedule", lambda terms: terms)(found)
    return tuple(found)


def _declared(array: str, setting: Setting) -> Array:
    """Returns the declaration of an array by the run's format, or by another format that has it."""
    name = setting.format
    if name is None or not formats.has_array(name, array):
        name = next(iter(formats.declarations(array)))
    arrays = formats.arrays_of(name, setting.format_options)
    return next(found for found in arrays if found.name == array)


def check(names: Sequence[str], *, heads: Sequence[str], sees: str, format: str) -> None:
    """Refuses objectives that this model or format cannot serve.

    Args:
      names: the objectives of the sum.
      heads: the system's HEADS.
      sees: the system's SEES.
      format: name of the format.

    Raises:
      ValueError: an unknown objective, or one that cannot work here, with the reason.
    """
    for name in names:
        module = load(name)
        for array in module.NEEDS:
            if not formats.has_array(format, array):
                able = formats.declarations(array)
                raise ValueError(
                    f"objective {name!r} needs the array {array!r}, which the format {format!r} "
                    f"does not make; set data.format to one that does ({', '.join(able)}) or leave "
                    "the objective out"
                )
        if module.SEES not in (None, sees):
            raise ValueError(
                f"objective {name!r} needs a model whose positions see {module.SEES!r}, and"
                f" those of"
                f" this system see {sees!r}"
            )
        if missing := [head for head in module.HEADS if head not in heads]:
            raise ValueError(
                f"objective {name!r} needs a head {missing[0]!r}, and this system has"
                f" {', '.join(heads)}: {nearest(missing[0], heads)}"
            )


def example_batch(max_len: int, arrays: Iterable[Array], batch_size: int = 1) -> Batch:
    """Returns a batch of zeros, for tracing.

    Args:
      max_len: tokens of the longest example.
      arrays: declarations, besides `formats.COMMON`.
      batch_size: B.
    """
    declared = formats.batch_arrays((*formats.COMMON, *arrays), max_len, batch_size)
    made = {name: jnp.zeros(shape, dtype) for name, (shape, dtype) in declared.items()}
    return made | {"examples": jnp.zeros(batch_size, jnp.int32)}


def needed_arrays(terms: Iterable[Term]) -> list[Array]:
    """Returns the arrays that objectives need, as the format declares them."""
    return list(dict.fromkeys(array for term in terms for array in term.arrays))


def apply_objectives(
    model: nn.Module, batch: Batch, terms: Iterable[Term], ctx: Pass
) -> dict[str, Pairs]:
    """Returns {objective: losses}, as `Objective.losses`.

    Args:
      model: bound.
      batch: prepared.
      terms: the objectives.
      ctx: inputs of the pass.
    """
    return {term.name: term.objective.losses(model, batch, ctx) for term in terms}


def _first(model: nn.Module, batch: Batch, terms: Iterable[Term], ctx: Pass) -> None:
    """Applies the objectives to a model that is being initialized."""
    for name, params in ctx.frozen.items():
        model.put_variable(FROZEN, name, params)
    apply_objectives(model, batch, terms, ctx)


def forward(
    net: nn.Module,
    params: ArrayPytree,
    batch: Batch,
    terms: Iterable[Term],
    ctx: Pass,
    carried: ArrayPytree = None,
) -> tuple[dict[str, Pairs], ArrayPytree]:
    """Applies the objectives to an unbound model; returns their losses and the new carried state.

    Args:
      net: unbound.
      params: its parameters.
      batch: prepared.
      terms: the objectives.
      ctx: inputs of the pass, with the key of dropout.
      carried: the collection CARRIED of the model before the pass; None: a fresh one; {}: none, as
        in a fine-tuning, whose rows are not the continuation of others. Without `continues` in the
        batch each example begins a document, such as a pair of segments.
    """
    if carried and "continues" not in batch:
        batch = batch | {"continues": jnp.zeros_like(batch["lengths"])}
    found, changed = net.apply(
        {"params": params, CARRIED: carried or {}, FROZEN: ctx.frozen},
        batch,
        tuple(terms),
        ctx,
        method=apply_objectives,
        rngs={"dropout": ctx.key("dropout")} if ctx.train else {},
        mutable=[] if carried == {} else [CARRIED],
    )
    return found, changed.get(CARRIED, {})


def prepare(batch: Batch, terms: Iterable[Term], rng: jax.Array) -> Batch:
    """Lets each `Preparing` objective change the batch, with a key of its own.

    Args:
      batch: arrays [B, ...] of the format.
      terms: the objectives.
      rng: random key of the pass.
    """
    for term in terms:
        if change := getattr(term.objective, "prepare", None):
            batch = change(batch, named_key(rng, term.name))
    return batch


def named_key(rng: jax.Array, name: str) -> jax.Array:
    """Derives a key from a name, so that no draw depends on the order of calls.

    Args:
      rng: random key.
      name: of an objective, or of a purpose such as "dropout".
    """
    return jax.random.fold_in(rng, zlib.crc32(name.encode()) & 0x7FFFFFFF)


def example_keys(key: jax.Array, batch: Batch) -> jax.Array:
    """Derives a key for each example, so that no draw depends on the rest of the batch: keys [B].

    Args:
      key: random key.
      batch: with examples [B].
    """
    return jax.vmap(lambda example: jax.random.fold_in(key, example))(batch["examples"])


def init_variables(
    key: jax.Array,
    net: nn.Module,
    terms: Iterable[Term],
    *,
    max_len: int,
    batch_size: int = 1,
    frozen: Mapping[str, ArrayPytree] | None = None,
) -> dict[str, ArrayPytree]:
    """Initializes the variables that the objectives use, boxed with the names of their axes.

    Args:
      key: random key of the run.
      net: the unbound model.
      terms: the terms of the loss; only parameters that they use are made.
      max_len: length of the example to trace with, at most the model's positions.
      batch_size: B; the shape of carried state may depend on it.
      frozen: as in `Pass`.

    Returns:
      {"params": ..., CARRIED: ...}; the second is {} for most models.
    """
    terms = tuple(terms)
    batch = prepare(example_batch(max_len, needed_arrays(terms), batch_size), terms, key)
    ctx = Pass(key, jnp.zeros((), jnp.int32), frozen=frozen or {})
    variables = net.init({"params": named_key(key, "params")}, batch, terms, ctx, method=_first)
    return {name: variables.get(name, {}) for name in ("params", CARRIED)}


def abstract_variables(
    net: nn.Module,
    terms: Iterable[Term],
    *,
    max_len: int,
    batch_size: int = 1,
    frozen: Mapping[str, ArrayPytree] | None = None,
    boxed: bool = False,
) -> dict[str, ArrayPytree]:
    """Returns the shapes and types of the variables of `init_variables`, without making them.

    Args:
      net: these five as in `init_variables`.
      terms: the terms of the loss.
      max_len: length of the example.
      batch_size: B.
      frozen: parameters of other runs' models.
      boxed: whether each is boxed with the names of its axes.
    """
    made = tuple(terms)
    sizes = {"max_len": max_len, "batch_size": batch_size, "frozen": frozen}
    found = jax.eval_shape(lambda key: init_variables(key, net, made, **sizes), jax.random.key(0))
    return found if boxed else nn.unbox(found)
