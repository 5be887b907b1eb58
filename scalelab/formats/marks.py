"""Titles of documents, and sentences that begin with a discourse marker.

A title is a heading, such as "= = Early life = =", without the signs. A WikiText corpus keeps it as
the first sentence of its document (data.keep_headings).

Discourse markers are found as by Sileo et al. 2019, "Mining Discourse Markers for Unsupervised
Sentence Representation Learning", 2: a marker is the first words of a sentence, before a comma. The
paper finds 174 markers in the text and uses each equally often. Here there are six frequent markers
of different relations. The same number of sentences is drawn for each marker: the count of the
rarest marker in the training text. Other sentences with markers are plain text.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from scalelab.formats import Documents, Pieces, draws

MARKERS = ("However", "For example", "In addition", "As a result", "Therefore", "Meanwhile")
TITLE, NONE = len(MARKERS), -1


@dataclasses.dataclass(frozen=True)
class Marked(Documents):
    """Documents with marks of their sentences.

    `marks` is int8 [num_sentences, 3]: index in MARKERS, TITLE or NONE; number of tokens of the
    marker, or of the signs before a title; number of tokens of the signs after a title.
    """

    marks: np.ndarray | None = None


def mark(documents: Mapping[str, Documents], tokenizer: Pieces) -> dict[str, Documents]:
    """Marks the sentences of all splits; the split "train" gives the frequencies of markers."""
    found = {split: _find(text, tokenizer) for split, text in documents.items()}
    counts = np.bincount(found["train"][:, 0] + 1, minlength=TITLE + 1)[1 : TITLE + 1]
    rates = counts.min() / np.maximum(counts, 1)
    for marks in found.values():
        (at,) = np.nonzero((marks[:, 0] >= 0) & (marks[:, 0] < TITLE))
        left_out = at[draws.uniform(draws.key(0), at) >= rates[marks[at, 0]]]
        marks[left_out] = NONE, 0, 0
    return {
        split: Marked(**vars(text) | {"marks": found[split]}) for split, text in documents.items()
    }


def read(documents: Documents, sentences: np.ndarray) -> np.ndarray:
    """Returns the marks of sentences, int64 [n, 3]: NONE if `mark` did not read the documents.

    Args:
      documents: a split.
      sentences: [n] int, indices.
    """
    if isinstance(documents, Marked) and documents.marks is not None:
        return documents.marks[sentences].astype(np.int64)
    return np.tile([NONE, 0, 0], (len(sentences), 1))


def _find(documents: Documents, tokenizer: Pieces) -> np.ndarray:
    """Finds titles and markers; returns `Marked.marks`."""
    starts, tokens = np.asarray(documents.sentence_starts), documents.tokens
    begins, ends = starts[:-1], starts[1:]
    made = np.full((len(begins), 3), [NONE, 0, 0], np.int8)
    for k, marker in enumerate(MARKERS):
        for text in (f" {marker},", f" {marker} ,"):  # the second text is for WikiText's spaces
            ids = _encode(tokenizer, text)
            (at,) = np.nonzero((ends - begins > len(ids)) & (len(ids) > 0))
            for place, piece in enumerate(ids):
                at = at[tokens[begins[at] + place] == piece]
            made[at] = k, len(ids), 0

    signs, homes = _encode(tokenizer, "= ="), np.asarray(documents.document_starts)
    first = homes[:-1][np.diff(homes) > 1]  # the only sentence of a document is text
    sizes = ends[first] - begins[first]
    before, after = np.zeros_like(sizes), np.zeros_like(sizes)
    for count, edge, step in ((before, begins[first], 1), (after, ends[first] - 1, -1)):
        more = np.ones(len(first), bool)
        while more.any():
            more &= count < sizes
            more[more] = np.isin(tokens[(edge + step * count)[more]], signs)
            count += more
    is_title = (before > 0) & (after > 0) & (before + after < sizes)
    made[first[is_title]] = np.stack([np.full_like(before, TITLE), before, after], 1)[is_title]
    return made


def _encode(tokenizer: Pieces, text: str) -> np.ndarray:
    """Encodes a text; returns no ids if a piece is not in the vocabulary."""
    ids = tokenizer.encode(text)
    return ids[:0] if np.isin(ids, tokenizer.special_ids.get("unk", -1)).any() else ids
