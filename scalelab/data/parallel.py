"""Cuts documents into sentences and encodes them, in worker processes, with results in order.

Documents are encoded word by word. No tokenizer here makes a piece that reaches over a space, so a
word has the same ids wherever it occurs. Text is mostly words seen before: a memory of their ids
makes encoding several times as fast as handing every sentence to the library.
"""

import collections
import concurrent.futures
import functools
import gc
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from scalelab.data import sentences

CHUNK_CHARS = 1 << 20  # documents that a worker cuts at a time
MAX_WORDS = 1 << 20  # remembered before the memory is cleared
_NO_SPACE = "\n"  # marks a document's first word; no word has a line break

Labelled = tuple[str, str]  # split, document
Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
Request, Answer = TypeVar("Request"), TypeVar("Answer")


def segment(documents: list[Labelled]) -> dict[str, bytes]:
    """Cuts documents into sentences.

    Returns:
      Split -> UTF-8 text: one sentence a line, an empty line after each document that has any.
    """
    lines: dict[str, list[str]] = {}
    for split, document in documents:
        if found := sentences.split(document):
            lines.setdefault(split, []).extend([*found, ""])
    return {split: ("\n".join(found) + "\n").encode() for split, found in lines.items()}


def chunks(documents: Iterable[Labelled]) -> Iterator[list[Labelled]]:
    """Groups documents into lists of about CHUNK_CHARS characters, for `segment`."""
    chunk: list[Labelled] = []
    size = 0
    for labeled in documents:
        chunk.append(labeled)
        size += len(labeled[1])
        if size >= CHUNK_CHARS:
            yield chunk
            chunk, size = [], 0
    yield chunk


class Encoded(NamedTuple):
    """Some documents; sentences without tokens (of control characters) are left out."""

    tokens: np.ndarray  # [num_tokens] ids
    num_tokens: np.ndarray  # [num_sentences] tokens of each sentence
    num_bytes: np.ndarray  # [num_sentences] UTF-8 bytes of each, with the space before it
    num_sentences: np.ndarray  # [num_documents] sentences of each document
    size: int  # bytes of the block


def encode_block(tokenizer_dir: Path, block: bytes) -> Encoded:
    """Encodes a block of whole documents by the tokenizer of a folder.

    A block is UTF-8: a sentence a line, an empty line after each document.
    """
    texts = block.decode("utf-8").removesuffix("\n\n").split("\n\n")
    documents = [text.split("\n") for text in texts]
    tokens, num_tokens = open_encoder(tokenizer_dir)(documents)
    num_sentences = np.fromiter(map(len, documents), np.int64, len(documents))
    firsts = np.cumsum(num_sentences) - num_sentences
    num_bytes = np.fromiter((1 + len(line) for line in block.split(b"\n") if line), np.int64)
    num_bytes[firsts] -= 1
    seen = num_tokens > 0
    num_seen = np.add.reduceat(seen, firsts, dtype=np.int64)
    return Encoded(tokens, num_tokens[seen], num_bytes[seen], num_seen[num_seen > 0], len(block))


@functools.lru_cache(maxsize=1)
def open_encoder(tokenizer_dir: Path) -> "DocumentEncoder":
    """Returns the encoder of a process, which keeps its memory of words from block to block."""
    from scalelab.data.tokenizers import Tokenizer  # only these workers need it

    return DocumentEncoder(Tokenizer.load(tokenizer_dir).encode_flat)


class DocumentEncoder:
    """Encodes documents with a memory of words."""

    def __init__(self, encode: Encode, max_words: int = MAX_WORDS) -> None:
        """Takes a function: texts -> all ids [n] int32, and each text's start [len(texts) + 1]."""
        self._encode, self._max_words = encode, max_words
        self._known: dict[str, bytes] = {}  # word -> its ids, int32

    def __call__(self, documents: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes the sentences of each document, stripped, as if joined by single spaces.

        Returns:
          All ids [num_tokens] int32, and the number of tokens of each sentence [num_sentences].
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
        if len(self._known) > self._max_words:
            self._known.clear()
        if unseen := list(set(words) - self._known.keys()):
            texts = [word[1:] if word[0] == _NO_SPACE else " " + word for word in unseen]
            ids, starts = self._encode(texts)
            content, edges = ids.tobytes(), (starts * ids.itemsize).tolist()
            pieces = (content[begin:end] for begin, end in itertools.pairwise(edges))
            self._known.update(zip(unseen, pieces, strict=True))
        encoded = list(map(self._known.__getitem__, words))
        lengths = np.fromiter(map(len, encoded), np.int64, len(words)) // np.int32().itemsize
        ids = np.frombuffer(b"".join(encoded), np.int32)
        first_words = np.cumsum(num_words) - num_words
        return ids, np.add.reduceat(lengths, first_words) if len(words) else lengths


def work(
    answer: Callable[[Request], Answer], requests: Iterable[Request], num_workers: int
) -> Iterator[Answer]:
    """Answers requests in several processes, keeping the order.

    Args:
      answer: the function that answers; other processes find it by its name.
      requests: read a few ahead of the answers.
      num_workers: number of processes; 0 or 1: in this one.

    Raises:
      OSError: a process ended early.
    """
    if num_workers <= 1:
        yield from map(answer, requests)
        return
    # Forking a process in which JAX or the tokenizers have started threads is not safe.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(num_workers, context, _begin)
    waiting: collections.deque[concurrent.futures.Future[Answer]] = collections.deque()
    try:
        for request in requests:
            waiting.append(pool.submit(answer, request))
            if len(waiting) > 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise OSError(
            "a process that prepares data ended early; if memory ran out, set"
            " --config.machine.num_workers=1"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Prepares a worker process."""
    gc.disable()  # the work makes no cycles, and the search for them takes a tenth of the time
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the asking process to handle
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker after its parent was killed; the pool would leave it waiting."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
