"""SENTENCE-ORDER: `[CLS] A [SEP] B [SEP]`, where B follows A in the text, or A follows B.

Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
3.1. Both segments always come from one document, so the topic tells nothing about the label.

Pairs are cut by the rules of `segment_pair` for a B that follows A. Each pair is swapped with
probability 1/2 (the array `swapped`). A document with one sentence makes no pair. If one sentence
is left of a span, it is B, and A repeats the sentences before it. If the segments are too long, the
longer one is cut at its end, after the swap. A cut before the swap would always give A the odd
token of two long segments, and so reveal the label.

`dropped_tokens` counts the tokens that are cut and the tokens of documents with one sentence.
"""

from collections.abc import Iterator

import numpy as np

from scalelab.formats import COMMON, Array, Documents, Examples, Specials, assembly
from scalelab.formats.pairs import Choices, Options, Rates, choose_pairs, cut_spans, fit, segments

VERSION = 2
ARRAYS = (
    *COMMON,
    Array("second_starts"),  # index in the example where the second segment begins
    Array("swapped", dtype="int8"),  # label: 1 if the second segment comes first in the text
)
ALWAYS_FOLLOWS = Rates(random=0.0, only=0.0)


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    seed: int,
    document_ids: np.ndarray | None = None,
    options: Options | None = None,
) -> Iterator[Examples]:
    """Yields labeled pairs as `formats.Format.build`.

    The choices of an example depend on the seed and its first sentence alone.

    Raises:
      ValueError: no space for two tokens of text, or no document has two sentences.
    """
    room = assembly.room_for_text(specials, max_len, num_pieces=2, at_least=2)
    ids = assembly.select(documents, document_ids)
    if np.diff(documents.document_starts)[ids].max(initial=0) < 2:
        raise ValueError(
            "sentence_order needs documents of at least two sentences, and no document has them;"
            " use another corpus, or the format doc_sentences"
        )
    choices = Choices(seed, room, (options or Options()).short_rate)
    byte_offsets = assembly.count_bytes_before(documents)
    for chunk in assembly.split_into_chunks(documents, ids):
        block = assembly.lay_out(documents, chunk)
        pairs = choose_pairs(block, cut_spans(block, choices), choices, ALWAYS_FOLLOWS)
        pairs, left_out = pairs.select(block, ~pairs.is_only)
        first_a, length_a, first_b, length_b = segments(documents, block, pairs)
        swapped = choices.uniform("label", pairs.sentences) < 0.5

        first = np.stack(_swap(swapped, first_a, first_b), axis=1).reshape(-1)
        kept = fit(*_swap(swapped, length_a, length_b), room)
        plan = assembly.Plan(np.full(len(swapped), 2), first, np.stack(kept, axis=1).reshape(-1))
        kept_a, kept_b = _swap(swapped, *kept)
        cut = (length_a - kept_a)[~pairs.is_repeated].sum() + (length_b - kept_b).sum()
        second_starts = len(specials.begin) + kept[0] + len(specials.between)
        flat = {"second_starts": second_starts, "swapped": swapped}
        dropped = left_out + int(cut)
        yield from assembly.assemble(documents, plan, specials, byte_offsets, dropped, flat)


def _swap(swapped: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exchanges the values of the two segments in swapped pairs."""
    return np.where(swapped, b, a), np.where(swapped, a, b)
