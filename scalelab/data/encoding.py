"""Encodes documents word by word, remembering the ids of words.

No tokenizer here makes a piece that reaches over a space, so a word has the same ids wherever it
occurs. Text is mostly words seen before: the memory makes encoding several times as fast as handing
every sentence to the library, with the same ids.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from scalelab.data import _workers
from scalelab.data.tokenizers import Tokenizer

MAX_WORDS = 1 << 20  # remembered before the memory is cleared
_NO_SPACE = "\n"  # marks a document's first word; no word has a line break

Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass
class Encoded:
    """Some documents, encoded.

    Sentences in which the tokenizer sees nothing (control characters) are left out.

    Attributes:
      tokens: [num_tokens] ids.
      num_tokens: [num_sentences] tokens of each sentence.
      num_bytes: [num_sentences] UTF-8 bytes of each, with the space before it.
      num_sentences: [num_documents] sentences of each document.
      size: bytes of the block.
    """

    tokens: np.ndarray
    num_tokens: np.ndarray
    num_bytes: np.ndarray
    num_sentences: np.ndarray
    size: int


def encode_all(tokenizer_dir: Path, blocks: Iterable[bytes], num_workers: int) -> Iterator[Encoded]:
    """Encodes blocks of whole documents: a sentence a line, an empty line after each document."""
    return _workers.work(f"{__name__}:block_encoder", (tokenizer_dir,), blocks, num_workers)


def block_encoder(tokenizer_dir: Path) -> Callable[[bytes], Encoded]:
    """Returns the function of a worker."""
    encode = DocumentEncoder(Tokenizer.load(tokenizer_dir).encode_flat)
    return lambda block: encode_block(encode, block)


def encode_block(encode: "DocumentEncoder", block: bytes) -> Encoded:
    """Encodes the documents of a block, at least one."""
    texts = block.decode("utf-8").removesuffix("\n\n").split("\n\n")
    documents = [text.split("\n") for text in texts]
    tokens, num_tokens = encode(documents)
    num_sentences = np.fromiter(map(len, documents), np.int64, len(documents))
    firsts = np.cumsum(num_sentences) - num_sentences
    num_bytes = np.fromiter((1 + len(line) for line in block.split(b"\n") if line), np.int64)
    num_bytes[firsts] -= 1
    seen = num_tokens > 0
    num_seen = np.add.reduceat(seen, firsts, dtype=np.int64)
    return Encoded(tokens, num_tokens[seen], num_bytes[seen], num_seen[num_seen > 0], len(block))


class DocumentEncoder:
    """Encodes documents with a memory of words."""

    def __init__(self, encode: Encode, max_words: int = MAX_WORDS):
        """Takes a function: texts -> all ids [n], and each text's start [len(texts) + 1]."""
        self._encode = encode
        self._max_words = max_words
        self._clear()

    def __call__(self, documents: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes sentences as they stand in their documents, joined by single spaces.

        Args:
          documents: sentences of each document, stripped and without line breaks.

        Returns:
          All ids in one array [num_tokens] int32, and the number of tokens of each sentence
          [num_sentences].
        """
        words: list[str] = []
        num_words: list[int] = []
        for document in documents:
            before = _NO_SPACE
            for sentence in document:
                found = sentence.split()
                if " ".join(found) != sentence:  # other white space than single spaces
                    found = [sentence]
                found[0] = before + found[0]
                words += found
                num_words.append(len(found))
                before = ""
        if len(self._number) > self._max_words:
            self._clear()
        numbers = np.fromiter(
            map(self._number.get, words, itertools.repeat(-1)), np.int64, len(words)
        )
        unseen = np.flatnonzero(numbers < 0)
        if len(unseen):
            self._learn(list(dict.fromkeys(words[i] for i in unseen)))
            numbers[unseen] = [self._number[words[i]] for i in unseen]
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        shift = np.repeat(self._starts[numbers] - (ends - lengths), lengths)
        ids = self._ids[shift + np.arange(len(shift))]
        first_words = np.cumsum(num_words) - num_words
        return ids, np.add.reduceat(lengths, first_words) if len(words) else lengths

    def _learn(self, words: list[str]) -> None:
        """Adds words to the memory."""
        texts = [w[1:] if w[0] == _NO_SPACE else " " + w for w in words]
        ids, starts = self._encode(texts)
        known = len(self._number)
        numbers = range(known, known + len(words))
        self._number.update(zip(words, numbers, strict=True))
        self._starts = np.concatenate([self._starts, starts[:-1] + len(self._ids)])
        self._lengths = np.concatenate([self._lengths, np.diff(starts)])
        self._ids = np.concatenate([self._ids, ids])

    def _clear(self) -> None:
        self._number: dict[str, int] = {}
        self._starts = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)
        self._ids = np.zeros(0, np.int32)
