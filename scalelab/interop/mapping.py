"""The records of a family's map, which is only data: how scalelab stands in `transformers`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from scalelab.helpers.names import module_names

TASK_HEADS = tuple(module_names("finetuning.kinds"))
OUTPUT = "output"  # the extra of an architecture with a separate output table
Value = str | int | float | bool | None  # value of a field of config.json
Function = Callable[..., Any]  # array or arrays -> array or arrays; see convert.TRANSFORMS


@dataclasses.dataclass(frozen=True)
class Row:
    """Our parameters and their tensors that hold the same numbers."""

    paths: tuple[str, ...]  # paths in our parameter tree, such as "embed/tokens/table"
    # Tensor names; "{}" stands for the layer number, "{group}" for that of a group of layers that
    # share parameters: an index on axis 0 of a parameter.
    tensors: tuple[str, ...]
    # A name in convert.TRANSFORMS, or a pair of functions (import, export).
    transform: "str | tuple[Function, Function]" = "same"

    @property
    def stacked(self) -> str | None:
        """The number of sets of tensors, a field of convert.Sizes; None if there is one."""
        marks = {"{}": "num_layers", "{group}": "num_groups"}
        return next((size for mark, size in marks.items() if mark in self.tensors[0]), None)


def row(path: str, tensor: str, transform: "str | tuple[Function, Function]" = "same") -> Row:
    """Makes a row of one parameter and one tensor."""
    return Row((path,), (tensor,), transform)


def affine(
    path: str, tensor: str, kernel: str = "transpose", bias: str = "same"
) -> tuple[Row, Row]:
    """Makes the rows of a kernel and its bias.

    Args:
      path: prefix of our parameters' paths.
      tensor: prefix of the tensors' names.
      kernel: name of the kernel's transform.
      bias: name of the bias' transform.
    """
    return (
        row(f"{path}/kernel", f"{tensor}.weight", kernel),
        row(f"{path}/bias", f"{tensor}.bias", bias),
    )


def norm(path: str, tensor: str) -> tuple[Row, Row]:
    """Makes the rows of a layer norm's scale and shift."""
    return row(f"{path}/scale", f"{tensor}.weight"), row(f"{path}/bias", f"{tensor}.bias")


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of config.json with a counterpart in our config."""

    # One of num_heads, width, num_layers, ffn_width, max_len, dropout_rate, vocab_size,
    # num_segments; in Map.options an option of the system.
    name: str
    key: str  # its name in config.json
    default: int | float | None  # the default of `transformers`; None for ffn_width means 4 * width
    offset: int = 0  # the value in config.json minus the value in our config
    # The field that an option None equals; None: exports refuse that option None.
    none: str | None = None
    # The field of config.json that is True if the option has a value and False if the option is
    # None; None: there is no such field.
    switch: str | None = None


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A field of config.json whose value our family fixes."""

    key: str  # its name
    values: tuple[Value, ...]  # the values that agree with our model; an export writes the first
    default: Value  # the default of `transformers`
    why: str  # the property of our model, for the message that refuses another value


@dataclasses.dataclass(frozen=True)
class Choice:
    """A field of config.json that a field of config.model or an option of the system sets.

    None is the system's own value. Several choices may have one key.
    """

    name: str  # the field of config.model, or the option
    key: str  # its name in config.json
    own: str | float  # the system's value, as config.json spells it
    default: str | float  # the default of `transformers`
    # Spellings in config.json -> our value, the preferred one first; None: a number in (0, 1).
    words: Mapping[str, str | None] | None = None


