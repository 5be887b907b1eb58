"""The spans of an annotated corpus as units of its tokens.

Places are counted in characters that are not white space: sentences keep these and no others.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from scalelab.data.corpora import TURNS, UNITS, Corpus, assign_split
from scalelab.data.tokenizers import Tokenizer
from scalelab.formats import SPEAKER

VERSION = 1  # of the marks
BATCH = 64  # documents that are encoded at a time


def collect(source: Corpus) -> dict[str, np.ndarray]:
    """Returns the spans of each split in its order: begin, end and bit, int64 [n, 3].

    Raises:
      ValueError: as `Source.spans`.
    """
    found: dict[str, list[tuple[int, int, int]]] = {split: [] for split in source.splits}
    passed, bits = dict.fromkeys(found, 0), UNITS | TURNS
    for document, spans in source.source.spans() if source.source.spans else ():
        split = assign_split(document, source.settings.valid_rate)
        if not spans:  # most corpora have none, and counting at each place takes long
            passed[split] += len("".join(document.split()))
            continue
        before = passed[split] + _count_text(document)
        found[split] += [(before[begin], before[end], bits[kind]) for begin, end, kind in spans]
        passed[split] = int(before[-1])
    return {split: np.array(rows, np.int64).reshape(-1, 3) for split, rows in found.items()}


def mark(
    tokens: np.ndarray, documents: Iterable[str], tokenizer: Tokenizer, spans: np.ndarray
) -> np.ndarray:
    """Marks the tokens that continue a span, and the speakers of all: units, uint8 [num_tokens].

    A token belongs to a span if it has a character of it. `documents` have a sentence a line;
    `spans` are those of `collect`.
    """
    units = np.zeros(len(tokens), np.uint8)
    place = passed = 0
    documents = iter(documents)
    while batch := [*itertools.islice(documents, BATCH)]:
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
    """Counts the characters that are not white space before each place: int64 [len(text) + 1]."""
    is_space = np.fromiter(map(str.isspace, text), bool, len(text))
    return np.append(0, np.cumsum(~is_space))
