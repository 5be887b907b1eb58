"""Cuts documents into sentences and encodes them, in worker processes, with results in order.

Workers are fresh interpreters that import little and talk over pipes: forking a process in which
JAX or the tokenizers have started threads is not safe, and `multiprocessing` would import the
user's main program again. Run as a module, this file is a worker.

Documents are encoded word by word. No tokenizer here makes a piece that reaches over a space, so a
word has the same ids wherever it occurs. Text is mostly words seen before: a memory of their ids
makes encoding several times as fast as handing every sentence to the library.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import gc
import importlib
import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from scalelab.data import sentences

CHUNK_CHARS = 1 << 20  # of documents that a worker cuts at a time
MAX_WORDS = 1 << 20  # remembered before the memory is cleared
_NO_SPACE = "\n"  # marks a document's first word; no word has a line break

Labelled = tuple[str, str]  # split, document
Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass
class Segmented:
    """Some documents of one split, cut into sentences.

    Attributes:
      text: UTF-8, one sentence a line, an empty line after each document.
      num_documents: documents in it; those without a sentence are left out.
      num_sentences: sentences in it.
    """

    text: bytes
    num_documents: int
    num_sentences: int


def segment_all(documents: Iterable[Labelled], num_workers: int) -> Iterator[dict[str, Segmented]]:
    """Cuts a stream of documents, in their order; each result holds some of them by split."""
    return work(f"{__name__}:segmenter", (), _chunks(documents), num_workers)


def segmenter() -> Callable[[list[Labelled]], dict[str, Segmented]]:
    """Returns the function of a worker."""
    return segment


def segment(documents: list[Labelled]) -> dict[str, Segmented]:
    """Cuts documents into sentences, for each split that occurs."""
    lines: dict[str, list[str]] = {}
    made: dict[str, Segmented] = {}
    for name, document in documents:
        whole = made.setdefault(name, Segmented(b"", 0, 0))
        if found := sentences.split(document):
            whole.num_documents += 1
            whole.num_sentences += len(found)
            lines.setdefault(name, []).extend([*found, ""])
    for name, each in lines.items():
        made[name].text = ("\n".join(each) + "\n").encode("utf-8")
    return made


def _chunks(documents: Iterable[Labelled]) -> Iterator[list[Labelled]]:
    chunk: list[Labelled] = []
    size = 0
    for labelled in documents:
        chunk.append(labelled)
        size += len(labelled[1])
        if size >= CHUNK_CHARS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


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
    return work(f"{__name__}:block_encoder", (tokenizer_dir,), blocks, num_workers)


def block_encoder(tokenizer_dir: Path) -> Callable[[bytes], Encoded]:
    """Returns the function of a worker."""
    from scalelab.data.tokenizers import Tokenizer  # only these workers need it

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


def work(
    factory: str, arguments: tuple, requests: Iterable[Any], num_workers: int
) -> Iterator[Any]:
    """Answers requests in `num_workers` processes (0 or 1: in this one), keeping the order.

    Args:
      factory: `module:function`; each process calls it once with `arguments` to get the function
        that answers requests.
      arguments: of the factory; picklable, like requests and answers.
      requests: read a few ahead of the answers.
      num_workers: number of processes.

    Raises:
      OSError: a process ended early.
    """
    if num_workers <= 1:
        yield from map(_make(factory, arguments), requests)
        return
    with contextlib.ExitStack() as stack:
        idle: queue.Queue[subprocess.Popen] = queue.Queue()
        for _ in range(num_workers):
            idle.put(stack.enter_context(_worker(factory, arguments)))
        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(num_workers))
        waiting: collections.deque[concurrent.futures.Future] = collections.deque()
        for request in requests:
            waiting.append(threads.submit(_ask, idle, request))
            if len(waiting) > 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _make(factory: str, arguments: tuple) -> Callable[[Any], Any]:
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)


@contextlib.contextmanager
def _worker(factory: str, arguments: tuple) -> Iterator[subprocess.Popen]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    worker = subprocess.Popen(
        [sys.executable, "-m", "scalelab.data.parallel"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # One process a core: none needs threads of its own.
        env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        with contextlib.suppress(BrokenPipeError):  # the first request will notice
            pickle.dump((factory, arguments), worker.stdin)
            worker.stdin.flush()
        yield worker
    finally:
        worker.kill()
        with contextlib.suppress(BrokenPipeError):  # unsent requests may be lost
            worker.stdin.close()
        worker.stdout.close()
        worker.wait()


def _ask(idle: queue.Queue, request: Any) -> Any:
    worker = idle.get()
    try:
        pickle.dump(request, worker.stdin, pickle.HIGHEST_PROTOCOL)
        worker.stdin.flush()
        return pickle.load(worker.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
        raise OSError(
            f"a process that prepares data ended with code {worker.wait()}; if memory ran out, "
            "set --config.machine.num_workers=1"
        ) from error
    finally:
        idle.put(worker)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers until the pipe closes, as it also does when the asking process dies."""
    answer = _make(*pickle.load(requests))
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(answer(request), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    gc.disable()  # the work makes no cycles, and the search for them takes a tenth of the time
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the asking process to handle
    _serve(sys.stdin.buffer, sys.stdout.buffer)
