"""The texts of a corpus as training reads them, encoded by a run's tokenizer."""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from scalelab.data import sentences

AT_ONCE = 256  # documents that are encoded together
OPENING = 48  # characters of a document that are kept to know it by


@dataclasses.dataclass(frozen=True)
class Texts:
    """Documents to score.

    Attributes:
      tokens: [n] int32, ids of all of them, without special tokens.
      starts: [num_documents + 1] int64, where each begins in `tokens`.
      num_bytes: UTF-8 bytes of each.
      openings: the first characters of each.
    """

    tokens: np.ndarray
    starts: np.ndarray
    num_bytes: list[int]
    openings: list[str]


def stream(corpus: Any, split: str, tick: Callable[[int], object]) -> Iterator[str]:
    """Streams the documents that have text: their sentences, joined by single spaces."""
    for document in corpus.documents(split, tick):
        text = " ".join(sentences.split(document))
        if text:
            yield text


def read(
    corpus: Any, split: str, max_docs: int | None, tokenizer: Any, tick: Callable[[int], object]
) -> Texts:
    """Reads and encodes documents.

    Args:
      corpus: a `scalelab.data.corpora.Corpus`.
      split: one of its splits.
      max_docs: how many of the first to read; None: all.
      tokenizer: a `scalelab.data.tokenizers.Tokenizer`.
      tick: called with the bytes on disk that were passed since the last call.

    Raises:
      ValueError: no such split, no text in it, or bytes that are not UTF-8.
    """
    documents = islice(stream(corpus, split, tick), max_docs)
    ids, starts = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)]
    num_bytes: list[int] = []
    openings: list[str] = []
    while texts := list(islice(documents, AT_ONCE)):
        flat, own_starts = tokenizer.encode_flat(texts)
        ids.append(flat)
        starts.append(own_starts[1:] + starts[-1][-1])
        num_bytes += [len(text.encode("utf-8")) for text in texts]
        openings += [text[:OPENING] for text in texts]
    if not openings:
        raise ValueError(f"corpus {corpus.spec}: there is no text in its {split} split")
    return Texts(np.concatenate(ids), np.concatenate(starts), num_bytes, openings)
