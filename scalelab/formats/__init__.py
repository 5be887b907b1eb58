"""Formats: how documents become examples. One module each, found by name."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np

from scalelab.config.fields import make_options
from scalelab.helpers import names

# Bits of a token: it continues the word, the phrase or the entity of the token before it; its word
# begins with a capital.
WORD, PHRASE, ENTITY, CAPITAL = 1, 2, 4, 8
TURN = 16  # a token that continues the turn of the token before it; plus SPEAKER * (0 to 3)
SPEAKER = 32


@dataclasses.dataclass(frozen=True)
class Documents:
    """One split of a corpus, tokenized. The arrays may be memory-mapped.

    No sentence is empty. Its bytes count its source text in UTF-8, plus one for the space before it
    unless it is the first of its document.
    """

    tokens: np.ndarray  # [num_tokens] uint16 or uint32, without special tokens
    sentence_starts: np.ndarray  # [num_sentences + 1] int64, offsets into the tokens
    sentence_bytes: np.ndarray  # [num_sentences] int32
    document_starts: np.ndarray  # [num_documents + 1] int64, offsets into the sentences
    units: np.ndarray | None = None  # [num_tokens] uint8, sums of bits such as WORD; None: unknown

    @property
    def num_documents(self) -> int:
        """Number of documents, empty ones included."""
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        """Number of sentences over all documents."""
        return len(self.sentence_starts) - 1


@dataclasses.dataclass(frozen=True)
class Frame:
    """The special ids that a system puts around text."""

    begin: tuple[int, ...] = ()  # ids before the first segment
    between: tuple[int, ...] = ()  # ids between two segments, or two documents in one example
    end: tuple[int, ...] = ()  # ids after the last segment


@dataclasses.dataclass(frozen=True)
class Specials(Frame):
    """The special ids that a format may put into examples: a frame, and all ids by role."""

    # Role -> id; in a run a `SpecialIds`.
    ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    vocab_size: int = 0  # size of the tokenizer; formats draw random tokens below it

    @property
    def sentinels(self) -> tuple[int, ...]:
        """Ids of the roles sentinel_0, sentinel_1, ..., in this order."""
        roles = map("sentinel_{}".format, itertools.count())
        return tuple(self.ids[role] for role in itertools.takewhile(self.ids.__contains__, roles))


@dataclasses.dataclass(frozen=True)
class Array:
    """The declaration of an array: one item per example (flat) or a row of items (ragged).

    In a batch a flat array is [B, ...] and a ragged one [B, T, ...], padded with 0. Its type there
    is `batch_type`. The lengths of a ragged array's rows are another array of the batch, int32 [B],
    with the name `lengths_name`.
    """

    name: str
    kind: Literal["flat", "ragged"] = "flat"
    dtype: str | None = "int32"  # type on disk; int8: a label; None: the documents' token type
    # Function (max_len, the format's Options) -> T of a ragged array; None means max_len.
    length: Callable[[int, Any], int] | None = None
    item: tuple[int, ...] = ()  # shape of an item, such as (512,) for features; () for a number
    # Whether its items count as tokens in the training budget. None means yes if it is ragged and
    # made of the documents' tokens (dtype None).
    counts: bool | None = None
    # Function of the format's Options: whether batches have the array; None means always.
    present: Callable[[Any], bool] | None = None
    options: Any = None  # the format's Options, for `length`; set by `arrays_of`

    def __post_init__(self) -> None:
        if self.kind == "flat" and self.counts:
            raise ValueError(f"array {self.name!r}: only rows of a ragged array count as tokens")

    @property
    def is_counted(self) -> bool:
        """True if its items count as tokens in the training budget."""
        of_tokens = self.kind == "ragged" and self.dtype is None
        return of_tokens if self.counts is None else self.counts

    def shape(self, max_len: int, batch_size: int) -> tuple[int, ...]:
        """Returns its shape in a batch, [B, ...] or [B, T, ...].

        Args:
          max_len: tokens of the longest example, special tokens included.
          batch_size: B.
        """
        if self.kind == "flat":
            return batch_size, *self.item
        length = self.length(max_len, self.options) if self.length else max_len
        return batch_size, length, *self.item

    def cast(self, values: np.ndarray) -> np.ndarray:
        """Converts values [n, ...] that a format made to the type on disk.

        Raises:
          ValueError: the values have another kind of number or another item shape than declared, or
            a number does not fit the type.
        """
        dtype = np.dtype(self.dtype or values.dtype)
        kinds = {"f": "biuf", "b": "b"}.get(dtype.kind if self.dtype else "i", "biu")
        if values.dtype.kind not in kinds or values.shape[1:] != self.item:
            made = f"{values.dtype} {list(values.shape[1:])}"
            declared = f"{self.dtype or 'whole numbers'} {list(self.item)}"
            raise ValueError(f"array {self.name!r}: the format makes {made}, declared: {declared}")
        read = batch_type(dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            cast = values.astype(dtype, copy=False)
            kept = cast if np.can_cast(dtype, read) else cast.astype(read)
        same = kept is values or np.array_equal(kept, values)
        if not same and (dtype.kind in "iu" or not np.isfinite(kept).all()):
            lacking = dtype if np.can_cast(dtype, read) else f"{read} of a batch"
            raise ValueError(f"array {self.name!r}: the format makes numbers that {lacking} lacks")
        return cast


def batch_type(dtype: np.typing.DTypeLike) -> np.dtype:
    """Returns the type that an array of type `dtype` has in a batch: bool, float32 or int32."""
    kind = np.dtype(dtype).kind
    return np.dtype({"b": "bool", "f": "float32"}.get(kind, "int32"))


# Every format has these: the main text, its number of source bytes (a cut sentence counts in
# proportion, rounded), and its number of tokens without special tokens.
COMMON = (Array("tokens", "ragged", None), Array("num_bytes"), Array("num_text_tokens"))


def batch_arrays(
    arrays: Iterable[Array], max_len: int, batch_size: int
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Returns the shape and type of each array of a batch, including the lengths of rows.

    Args:
      arrays: the declarations.
      max_len: tokens of the longest example, special tokens included.
      batch_size: B.
    """
    made = {}
    for array in arrays:
        made[array.name] = array.shape(max_len, batch_size), batch_type(array.dtype or "int32")
        if array.kind == "ragged":
            made[lengths_name(array.name)] = (batch_size,), np.dtype("int32")
    return made


