"""Prepares a corpus: tokenised documents, each stage cached by its inputs.

sentences (corpus, segmenter)  ->  tokenizer (sentences, its spec)  ->  tokens (both)

So two tokenizers share the sentences, and all formats and seeds share the tokens.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import tokenizers as hf_tokenizers

from scalelab.data import cache, parallel, sentences, tokenizers
from scalelab.data.corpora import TURNS, UNITS, Corpus, assign_split, pieces
from scalelab.data.store import ArrayWriter, load_array
from scalelab.formats import SPEAKER, Documents
from scalelab.helpers.progress import show_bar, timed

VERSION = "2"  # version of what the stages write
UNITS_VERSION = 1
UNITS_BATCH = 64  # documents encoded together to mark their units
TRAINING_CHARS = 1 << 16  # a text of the tokenizer's training, which takes many times that
_BLOCK_BYTES = 1 << 22
_ARRAYS = {
    "tokens": np.uint16, "sentence_starts": np.int64, "sentence_bytes": np.int32,
    "document_starts": np.int64,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A corpus, tokenised."""

    tokenizer: tokenizers.Tokenizer  # trained on the training split, or given
    tokenizer_dir: Path  # its files, in Hugging Face layout
    documents: dict[str, Documents]  # by split, memory-mapped
    corpus_hash: str  # SHA-256 of the corpus as it was read
    key: dict[str, object]  # what the tokens depend on; part of later cache keys
    timings: dict[str, float]  # seconds of each stage that was not in the cache


