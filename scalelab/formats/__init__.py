"""Formats: how documents become examples. One module each, found by name."""

import dataclasses
from collections.abc import Iterator
from typing import Protocol, cast

import numpy as np

from scalelab.helpers import names


@dataclasses.dataclass(frozen=True)
class Documents:
    """One split of a corpus, tokenised. The arrays may be memory-mapped.

    No sentence is empty. Its bytes are those of its source text in UTF-8, one more for the space
    that joins it to the sentence before it in its document.
    """

    tokens: np.ndarray  # [num_tokens] uint16 or uint32, without special tokens
    sentence_starts: np.ndarray  # [num_sentences + 1] int64, offsets into the tokens
    sentence_bytes: np.ndarray  # [num_sentences] int32
    document_starts: np.ndarray  # [num_documents + 1] int64, offsets into the sentences

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

    begin: tuple[int, ...] = ()  # before the first segment
    between: tuple[int, ...] = ()  # between two segments, or two documents in one example
    end: tuple[int, ...] = ()  # after the last segment


@dataclasses.dataclass
class Examples:
    """A chunk of finished examples; all arrays but the first two are int32 [num_examples].

    A boundary is the index in the example where segment B begins, or the example's length where
    there is one segment. A label is 0 where B follows A, 1 where B is random.
    """

    tokens: np.ndarray  # flat ids, special ones included, in the dtype of the documents
    starts: np.ndarray  # [num_examples + 1] int64, offsets into `tokens`
    boundaries: np.ndarray
    num_bytes: np.ndarray  # source bytes covered; a cut sentence counts pro rata, rounded
    num_text_tokens: np.ndarray  # tokens that are not special
    nsp_labels: np.ndarray | None  # None where the format makes no pairs
    dropped_tokens: int  # text tokens that were cut off in this chunk

    def __len__(self) -> int:
        return len(self.starts) - 1


class Format(Protocol):
    """A module of this room.

    It may also export `Options`, a frozen dataclass of its own settings (config.format_options);
    `build` then takes one as `options`.
    """

    VERSION: int  # part of the cache's key; to be raised when the output changes
    HAS_PAIRS: bool  # whether examples have two segments and a label

    def build(
        self,
        documents: Documents,
        *,
        frame: Frame,
        max_len: int,
        seed: int,
        document_ids: np.ndarray | None = None,
        short_rate: float = 0.1,
    ) -> Iterator[Examples]:
        """Yields chunks of finished examples, a pure function of its arguments.

        Args:
          documents: one split.
          frame: special ids around the text and between its parts.
          max_len: tokens of the longest example, special ones included.
          seed: of all choices; unused where nothing is random.
          document_ids: which documents, in the order of their indices; None: all.
          short_rate: share of examples with a shorter target, where the format has targets.

        Raises:
          ValueError: `max_len` leaves no room for text, or the documents do not suit the format.
        """
        ...


def format_names() -> list[str]:
    """Lists the formats that `load` finds."""
    return names.module_names("formats")


def load(name: str) -> Format:
    """Imports the format module `name`; raises ValueError if there is no such format."""
    return cast(Format, names.load_module("formats", name))