def check_batch(arrays: Iterable[Array], batch: Mapping[str, np.ndarray], max_len: int) -> None:
    """Checks that a batch has the declared arrays, shapes and types.

    Args:
      arrays: the declarations.
      batch: with lengths [B].
      max_len: tokens of the longest example, special tokens included.

    Raises:
      ValueError: an array is missing, undeclared, or has another shape or type.
    """
    declared = batch_arrays(arrays, max_len, len(batch["lengths"]))
    made = {name: (values.shape, values.dtype) for name, values in batch.items()}
    for name in declared | made:
        if (found := made.get(name)) != (expected := declared.get(name)):
            shown = ["nothing" if x is None else f"{x[1]} {list(x[0])}" for x in (found, expected)]
            raise ValueError(f"array {name!r}: the format makes {shown[0]}, declared: {shown[1]}")


def lengths_name(name: str) -> str:
    """Returns the name in a batch of the row lengths of the ragged array `name`."""
    return "lengths" if name == "tokens" else f"{name}_lengths"


class Ragged(NamedTuple):
    """Rows of different lengths, concatenated."""

    values: np.ndarray  # [num_items, ...]
    starts: np.ndarray  # [num_examples + 1] int64, offsets into `values`, from 0


@dataclasses.dataclass
class Examples:
    """A chunk of finished examples, by the names of the declared arrays."""

    ragged: dict[str, Ragged]
    flat: dict[str, np.ndarray]  # [num_examples, ...] each
    dropped_tokens: int  # text tokens that were cut off in this chunk

    def __len__(self) -> int:
        return len(self.ragged["tokens"].starts) - 1


