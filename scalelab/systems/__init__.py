"""Systems: one module for each family, found by its name; see `System` for what it exports."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.config.fields import frozen_names, make_options
from scalelab.helpers.names import SpecialIds, load_module


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """What a system declares of fine-tuning, each with its source in the system's file.

    Attributes:
      begin: texts of the special tokens before the first text.
      between: those between two texts.
      end: those after the last text.
      added_tokens: those of them that pre-training did not have; they get new rows of the
        embedding, in this order, behind the vocabulary.
      reads: "first": the hidden state of the first token is classified; "last": of the last.
      both_orders: whether the two texts of a similarity task go through the net in both orders,
        their vectors added.
      activation: a name in nn.heads.ACTIVATIONS: between the two layers of a classifier's head.
      source: where a task's text goes if the net reads a source. "both": it is source and text
        (Lewis et al. 2020, 3.3); "source": it is the source, and the text is `START` alone; None:
        such a net is fine-tuned on tasks as text alone (`finetuning.kinds.words`).
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


@dataclasses.dataclass(frozen=True)
class Reading:
    """The special tokens, by role, around a single text that is scored or continued.

    Attributes:
      begin: roles before the text; if the net reads a source, they follow `START`. None means the
        begin of FRAME, or with a source nothing.
      end: roles after the text. None means the end of FRAME, or nothing if each token is predicted
        from the tokens before it.
      source: roles that make up the source. None means FRAME around an empty text.
      trained: whether pre-training had such inputs. If not, tables mark the scores.
    """

    begin: tuple[str, ...] | None = None
    end: tuple[str, ...] | None = None
    source: tuple[str, ...] | None = None
    trained: bool = True


@dataclasses.dataclass(frozen=True)
class Departure:
    """One declared difference between a system and `configs/base.py`.

    Attributes:
      field: dotted name of the config field, such as "tokenizer.kind".
      value: the system's own value.
      source: where the value comes from: paper and section.
    """

    field: str
    value: object
    source: str


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a net.

    Attributes:
      num_heads: N.
      width: D.
      num_layers: L.
      ffn_width: F.
      max_len: number of positions.
      dropout_rate: of residual branches and attention.
      dtype: of the computation; parameters are float32.
      remat: a name in nn.stack.REMAT_POLICIES.
      output_embedding: None where the input's table scores tokens, "untied" where its own does.
      special_ids: role -> id of each special token of the tokenizer; "start" is that of `START`.
      activation: a name in nn.ffn.ACTIVATIONS; None: the system's own.
      norm_epsilon: of the norms; None: the system's own.
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
    """A net inside a system's net that is a net of the same system by itself.

    Attributes:
      net: the fields of config.net in which it differs.
      options: the options of the system in which it differs.
      paths: first names of its parameters' paths in the whole -> in the part.
    """

    net: Mapping[str, Any]
    options: Mapping[str, object]
    paths: Mapping[str, str]


