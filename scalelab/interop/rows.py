"""What a map is made of: plain records, so that a family's map is data."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """Arrays of ours and tensors of theirs that hold the same numbers.

    Attributes:
      ours: paths in our parameter tree, such as "embed/tokens/table".
      theirs: names in a checkpoint; "{}" stands for the number of a layer, which is a place on
        axis 0 of ours.
      transform: a name in transforms.TRANSFORMS.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: str = "same"

    @property
    def by_layer(self) -> bool:
        """Whether there is one set of tensors for each layer."""
        return any("{}" in name for name in self.theirs)


def row(ours: str, theirs: str, transform: str = "same") -> Row:
    """A row of one array and one tensor."""
    return Row((ours,), (theirs,), transform)


def affine(
    ours: str, theirs: str, kernel: str = "transpose", bias: str = "same"
) -> tuple[Row, Row]:
    """Rows of a kernel and its bias."""
    return (
        row(f"{ours}/kernel", f"{theirs}.weight", kernel),
        row(f"{ours}/bias", f"{theirs}.bias", bias),
    )


def norm(ours: str, theirs: str) -> tuple[Row, Row]:
    """Rows of a layer norm's scale and shift."""
    return row(f"{ours}/scale", f"{theirs}.weight"), row(f"{ours}/bias", f"{theirs}.bias")


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of their config.json that has a field of ours.

    Attributes:
      ours: one of num_heads, width, num_layers, ffn_width, max_len, dropout_rate, vocab_size.
      theirs: its name in config.json.
      default: what `transformers` takes where config.json leaves it out; None for ffn_width:
        4 * width.
      offset: theirs minus ours.
    """

    ours: str
    theirs: str
    default: Any
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A field of their config.json that our family leaves no choice.

    Attributes:
      theirs: its name.
      values: what agrees with our net; an export writes the first.
      default: what `transformers` takes where config.json leaves it out.
      why: what of ours it is, for the message that refuses another value.
    """

    theirs: str
    values: tuple[Any, ...]
    default: Any
    why: str


OUTPUT = "output"  # the head of an architecture that has a second table


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A class of `transformers` and what it has on the body.

    Attributes:
      name: the class.
      heads: names in Map.heads.
      serves: objectives of the pre-training that an import becomes; a bare body lacks their heads.
      bare: whether its tensors go without the body's prefix.
    """

    name: str
    heads: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    bare: bool = False

    @property
    def untied(self) -> bool:
        """Whether it scores tokens with a table of its own."""
        return OUTPUT in self.heads

    @property
    def classifies(self) -> bool:
        """Whether it is a classifier of sequences."""
        return "classify" in self.heads


@dataclasses.dataclass(frozen=True)
class Map:
    """A family in both worlds.

    Attributes:
      system: its file in scalelab/systems.
      model_type: its name in config.json.
      prefix: what the names of the body's tensors begin with.
      fields: config fields in both worlds.
      fixed: config fields that must have one value.
      body: rows of the body.
      heads: rows of each head; "classify" has paths below head/, which is no part of the net.
      architectures: what can be imported and exported, the first of several that fit is taken.
      classes: the tensor whose axis 0 counts the classes of a classifier.
      head_kind: "double" or "single", the kind of head that its classifier has.
      inputs: what a tokenizer must give its model.
      tied: (name, name of what it must equal) of tensors that are stored twice; the first is the
        table that scores tokens, which is a parameter of its own where the head is untied.
      buffers: patterns of names that hold no parameters.
      unused: (pattern, why) of parameters that our net has not, which are left out.
      last_shift: path of the shift that is added last to the hidden states; where their classifier
        has no bias, ours goes there.
    """

    system: str
    model_type: str
    prefix: str
    fields: tuple[Field, ...]
    fixed: tuple[Fixed, ...]
    body: tuple[Row, ...]
    heads: dict[str, tuple[Row, ...]]
    architectures: tuple[Architecture, ...]
    classes: str
    head_kind: str
    inputs: tuple[str, ...]
    tied: tuple[tuple[str, str], ...] = ()
    buffers: tuple[str, ...] = ()
    unused: tuple[tuple[str, str], ...] = ()
    last_shift: str | None = None

    @property
    def variants(self) -> tuple[Architecture, ...]:
        """The architectures, and behind them those that score tokens once more, untied."""
        scoring = [a for a in self.architectures if {"mlm", "clm"} & {*a.serves} and not a.bare]
        untied = [dataclasses.replace(a, heads=(*a.heads, OUTPUT)) for a in scoring]
        return (*self.architectures, *untied)

    def rows(self, architecture: Architecture) -> tuple[Row, ...]:
        """Rows of the body and the heads of an architecture.

        What is stored twice where a head is tied is two parameters where it is not, and
        `transformers` then computes with the first of each pair.
        """
        heads = self.heads | {OUTPUT: (row("output_embed/table", self.tied[0][0], "vocabulary"),)}
        rows = self.body + tuple(r for head in architecture.heads for r in heads[head])
        if not architecture.untied:
            return rows
        own = {(original,): (name,) for name, original in self.tied[1:]}
        return tuple(dataclasses.replace(r, theirs=own.get(r.theirs, r.theirs)) for r in rows)