class Pieces(Protocol):
    """The part of `data.tokenizers.Tokenizer` that `annotate` uses."""

    special_ids: Mapping[str, int]

    @property
    def joins(self) -> bytes:
        """One byte per id, as `Tokenizer.joins`: whether the piece continues a word."""
        ...

    @property
    def capitals(self) -> bytes:
        """One byte per id: 1 if the piece's first letter is a capital."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Encodes one text without special tokens: ids [n]."""
        ...


class Format(Protocol):
    """A module of this package.

    Optional exports:

      Options: frozen dataclass with defaults (config.format_options)
      annotate, corrupt: functions as in `Changing`
      STORED: the arrays on disk, if they differ from ARRAYS
    """

    VERSION: int  # part of the cache's key; raise it when the output changes
    ARRAYS: tuple[Array, ...]  # arrays of a batch; COMMON among them

    def build(
        self,
        documents: Documents,
        *,
        specials: Specials,
        max_len: int,
        seed: int,
        document_ids: np.ndarray | None = None,
        options: Any = None,
    ) -> Iterator[Examples]:
        """Yields chunks of finished examples, a pure function of its arguments.

        Args:
          documents: one split.
          specials: special ids around the text and between its parts.
          max_len: tokens of the longest example, special tokens included.
          seed: seed of all choices; unused if nothing is random.
          document_ids: [n] indices of the documents, ascending; None: all.
          options: the module's `Options`; None if it has none.

        Raises:
          ValueError: `max_len` leaves no space for text, or the documents do not suit the format.
        """
        ...


class Changing(Format, Protocol):
    """A format that annotates documents, or changes the examples in each epoch."""

    def annotate(
        self, documents: Mapping[str, Documents], tokenizer: Pieces, options: Any
    ) -> dict[str, Documents]:
        """Returns the documents with `units`, learned from the split "train".

        Args:
          documents: split -> its documents; they have units if the corpus has spans.
          tokenizer: the tokenizer that made the tokens.
          options: the module's `Options`; None if it has none.
        """
        ...

    def corrupt(
        self,
        batch: dict[str, np.ndarray],
        *,
        seed: int,
        epochs: np.ndarray,
        examples: np.ndarray,
        specials: Specials,
        options: Any,
        max_len: int,
    ) -> dict[str, np.ndarray]:
        """Changes rows at random in each epoch, a pure function of its arguments.

        Args:
          batch: B rows of the arrays on disk: flat [B, ...], ragged [B, T, ...] with lengths [B].
          seed: seed of all choices.
          epochs: [B] int, the epoch of each example, from 0.
          examples: [B] int, its index in the store; -1 for padding.
          specials: as in `build`.
          options: the module's `Options`; None if it has none.
          max_len: tokens of the longest example, special tokens included.

        Returns:
          A batch of ARRAYS.
        """
        ...


def load(name: str) -> Format:
    """Imports the format module `name`; raises ValueError if there is no such format."""
    return cast(Format, names.load_module("formats", name))


def arrays_of(
    name: str, options: Mapping[str, object], *, stored: bool = False
) -> tuple[Array, ...]:
    """Returns the arrays of a format.

    Args:
      name: name of the format.
      options: config.format_options.
      stored: True returns the arrays on disk (`STORED`), False the arrays of a batch.
    """
    form = load(name)
    given = make_options(form, options)
    arrays = getattr(form, "STORED", form.ARRAYS) if stored else form.ARRAYS
    return tuple(
        dataclasses.replace(a, options=given) if a.length else a
        for a in arrays
        if a.present is None or a.present(given)
    )


def has_array(format: str, array: str) -> bool:
    """Returns True if a format declares the array `array`."""
    return any(declared.name == array for declared in load(format).ARRAYS)


def declarations(array: str) -> dict[str, Array]:
    """Returns {format: declaration} for all formats that have the array `array`."""
    found = {name: load(name).ARRAYS for name in names.module_names("formats")}
    return {name: a for name, arrays in found.items() for a in arrays if a.name == array}