class System(Protocol):
    """What a module in `systems/` exports.

    The net that `build` returns offers:

      net(batch, *, train, cache=None, step=None) -> (hidden [B, T, D], cache), for tasks
      net.token_states(batch, *, train, step=None) -> the states [B, T, D] that score tokens, only
        where they are not those above, as in a net with a generator
      net.token_features(hidden [..., D]) -> (features [..., E], table [V, E], bias [V] | None)
      net.token_logits(hidden [..., D]) -> [..., V] float32
      net.pair_logits(hidden [B, T, D]) -> [B, 2] float32, where HEADS has "pair"
      net.label_logits(hidden, task, num_classes, of_text), where HEADS has "labels"
      net.init_cache(batch_size, max_len) -> cache, where it predicts "next"; unbound, too

    Only parameters that are used come to exist: initialise through the same function that computes
    the losses, and a net without NSP has no pooler.

    A module may also export `Options`, a frozen dataclass of its own settings
    (config.system_options); `READING`, if FRAME does not describe a single text or the net reads a
    source; `n_model(sizes, options)`, if it is not 12 L H^2; `RECIPE`, fields of
    configs/finetune.py in which its fine-tuning differs from every recipe;
    `parts(sizes, options)`, name -> Part, the net for tasks first, where a net is several nets; and
    `FROZEN`, names of the nets of other runs that its net reads, such as ("teacher",): `build` gets
    these nets as `frozen`, name -> unbound net, and in training the Flax collection "frozen" has
    their parameters.

    Attributes:
      DEPARTURES: the config fields in which the family differs from the control.
      SPECIAL_TOKENS: (role, text) in the order of ids, from 0; roles: pad unk cls sep mask bos eos.
      FRAME: (begin, between, end): texts of the special tokens around and between segments.
      ADAPTATION: its input for labelled tasks, and what is classified.
      HEADS: what the net can score: "token", "pair", ...; objectives ask for them by name.
      PREDICTS: "next" or "masked": the tokens that its token head predicts; None: none.
      SEES: what a position sees: "left", "both" or "source + left".
      HAS_SOURCE: whether the net reads a second text, its source, framed as FRAME says; then the
        module also exports `START`, the role of the special token with which a text begins.
      ORDER: "shuffled", or "contiguous": row b of a batch continues row b of the previous batch, in
        training and validation. The net's collection `objectives.CARRIED` is then a memory of each
        row. Every pass changes it, and a pass without one begins with a fresh memory.
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
        """Builds the net, unbound.

        Args:
          sizes: of the net.
          options: the module's Options; None if it has none.
          vocab_size: V.
        """
        ...


class NetConfig(Protocol):
    """The sizes as `config.net` has them; `ffn_width` None means 4 * width."""

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
) -> list[dict[str, object]]:
    """Returns the departures that the run's config keeps, for its result.json.

    Args:
      departures: those of its system.
      fields: of its config, by dotted name.
    """
    return [dataclasses.asdict(d) for d in departures if fields[d.field] == d.value]


def special_ids(system: System, ids: Mapping[str, int] | None = None) -> SpecialIds:
    """Returns the id of each special token by role; "start" is that of `START`.

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
    """Builds the system's net, unbound.

    Args:
      system: the module.
      net: config.net.
      options: config.system_options.
      vocab_size: V.
      remat: as in `Sizes`.
      frozen: name -> net of another run, unbound; for a system with `FROZEN`.
      ids: role -> id in the run's tokenizer; None means a tokenizer trained for the system.
    """
    sizes = dataclasses.replace(make_sizes(net, remat), special_ids=special_ids(system, ids))
    given = sizes, make_options(system, options), vocab_size
    return system.build(*given, **({"frozen": frozen} if frozen_names(system) else {}))


def make_sizes(net: NetConfig, remat: str = "none") -> Sizes:
    """Returns the sizes that a config describes."""
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


def n_model(system: System, net: NetConfig, options: Mapping[str, object] = {}) -> int:  # noqa: B006
    """Returns the parameters of the layers without biases and norms, as the system declares."""
    declared = getattr(system, "n_model", None)
    if declared is None:
        return 12 * net.num_layers * net.width**2
    return declared(make_sizes(net), make_options(system, options))


def more_inputs(system: System, *, source: bool = False) -> str | None:
    """Returns what the system's net reads beside a text; None: nothing, or a source if allowed."""
    frozen = [f"the net of another run ({name})" for name in frozen_names(system)]
    found = ["a source"] * system.HAS_SOURCE + frozen
    return " and ".join(found) if frozen or not source else None


def parts(system: System, net: NetConfig, options: Mapping[str, object]) -> dict[str, Part]:
    """Returns the nets that the system's net consists of; {} if it is one."""
    declared = getattr(system, "parts", None)
    return declared(make_sizes(net), make_options(system, options)) if declared else {}


def reading(system: System) -> Reading:
    """Returns the system's `READING`, or the default.

    By default a net without a source was trained on such inputs, and a net with a source was not.
    """
    return getattr(system, "READING", Reading(trained=not system.HAS_SOURCE))


def load(name: str) -> System:
    """Imports the system `name`.

    Raises:
      ValueError: there is no such system; the message names the nearest.
    """
    return cast(System, load_module("systems", name))
