"""A stream of documents into lines of sentences."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from scalelab.data import _workers, sentences

CHUNK_CHARS = 1 << 20

Labelled = tuple[str, str]  # split, document


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
    return _workers.work(f"{__name__}:segmenter", (), _chunks(documents), num_workers)


def segmenter() -> Callable[[list[Labelled]], dict[str, Segmented]]:
    """What a worker does."""
    return segment


def segment(documents: list[Labelled]) -> dict[str, Segmented]:
    """Cuts documents into sentences, for each split that occurs."""
    lines: dict[str, list[str]] = {}
    made: dict[str, Segmented] = {}
    for split, document in documents:
        whole = made.setdefault(split, Segmented(b"", 0, 0))
        if found := sentences.split(document):
            whole.num_documents += 1
            whole.num_sentences += len(found)
            lines.setdefault(split, []).extend([*found, ""])
    for split, each in lines.items():
        made[split].text = ("\n".join(each) + "\n").encode("utf-8")
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