@dataclasses.dataclass(frozen=True)
class Derived:
    """A field of config.json that follows from sizes and options of our model.

    An export writes its value; an import refuses any other value.
    """

    key: str  # name of the field
    # Function that computes the value from sizes and options, given by Field.name.
    value: Callable[[Mapping[str, Any]], Value]
    why: str  # the reason, for the message of a refused import


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A class of `transformers`."""

    name: str  # the class
    # Names in Map.heads: objectives that an import can be trained on, or a kind of head for tasks.
    heads: tuple[str, ...]
    # "next" or "masked": the tokens that its head scores; None: it scores none.
    predicts: str | None = None
    objective_options: tuple[tuple[str, Value], ...] = ()  # options of an import's objectives
    # What this variant has beside its heads: OUTPUT, and names in Map.extras.
    extras: tuple[str, ...] = ()

    @property
    def untied(self) -> bool:
        """True if it scores tokens with a separate output table."""
        return OUTPUT in self.extras

    @property
    def kind(self) -> str | None:
        """The kind of its head for tasks, as in Task.kind; None: it is a pre-trained model."""
        return next((head for head in self.heads if head in TASK_HEADS), None)

    @property
    def scores_tokens(self) -> bool:
        """True if it has a head that predicts tokens."""
        return self.predicts is not None


@dataclasses.dataclass(frozen=True)
class Map:
    """The correspondence between a family and its classes in `transformers`."""

    system: str  # the family's name in scalelab/systems
    model_type: str  # its name in config.json
    prefix: str  # the beginning of the body's tensor names
    fields: tuple[Field, ...]  # config fields with a counterpart in our config
    fixed: tuple[Fixed, ...]  # config fields that must have one value
    body: tuple[Row, ...]  # rows of the body
    # Rows of each head; those of kinds for tasks have paths below head/, outside the model.
    heads: dict[str, tuple[Row, ...]]
    # The classes; if several fit a checkpoint, the first is taken.
    architectures: tuple[Architecture, ...]
    inputs: tuple[str, ...]  # names of the model's inputs, for the tokenizer
    # Role of a special token -> its token type, if that is not its text's.
    token_types: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # False: its class reads a mask token as text and cannot predict what it hides.
    fills_masks: bool = True
    # True: a classifier reads the last token of a row, so padding comes first.
    pads_left: bool = False
    # (copy, original) names of tensors that may be stored twice. The first pair is the table that
    # scores tokens; an untied head has it as a separate parameter.
    tied: tuple[tuple[str, str], ...] = ()
    buffers: tuple[str, ...] = ()  # patterns of names that hold no parameters
    # Patterns of names of tensors that must hold zeros, such as a bias that we do not have.
    zeros: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # patterns of names of parameters that our model does not have
    # Path of the last shift that is added to the hidden states. If their classifier has no bias,
    # exports move our bias into this shift.
    last_shift: str | None = None
    # Config fields with a counterpart among the system's options, numbers.
    options: tuple[Field, ...] = ()
    # Config fields with a counterpart in config.model that may be None. Without one for
    # "activation" or "norm_epsilon", exports refuse another value than None.
    choices: tuple[Choice, ...] = ()
    # Other options of the system and the values that its classes need.
    required: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    # Names in `heads` of rows that a model of any class has or lacks. They replace rows with the
    # same paths.
    extras: tuple[str, ...] = ()
    # The dropout rate of a classifier's head; default None: that of the model.
    head_dropout: Field = Field("dropout_rate", "classifier_dropout", None)
    imports: bool = True  # False: an import of its classes is a model of another family
    # Texts of special tokens that the tokenizer of every checkpoint must have.
    special: tuple[str, ...] = ()
    derived: tuple[Derived, ...] = ()  # config fields that follow from sizes and options
    # Config fields with a counterpart among the system's options, words.
    option_choices: tuple[Choice, ...] = ()
    # (copy, original) names of tensors that may be stored twice in untied models, too.
    copies: tuple[tuple[str, str], ...] = ()
    # config.json -> True if a separate table scores tokens.
    untied: Callable[[Mapping[str, Any]], bool] = lambda c: c.get("tie_word_embeddings") is False
    # config.json -> True if this table may be missing, as a copy of the embedding's.
    one_table: Callable[[Mapping[str, Any]], bool] = lambda c: False

    @property
    def variants(self) -> tuple[Architecture, ...]:
        """The architectures without and with each extra; those that score tokens untied, too."""
        found = list(self.architectures)
        for extra in (*self.extras, OUTPUT):
            able = [a for a in found if extra != OUTPUT or a.scores_tokens]
            found += [dataclasses.replace(a, extras=(*a.extras, extra)) for a in able]
        return tuple(found)

    @property
    def token_table(self) -> str:
        """Path of our table of tokens: that of the body's first row over the vocabulary."""
        return next(r.paths[0] for r in self.body if r.transform == "vocabulary")

    def head_kind(self, kind: str = "classify") -> str:
        """Returns "double" if the head of a kind has a layer before its last, else "single"."""
        paths = [path for row in self.heads[kind] for path in row.paths]
        return "double" if "head/dense/kernel" in paths else "single"

    def rows(self, architecture: Architecture) -> tuple[Row, ...]:
        """Returns the rows of the body and heads of an architecture.

        A tensor that is stored twice in a tied model is two parameters in an untied model. An
        untied model of `transformers` computes with the first name of each pair.
        """
        table = self.token_table.replace("embed/tokens", "output_embed")
        heads = self.heads | {OUTPUT: (row(table, self.tied[0][0], "vocabulary"),)}
        names = architecture.heads + architecture.extras
        found = {r.paths: r for r in self.body} | {r.paths: r for n in names for r in heads[n]}
        rows = tuple(found.values())
        if not architecture.untied:
            return rows
        own = {(original,): (name,) for name, original in self.tied[1:]}
        return tuple(dataclasses.replace(r, tensors=own.get(r.tensors, r.tensors)) for r in rows)