@dataclasses.dataclass
class Sentences:
    """The sentences of a corpus, in the cache. Iteration gives the documents of the training split.

    An iteration joins sentences by spaces, as `tokenizers.train` reads them, and can be repeated.
    """

    source: Corpus
    cache_dir: str | os.PathLike[str]
    num_workers: int = 2  # processes that split sentences and encode
    progress: bool = True  # whether bars are shown
    # Seconds of each stage that was not in the cache.
    timings: dict[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def key(self) -> dict[str, str]:
        """What the sentences depend on: the content of the corpus, how it is read and cut."""
        with timed(self.timings, "fingerprint"):
            corpus_hash = self.source.fingerprint()
        return {"corpus": corpus_hash, "segmenter": sentences.version(), "version": VERSION}

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of `<split>.txt` for `read_sentences`, made if it is not there.

        Raises:
          ValueError: a split has no text.
        """
        with timed(self.timings, "sentences"):
            return cache.entry(self.cache_dir, "sentences", self.key, self._split)

    def _split(self, into: Path) -> None:
        source = self.source
        with contextlib.ExitStack() as stack:
            tick = stack.enter_context(show_bar("sentences", source.num_bytes, show=self.progress))
            files = {s: stack.enter_context((into / f"{s}.txt").open("wb")) for s in source.splits}
            chunks = parallel.chunks(source.labeled(tick))
            for found in parallel.work(parallel.segment, chunks, self.workers(source.num_bytes)):
                for split, text in found.items():
                    files[split].write(text)
        sizes = {split: (into / f"{split}.txt").stat().st_size for split in source.splits}
        hint = "; take more documents or another --config.data.valid_rate" * source.divided
        for split, size in sizes.items():
            if not size:
                where = f"its {split} split{hint}" if any(sizes.values()) else "it"
                raise ValueError(f"corpus {source.spec}: there is no text in {where}")

    def workers(self, size: int) -> int:
        """Returns 1 for a small text, done before a second process starts; 0: unknown size."""
        return 1 if 0 < size < _BLOCK_BYTES else self.num_workers

    def __iter__(self) -> Iterator[str]:
        path = self.folder / "train.txt"
        with show_bar("tokenizer", path.stat().st_size, show=self.progress) as tick:
            for document in read_sentences(path, tick):
                # A word has the same pieces with the space before it, wherever a text is cut.
                yield from pieces(document.replace("\n", " "), TRAINING_CHARS)


def prepare_documents(text: Sentences, tokenizer: tokenizers.TokenizerSpec | Path) -> Prepared:
    """Reads, splits, trains and encodes, or finds the cached result.

    `tokenizer` is one to train, or the folder of a trained one.

    Raises:
      ValueError: the corpus is missing, empty or unreadable, or too small for the vocabulary.
    """
    source, timings, cache_dir = text.source, text.timings, text.cache_dir

    def train(into: Path) -> None:
        _ = text.folder  # made before this clock starts
        with timed(timings, "tokenizer"):
            tokenizers.train(spec, text, into)

    def encode(into: Path) -> None:
        _ = text.folder  # as above
        with timed(timings, "tokens"):
            for split in source.splits:
                _encode(text, split, tokenizer_dir, into)

    if isinstance(tokenizer, Path):
        tokenizer_dir = tokenizer
        spec_key: dict[str, object] = {"text": text.key, "given": tokenizers.digest(tokenizer)}
    else:
        spec = tokenizer
        version = f"{tokenizers.VERSION}, tokenizers {hf_tokenizers.__version__}"
        spec_key = dataclasses.asdict(spec) | {"text": text.key, "training": version}
        tokenizer_dir = cache.entry(cache_dir, "tokenizer", spec_key, train)
    key = {"tokenizer": spec_key, "version": VERSION}
    folder = cache.entry(cache_dir, "tokens", key, encode)
    documents = {
        split: Documents(*(load_array(folder / f"{split}.{name}.npy") for name in _ARRAYS))
        for split in source.splits
    }
    opened = tokenizers.Tokenizer.load(tokenizer_dir)
    if source.source.spans is not None:
        with timed(timings, "units"):
            documents = _add_units(documents, text, opened, key)
    return Prepared(opened, tokenizer_dir, documents, text.key["corpus"], key, timings)


def _add_units(
    documents: dict[str, Documents],
    text: Sentences,
    tokenizer: tokenizers.Tokenizer,
    key: dict[str, object],
) -> dict[str, Documents]:
    """Marks the units of documents that have spans; without any, returns them as they are."""

    def mark(into: Path) -> None:
        found = _collect_spans(text.source)
        for split, own in documents.items() if any(map(len, found.values())) else ():
            lines = read_sentences(text.folder / f"{split}.txt", lambda num_bytes: None)
            np.save(into / split, _mark_units(own.tokens, lines, tokenizer, found[split]))

    folder = cache.entry(text.cache_dir, "units", key | {"units": UNITS_VERSION}, mark)
    return documents | {
        path.stem: dataclasses.replace(documents[path.stem], units=load_array(path))
        for path in folder.glob("*.npy")
    }


def _collect_spans(source: Corpus) -> dict[str, np.ndarray]:
    """Returns the annotated spans of each split, in document order: begin, end, bit, int64 [n, 3].

    Raises:
      ValueError: as `Source.spans`.
    """
    found: dict[str, list[tuple[int, int, int]]] = {split: [] for split in source.splits}
    passed, bits = dict.fromkeys(found, 0), UNITS | TURNS
    for document, spans in source.source.spans() if source.source.spans else ():
        split = assign_split(document, source.valid_rate)
        if not spans:  # most corpora have no spans, and counting is slow
            passed[split] += len("".join(document.split()))
            continue
        before = passed[split] + _count_text(document)
        found[split] += [(before[begin], before[end], bits[kind]) for begin, end, kind in spans]
        passed[split] = int(before[-1])
    return {split: np.array(rows, np.int64).reshape(-1, 3) for split, rows in found.items()}


def _mark_units(
    tokens: np.ndarray, documents: Iterable[str], tokenizer: tokenizers.Tokenizer, spans: np.ndarray
) -> np.ndarray:
    """Returns `units`, uint8 [num_tokens]: bits of continued spans, and the speaker of each token.

    A token belongs to a span if one of its characters does. `documents` have one sentence a line;
    `spans` come from `_collect_spans`.
    """
    units = np.zeros(len(tokens), np.uint8)
    place = passed = 0
    documents = iter(documents)
    while batch := [*itertools.islice(documents, UNITS_BATCH)]:
        texts = [" " * (k > 0) + x for d in batch for k, x in enumerate(d.split("\n"))]
        starts, ids, (begins, ends, _) = tokenizer.encode_aligned(texts)
        assert np.array_equal(ids, tokens[place : place + len(ids)])
        before = passed + _count_text("".join(texts))
        offsets = np.repeat(np.cumsum([0, *map(len, texts[:-1])]), np.diff(starts))
        begins, ends = before[begins + offsets], before[ends + offsets]
        for begin, end, bit in spans[slice(*np.searchsorted(spans[:, 0], (passed, before[-1])))]:
            first, stop = np.searchsorted(ends, begin, "right"), np.searchsorted(begins, end)
            units[place + first : place + stop] |= np.uint8(bit // SPEAKER * SPEAKER)
            units[place + first + 1 : place + stop] |= np.uint8(bit % SPEAKER)
        place, passed = place + len(ids), int(before[-1])
    return units


def _count_text(text: str) -> np.ndarray:
    """Counts the non-white characters before each place: int64 [len(text) + 1].

    This count locates spans, because sentences keep exactly the non-white characters.
    """
    is_space = np.fromiter(map(str.isspace, text), bool, len(text))
    return np.append(0, np.cumsum(~is_space))


def read_sentences(path: Path, tick: Callable[[int], object]) -> Iterator[str]:
    """Streams the documents of a file in `Sentences.folder`, a sentence a line."""
    for block in _blocks(path):
        yield from filter(None, block.decode("utf-8").split("\n\n"))
        tick(len(block))


def _blocks(path: Path) -> Iterator[bytes]:
    """Streams whole documents, some megabytes at a time."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            block = rest + block
            end = block.rfind(b"\n\n") + 2
            if end >= 2:
                yield block[:end]
                block = block[end:]
            rest = block
    assert not rest  # an empty line ends the last document


def _encode(text: Sentences, split: str, tokenizer_dir: Path, into: Path) -> None:
    """Writes the arrays of `Documents` of a split.

    A sentence is encoded with the space that joins it to the one before, so the tokens of a
    document's sentences are those of the document.
    """
    path = text.folder / f"{split}.txt"
    large = tokenizers.Tokenizer.load(tokenizer_dir).vocab_size > 1 << 16
    types = _ARRAYS | ({"tokens": np.uint32} if large else {})
    with contextlib.ExitStack() as stack:
        tokens, sentence_starts, sentence_bytes, document_starts = (
            stack.enter_context(ArrayWriter(into / f"{split}.{name}.npy", dtype))
            for name, dtype in types.items()
        )
        size = path.stat().st_size
        tick = stack.enter_context(show_bar(f"tokens ({split})", size, show=text.progress))
        sentence_starts.append(np.zeros(1))
        document_starts.append(np.zeros(1))
        encoder = functools.partial(parallel.encode_block, tokenizer_dir)
        for made in parallel.work(encoder, _blocks(path), text.workers(size)):
            sentence_starts.append(tokens.length + np.cumsum(made.num_tokens))
            document_starts.append(sentence_bytes.length + np.cumsum(made.num_sentences))
            sentence_bytes.append(made.num_bytes)
            tokens.append(made.tokens)
            tick(made.size)
    parallel.open_encoder.cache_clear()  # returns its memory
