"""Systems: a module or package for each family, found by its name; `System` lists its exports."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.config.fields import Departure as Departure
from scalelab.config.fields import frozen_names, make_options
from scalelab.helpers.names import SpecialIds, load_module


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """The input template of fine-tuning and its head; the system's file names the sources.

    Attributes:
      begin: texts of the special tokens before the first text.
      between: texts of the special tokens between two texts.
      end: texts of the special tokens after the last text.
      added_tokens: special tokens that pre-training did not have; they get new rows of the
        embedding, in this order, after the vocabulary.
      reads: the classified hidden state, of the "first" or the "last" token.
      both_orders: whether the model reads the two texts of a similarity task in both orders and
        adds the two vectors.
      activation: a name in nn.heads.ACTIVATIONS, between the two layers of a classifier's head.
      source: the place of a task's text if the model reads a source. "both": the source, and behind
        `START` the text. "source": the source, and the text is `START` alone. None: such a model is
        fine-tuned only to generate labels as text (`finetuning.kinds.words`).
    """

    begin: tuple[str, ...]
    between: tuple[str, ...]
    end: tuple[str, ...]
    added_tokens: tuple[str, ...] = ()
    reads: str = "first"
    both_orders: bool = False
    activation: str = "tanh"
    source: str | None = None

    def __post_init__(self) -> None:
        assert self.source in (None, "both", "source"), self.source


_ADDED = ("<|start|>", "<|delimiter|>", "<|end|>")
# Radford et al. 2018, 3.3: start, delimiter and end tokens are new; the end token is classified.
GPT_INPUT = Adaptation(
    *((token,) for token in _ADDED), added_tokens=_ADDED, reads="last", both_orders=True
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """The special tokens, by role, around a single text that is scored or continued.

    Attributes:
      begin: roles before the text; if the model reads a source, they follow `START`. None means
        FRAME's `begin`, or nothing if the model reads a source.
      end: roles after the text. None means FRAME's `end`, or nothing if each token is predicted
        from the tokens before it.
      source: roles that make up the source. None means FRAME around an empty text.
      trained: whether pre-training had such inputs. If not, tables mark the scores.
    """

    begin: tuple[str, ...] | None = None
    end: tuple[str, ...] | None = None
    source: tuple[str, ...] | None = None
    trained: bool = True


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a model.

    Attributes:
      num_heads: N.
      width: D.
      num_layers: L.
      ffn_width: F.
      max_len: number of positions.
      dropout_rate: dropout on residual branches and attention.
      dtype: dtype of the computation; parameters are float32.
      remat: a name in nn.stack.REMAT_POLICIES.
      output_embedding: None if the input's table scores tokens, "untied" if another table does.
      special_ids: role -> id of each special token of the tokenizer; "start" is the id of `START`.
      activation: a name in nn.ffn.ACTIVATIONS; None: the system's own.
      norm_epsilon: epsilon of the norms; None: the system's own.
    """

    num_heads: int
    width: int
    num_layers: int
    ffn_width: int
    max_len: int
    dropout_rate: float
    dtype: DTypeLike = jnp.float32
    remat: str = "none"
    output_embedding: str | None = None
    special_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    activation: str | None = None
    norm_epsilon: float | None = None


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a system's model that is itself a model of the same system.

    Attributes:
      net: the fields of config.model that differ.
      options: the options of the system that differ.
      paths: prefixes of its parameters' paths: in the whole -> in the part.
    """

    net: Mapping[str, Any]
    options: Mapping[str, object]
    paths: Mapping[str, str]


class System(Protocol):
    """The exports of a module in `systems/`.

    The model that `build` returns has the methods of `nets.Model`. Only parameters in use are made:
    the function that computes the losses also initializes them, so a model without NSP has no
    pooler.

    Optional exports of a module:

      Options: frozen dataclass of its own settings (config.system_options)
      READING: a `Reading`, if FRAME does not fit a single text or the model reads a source
      n_model(sizes, options): parameters of the layers without biases and norms, if the function
        `n_model` of this module does not count them
      RECIPE: fields of configs/finetune.py in which its fine-tuning differs from every recipe
      parts(sizes, options): name -> Part, the model for tasks first, if a model contains models
      FROZEN: names of the models of other runs that its model reads, such as ("teacher",). `build`
        gets them as `frozen`, name -> unbound model. In training the Flax collection "frozen" has
        their parameters.
      count(tokens, starts, options, vocab_size): the parameters as a tree of arrays, counted in the
        training documents, tokens [n] with offsets [documents + 1]. A run begins with them. No step
        changes them, so that neither --init nor fine-tuning is possible. Absent: parameters are
        drawn and trained.

    Attributes:
      DEPARTURES: the config fields in which the family differs from the base config.
      SPECIAL_TOKENS: (role, text) in the order of ids, from 0; roles: pad unk cls sep mask bos eos.
      FRAME: (begin, between, end): texts of the special tokens around and between segments.
      ADAPTATION: its input for labeled tasks, and the classified state.
      HEADS: names of the model's heads: "token", "pair", ...; objectives ask for them by name.
        A model with "token" has the same bias of tokens at all places, or `token_log_probs`.
      PREDICTS: "next" or "masked": the tokens that its token head predicts; None: none.
      SEES: the tokens that a position sees: "left", "both" or "source + left".
      HAS_SOURCE: whether the model reads a second text, its source, inside FRAME. Then the module
        also exports `START`, the role of the special token that begins a text.
      ORDER: "shuffled", or "contiguous": row b of a batch continues row b of the previous batch, in
        training and validation. The model's collection `objectives.CARRIED` is then a memory of
        each row. Every pass changes it, and a pass without one begins with a fresh memory.
    """

    DEPARTURES: tuple[Departure, ...]
    SPECIAL_TOKENS: tuple[tuple[str, str], ...]
    FRAME: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    ADAPTATION: Adaptation
    HEADS: tuple[str, ...]
    PREDICTS: str | None
    SEES: str
    HAS_SOURCE: bool
    ORDER: str

    @staticmethod
    def build(sizes: Sizes, options: Any, vocab_size: int) -> nn.Module:
        """Builds the model, unbound.

        Args:
          sizes: the model's sizes.
          options: the module's Options; None if it has none.
          vocab_size: V.
        """
        ...


class NetConfig(Protocol):
    """The fields of `config.model` that set sizes; `ffn_width` None means 4 * width."""

    @property
    def num_heads(self) -> int: ...  # noqa: D102
    @property
    def width(self) -> int: ...  # noqa: D102
    @property
    def num_layers(self) -> int: ...  # noqa: D102
    @property
    def ffn_width(self) -> int | None: ...  # noqa: D102
    @property
    def max_len(self) -> int: ...  # noqa: D102
    @property
    def dropout_rate(self) -> float: ...  # noqa: D102
    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def output_embedding(self) -> str | None: ...  # noqa: D102
    @property
    def activation(self) -> str | None: ...  # noqa: D102
    @property
    def norm_epsilon(self) -> float | None: ...  # noqa: D102


def active_departures(
    departures: Iterable[Departure], fields: Mapping[str, object]
) -> tuple[Departure, ...]:
    """Returns the declared differences that the run's config keeps, for its result.json.

    Args:
      departures: the system's DEPARTURES.
      fields: the fields of the run's config, by dotted name.
    """
    return tuple(d for d in departures if fields[d.field] == d.value)


def special_ids(system: System, ids: Mapping[str, int] | None = None) -> SpecialIds:
    """Returns the id of each special token by role; "start" is the id of `START`.

    Args:
      system: the module.
      ids: role -> id in the run's tokenizer; None means a tokenizer trained for the system.
    """
    if ids is None:
        ids = {role: i for i, (role, _) in enumerate(system.SPECIAL_TOKENS)}
    return SpecialIds(ids, getattr(system, "START", None))


def make_net(
    system: System,
    net: NetConfig,
    options: Mapping[str, object] = {},  # noqa: B006
    *,
    vocab_size: int,
    remat: str = "none",
    frozen: Mapping[str, nn.Module] = {},  # noqa: B006
    ids: Mapping[str, int] | None = None,
) -> nn.Module:
    """Builds the system's model, unbound.

    Args:
      system: the module.
      net: config.model.
      options: config.system_options.
      vocab_size: V.
      remat: as in `Sizes`.
      frozen: name -> model of another run, unbound; for a system with `FROZEN`.
      ids: role -> id in the run's tokenizer; None means a tokenizer trained for the system.
    """
    sizes = dataclasses.replace(make_sizes(net, remat), special_ids=special_ids(system, ids))
    given = sizes, make_options(system, options), vocab_size
    return system.build(*given, **({"frozen": frozen} if frozen_names(system) else {}))


def make_sizes(net: NetConfig, remat: str = "none") -> Sizes:
    """Returns the sizes that a config describes.

    Args:
      net: config.model.
      remat: as in `Sizes`.
    """
    return Sizes(
        net.num_heads,
        net.width,
        net.num_layers,
        net.ffn_width or 4 * net.width,
        net.max_len,
        net.dropout_rate,
        jnp.dtype(net.dtype),
        remat,
        net.output_embedding,
        activation=net.activation,
        norm_epsilon=net.norm_epsilon,
    )


def refuse(sizes: Sizes, *names: str) -> None:
    """Raises ValueError if a config chooses a part that the system's layers do not have.

    Args:
      sizes: the sizes that the config asks for.
      *names: fields of `Sizes` that are None if the config leaves them to the system.
    """
    for name in names:
        if (value := getattr(sizes, name)) is not None:
            raise ValueError(
                f"config.model.{name} = {value}: the layers of this system have none to choose:"
                f" set it to None"
            )


def n_model(system: System, net: NetConfig, options: Mapping[str, object] = {}) -> int:  # noqa: B006
    """Returns the number of parameters of the layers without biases and norms.

    That is the system's own `n_model`; or both stacks of a model with a source, L (12 D^2 + 4 D F);
    or 12 L D^2 with F = 4 D.
    """
    if declared := getattr(system, "n_model", None):
        return declared(make_sizes(net), make_options(system, options))
    size = 12 * net.num_layers * net.width**2
    if system.HAS_SOURCE:
        size += 4 * net.num_layers * net.width * make_sizes(net).ffn_width
    return size


def more_inputs(system: System, *, source: bool = False) -> str | None:
    """Names the inputs that the system's model reads in addition to a text; None: there are none.

    Args:
      system: the module.
      source: True: a source alone is no such input.
    """
    frozen = [f"the model of another run ({name})" for name in frozen_names(system)]
    found = ["a source"] * system.HAS_SOURCE + frozen
    return " and ".join(found) if frozen or not source else None


def parts(system: System, net: NetConfig, options: Mapping[str, object]) -> dict[str, Part]:
    """Returns the models that the system's model contains; {} if it has no parts."""
    declared = getattr(system, "parts", None)
    return declared(make_sizes(net), make_options(system, options)) if declared else {}


def reading(system: System) -> Reading:
    """Returns the system's `READING`, or the default.

    The default has `trained` True for a model without a source, False for a model with a source.
    """
    return getattr(system, "READING", Reading(trained=not system.HAS_SOURCE))


def load(name: str) -> System:
    """Imports the system `name`.

    Raises:
      ValueError: there is no such system; the message names the nearest.
    """
    return cast(System, load_module("systems", name))
