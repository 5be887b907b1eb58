"""Objectives: what is minimised on a batch. Each file is one; none knows a net's inside."""

import zlib
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab import formats
from scalelab.formats import Array
from scalelab.helpers.names import load_module, module_names, nearest

SHARED = ("xent",)  # modules here that are no objective

Batch = dict[str, jax.Array]
Pairs = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight)


class Baseline(NamedTuple):
    """What a trivial predictor reaches; a verdict needs nets that are better by the margin."""

    metric: str  # of `Objective.terms`: "loss" or "accuracy"
    value: float | None  # None: the unigram entropy of the training text
    margin: float


class Objective(Protocol):
    """A frozen dataclass; all methods but `num_predicted` are device code.

    Attributes:
      name: of its module.
      needs: names of the arrays that it needs beside those of `formats.COMMON`.
      samples: whether `prepare` draws at random, so that an evaluation averages several draws.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    samples: ClassVar[bool]

    def num_predicted(self, length: int) -> int:
        """Returns the positions of an example that pass through the token head, for FLOPs."""
        ...

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Adds what the objective needs to the batch.

        Random draws are keyed by example, so that splitting a batch cannot move them.
        """
        ...

    def weight(self, batch: Batch) -> jax.Array:
        """Counts the predictions of a prepared batch: float32 [], without padding examples."""
        ...

    def terms(
        self, model: nn.Module, hidden: jax.Array, batch: Batch, *, accuracy: bool = False
    ) -> Pairs:
        """Returns {"loss": (sum, weight), ...}: float32 sums over the batch and their weights.

        Args:
          model: the bound net, see `systems.System`.
          hidden: [B, T, D].
          batch: a prepared batch.
          accuracy: adds "accuracy", which costs an argmax over the vocabulary.
        """
        ...


class ObjectiveModule(Protocol):
    """What a module in `objectives/` exports.

    Attributes:
      NEEDS: names of the arrays of a batch that it needs beside those of `formats.COMMON`.
      NEEDS_CAUSAL: whether the net must (True) or must not (False) be causal; None: either.
      BASELINE: the trivial baseline.
    """

    NEEDS: tuple[str, ...]
    NEEDS_CAUSAL: bool | None
    BASELINE: Baseline

    @staticmethod
    def make(*, vocab_size: int, special_ids: Mapping[str, int], mask_rate: float) -> Objective:
        """Makes the objective, which ignores the arguments that it has no use for.

        Args:
          vocab_size: V.
          special_ids: role (pad, mask, ...) -> token id.
          mask_rate: share of tokens to predict.
        """
        ...


def load(name: str) -> ObjectiveModule:
    """Imports the objective `name`.

    Raises:
      ValueError: there is no such objective; the message names the nearest.
    """
    return cast(ObjectiveModule, load_module("objectives", name, but=SHARED))


def load_baselines() -> dict[str, Baseline]:
    """Returns the trivial baseline of every objective."""
    return {x: load(x).BASELINE for x in module_names("objectives") if x not in SHARED}


def make(
    names: Iterable[str], *, vocab_size: int, special_ids: Mapping[str, int], mask_rate: float
) -> tuple[Objective, ...]:
    """Makes the objectives whose losses are summed; arguments as of `ObjectiveModule.make`."""
    return tuple(
        load(name).make(vocab_size=vocab_size, special_ids=special_ids, mask_rate=mask_rate)
        for name in names
    )


