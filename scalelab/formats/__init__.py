"""Formats: how documents become examples. One module each, found by name."""

import dataclasses
from collections.abc import Iterator
from typing import Protocol, cast

import numpy as np

from scalelab.helpers import names

_PARTS = ("assembly", "draws")


@dataclasses.dataclass(frozen=True)
class Documents:
    """One split of a corpus, tokenised. The arrays may be memory-mapped.

    Attributes:
      tokens: [num_tokens] uint16 or uint32, without special tokens.
      sentence_starts: [num_sentences + 1] int64, offsets into `tokens`, increasing: no sentence is
        empty; the last one is num_tokens.
      sentence_bytes: [num_sentences] int32, UTF-8 bytes of a sentence's source text, one more for
        the space that joins it to the sentence before it in its document.
      document_starts: [num_documents + 1] int64, offsets into the sentences; the last one is
        num_sentences.
    """

    tokens: np.ndarray
    sentence_starts: np.ndarray
    sentence_bytes: np.ndarray
    document_starts: np.ndarray

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
    """The special ids that a system puts around text.

    Attributes:
      begin: ids before the first segment.
      between: ids between two segments, or between two documents in one example.
      end: ids after the last segment.
    """

    begin: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


@dataclasses.dataclass
class Examples:
    """A chunk of finished examples.

    Attributes:
      tokens: flat ids, special ones included, in the dtype of the documents.
      starts: [num_examples + 1] int64, offsets into `tokens`.
      boundaries: [num_examples] int32, index in the example where segment B begins; the example's
        length where there is one segment.
      num_bytes: [num_examples] int32, source bytes covered; a cut sentence counts pro rata,
        rounded.
      num_text_tokens: [num_examples] int32, tokens that are not special.
      nsp_labels: [num_examples] int32, 0 = B follows A, 1 = B is random; None where the format
        makes no pairs.
      dropped_tokens: text tokens that were cut off in this chunk.
    """

    tokens: np.ndarray
    starts: np.ndarray
    boundaries: np.ndarray
    num_bytes: np.ndarray
    num_text_tokens: np.ndarray
    nsp_labels: np.ndarray | None
    dropped_tokens: int

    def __len__(self) -> int:
        return len(self.starts) - 1


class Format(Protocol):
    """A module of this room.

    Attributes:
      VERSION: part of the cache's key; to be raised when the output changes.
      HAS_PAIRS: whether examples have two segments and a label.
    """

    VERSION: int
    HAS_PAIRS: bool

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
        """Yields chunks of finished examples, a pure function of its arguments."""
        ...


def format_names() -> list[str]:
    """Lists the formats that `load` finds."""
    return [name for name in names.module_names("formats") if name not in _PARTS]


def load(name: str) -> Format:
    """Imports the format module `name`.

    Raises:
      ValueError: there is no such format; the message names the nearest ones.
    """
    return cast(Format, names.load_module("formats", name, but=_PARTS))