def check(names: tuple[str, ...], *, served: tuple[str, ...], causal: bool, format: str) -> None:
    """Refuses objectives that this net or format cannot serve.

    Args:
      names: the objectives whose losses are to be summed.
      served: the system's OBJECTIVES.
      causal: the system's CAUSAL.
      format: name of the format.

    Raises:
      ValueError: an unknown or repeated objective, or one that cannot work here, with the reason.
    """
    if not names or len(set(names)) != len(names):
        raise ValueError(f"expected different objectives joined by '+', got {'+'.join(names)!r}")
    for name in names:
        module = load(name)
        for array in module.NEEDS:
            if format not in (able := formats.declarations(array)):
                raise ValueError(
                    f"objective {name!r} needs the array {array!r}, which the format {format!r} "
                    f"does not make; set data.format to one that does ({', '.join(able)}) or leave "
                    "the objective out"
                )
        if module.NEEDS_CAUSAL is not None and module.NEEDS_CAUSAL != causal:
            needed, got = ("", "sees both sides") if module.NEEDS_CAUSAL else ("not ", "is causal")
            raise ValueError(
                f"objective {name!r} needs a net that is {needed}causal, and this one {got}; "
                f"this system serves: {', '.join(served)}"
            )
        if name not in served:
            raise ValueError(
                f"this system does not serve objective {name!r}: {nearest(name, served)}"
            )


def example_batch(max_len: int, arrays: Iterable[Array], batch_size: int = 1) -> Batch:
    """Returns a batch of zeros with `formats.COMMON` and more arrays, for tracing."""
    shapes = {"examples": (batch_size,)}
    for array in (*formats.COMMON, *arrays):
        shapes[array.name] = array.shape(max_len, batch_size)
        if array.kind == "ragged":
            shapes[formats.lengths_name(array.name)] = (batch_size,)
    return {name: jnp.zeros(shape, jnp.int32) for name, shape in shapes.items()}


def needed_arrays(objectives: Iterable[Objective]) -> list[Array]:
    """Returns the arrays that objectives need, as the first format that has them declares them."""
    needed = {name: formats.declarations(name) for o in objectives for name in o.needs}
    return [next(iter(found.values())) for found in needed.values()]


def apply_objectives(
    model: nn.Module, batch: Batch, objectives: Iterable[Objective], *, train: bool, accuracy: bool
) -> dict[str, Pairs]:
    """Runs a bound model once and every objective on its hidden states.

    Args:
      model: the bound net, see systems/__init__.py.
      batch: prepared by every objective.
      objectives: the objectives.
      train: whether dropout is on.
      accuracy: whether to compute accuracies, which cost an argmax over the vocabulary.

    Returns:
      objective name -> {"loss": (sum, weight), ...}.
    """
    hidden, _ = model(batch, train=train)
    return {o.name: o.terms(model, hidden, batch, accuracy=accuracy) for o in objectives}


def prepare(batch: Batch, objectives: Iterable[Objective], rng: jax.Array) -> Batch:
    """Lets every objective prepare the batch, each with a key of its own."""
    for objective in objectives:
        batch = objective.prepare(batch, named_key(rng, objective.name))
    return batch


def named_key(rng: jax.Array, name: str) -> jax.Array:
    """Derives a key from a name, so that no draw depends on the order of calls."""
    return jax.random.fold_in(rng, zlib.crc32(name.encode()) & 0x7FFFFFFF)


def init_params(
    key: jax.Array, net: nn.Module, objectives: Iterable[Objective], *, max_len: int
) -> ArrayPytree:
    """Initialises the parameters that the objectives use, boxed with the names of their axes.

    Args:
      key: of the run.
      net: the unbound net.
      objectives: what is trained.
      max_len: length of the example to trace with, at most the net's positions.
    """
    objectives = tuple(objectives)
    batch = prepare(example_batch(max_len, needed_arrays(objectives)), objectives, key)
    variables = net.init(
        {"params": named_key(key, "params")},
        batch,
        objectives,
        train=False,
        accuracy=False,
        method=apply_objectives,
    )
    return variables["params"]


def abstract_params(
    net: nn.Module, objectives: Iterable[Objective], *, max_len: int
) -> ArrayPytree:
    """Returns shapes and types of the parameters, unboxed; arguments as of `init_params`."""
    init = lambda key: nn.unbox(init_params(key, net, objectives, max_len=max_len))  # noqa: E731
    return jax.eval_shape(init, jax.random.key(0))
