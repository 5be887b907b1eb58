"""SENTENCE-TASKS: examples with labels for ERNIE 2.0's tasks on words and on document structure.

Sun et al. 2020, "ERNIE 2.0: A Continual Pre-training Framework for Language Understanding", 4.2.
Texts are strung together as by `doc_sentences`, units are those of `doc_units`. Each example draws
its kind:

| kind | text | label (-1: another kind) |
|---|---|---|
| reorder | three parts of a text, in one of 3! orders | `order`: place in `ORDERS` |
| distance | A, and a B of whole sentences that fit | `distance`: 0: B follows A |
| | | 1: B stands elsewhere in the document; 2: in another one |
| plain | a text | |

A text of fewer than three whole sentences is not reordered. It makes no distance if it has one
sentence, or if there is no other place or document. A sentence that the maximum length would cut is
left out of both kinds: it would tell where the text ends. B has the same rule for each label.

`word_labels` [T] has the bits TEXT (the token is not special), CAPITAL (of a word that begins with
a capital) and ELSEWHERE (the token occurs in its document outside the example; 4.2.1).
`dropped_tokens` counts what is cut off texts, and an own B that another one replaces.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from scalelab.config.fields import Share
from scalelab.formats import (
    CAPITAL,
    Array,
    Documents,
    Examples,
    Ragged,
    Specials,
    assembly,
    doc_sentences,
    doc_units,
    draws,
)

VERSION = 1
ARRAYS = (
    *doc_units.ARRAYS,
    Array("word_labels", "ragged", "uint8"),
    Array("second_starts"),  # index in the example where B begins; max_len: there is none
    Array("order", dtype="int8"),
    Array("distance", dtype="int8"),
)
ORDERS = np.array([*itertools.permutations(range(3))])
ELSEWHERE, TEXT = 1, 128  # bits of `word_labels`, beside CAPITAL
UNIT_BITS = CAPITAL - 1


@dataclasses.dataclass(frozen=True)
class Options(doc_units.Options):
    """Those of `doc_units`, and the shares of the examples by kind; the rest is plain."""

    reorder_rate: Share = 1 / 3
    distance_rate: Share = 1 / 3


def annotate(
    documents: Mapping[str, Documents], joins: bytes, capitals: bytes, options: Options
) -> dict[str, Documents]:
    """Marks units as `doc_units` does, and the words that begin with a capital."""
    made = doc_units.annotate(documents, joins, capitals, options)
    is_capital = np.frombuffer(capitals, np.uint8) > 0
    for text in made.values():
        assert text.units is not None
        for words in doc_units.split_words(text, np.frombuffer(joins, np.uint8)):
            sizes = np.diff(np.append(words.first, len(words.joined)))
            text.units[words.tokens] |= CAPITAL * np.repeat(is_capital[words.pieces], sizes).astype(
                np.uint8
            )
    return made


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    seed: int,
    document_ids: np.ndarray | None = None,
    options: Options | None = None,
) -> Iterator[Examples]:
    """Formats documents as `formats.Format.build` says.

    The other document of a B is one of those that are planned at the same time.
    """
    room = assembly.room_for_text(specials, max_len, num_pieces=3, at_least=3)
    units = np.zeros(len(documents.tokens), np.uint8)
    units |= np.uint8(TEXT) | (0 if documents.units is None else np.asarray(documents.units))
    documents = dataclasses.replace(documents, units=units)
    byte_offsets = assembly.count_bytes_before(documents)
    before_b = len(specials.begin) + len(specials.between)
    for block, at, ends in doc_sentences.string_together(documents, document_ids, room):
        made = _choose(block, at, ends, room, seed, options or Options())
        own = made.lengths.sum(axis=1) - np.where(made.distance > 0, made.lengths[:, 1], 0)
        dropped = int((block.offsets[ends] - block.offsets[at] - own).sum())
        used = made.lengths > 0
        first, length = made.sentences[used], made.lengths[used]
        starts = np.asarray(documents.sentence_starts)[block.sentences[first]]
        plan = assembly.Plan(used.sum(axis=1), starts, length)
        second = np.where(made.distance >= 0, before_b + made.lengths[:, 0], max_len)
        flat = {"order": made.order, "distance": made.distance, "second_starts": second}
        elsewhere = _find_elsewhere(documents, block, block.offsets[first], plan)
        for chunk in assembly.assemble(documents, plan, specials, byte_offsets, dropped, flat):
            elsewhere = _add_labels(chunk, elsewhere)
            yield chunk


@dataclasses.dataclass(frozen=True)
class _Choice:
    """Up to three pieces of each example: first sentence in the block, tokens (0: none), [n, 3]."""

    sentences: np.ndarray
    lengths: np.ndarray
    order: np.ndarray
    distance: np.ndarray


def _choose(
    block: assembly.Block, at: np.ndarray, ends: np.ndarray, room: int, seed: int, options: Options
) -> _Choice:
    """Draws kind, label and pieces of the examples of sentences [at, ends)."""

    def below(stream: int, limit: np.ndarray | int) -> np.ndarray:
        return draws.below(draws.key(seed, stream), block.sentences[at], limit)

    offsets, begin, end = block.offsets, block.document_begins[at], block.document_ends[at]
    kind = draws.uniform(draws.key(seed, 0), block.sentences[at])
    count = np.minimum(np.searchsorted(offsets, offsets[at] + room, "right") - 1, ends) - at
    middle = at + np.maximum(count // 2, 1)
    own = middle + 1 - at  # sentences of A, and the one behind it
    places, others = end - begin - own, len(block) - (end - begin)
    to_order = (kind < options.reorder_rate) & (count >= 3)
    to_pair = (kind >= options.reorder_rate) & (count >= 2) & (places > 0) & (others > 0)
    to_pair &= kind < options.reorder_rate + options.distance_rate
    order, distance = below(1, len(ORDERS)), below(2, 3)

    edges = at[:, None] + count[:, None] * np.arange(4) // 3
    parts = np.take_along_axis(edges, ORDERS[order], axis=1)
    part_ends = np.take_along_axis(edges, ORDERS[order] + 1, axis=1)

    same, other = begin + below(3, np.maximum(places, 1)), below(4, np.maximum(others, 1))
    same += own * (same >= at)
    other += (end - begin) * (other >= begin)
    second = np.choose(distance, [middle, same, other]).clip(max=len(block) - 1)
    stop = np.where((distance == 1) & (second < at), at, block.document_ends[second])
    left = room - (offsets[middle] - offsets[at])
    stop = np.minimum(stop, np.searchsorted(offsets, offsets[second] + left, "right") - 1)
    length = np.minimum(offsets[np.maximum(stop, second + 1)] - offsets[second], left)

    none = np.zeros_like(at)
    pair = np.stack([at, second, none], 1), np.stack([room - left, length, none], 1)
    text = np.stack([np.minimum(offsets[ends] - offsets[at], room), none, none], 1)
    choose = to_order[:, None], to_pair[:, None]
    return _Choice(
        np.select(choose, [parts, pair[0]], np.stack([at, none, none], 1)),
        np.select(choose, [offsets[part_ends] - offsets[parts], pair[1]], text),
        np.where(to_order, order, -1),
        np.where(to_pair, distance, -1),
    )


def _find_elsewhere(
    documents: Documents, block: assembly.Block, places: np.ndarray, plan: assembly.Plan
) -> np.ndarray:
    """Returns which tokens of the plan occur in their document outside their example: bool.

    `places` are those of the pieces in the block.
    """
    starts = np.asarray(documents.sentence_starts)[block.sentences]
    sizes = np.diff(block.offsets)
    tokens = np.asarray(documents.tokens)[assembly.ranges(starts, sizes)].astype(np.int64)
    pairs = np.repeat(block.document_begins, sizes) << 32 | tokens
    _, pairs, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    here = pairs[assembly.ranges(places, plan.length)]
    examples = np.repeat(np.arange(len(plan.num_pieces)), plan.num_pieces)
    own = np.repeat(examples, plan.length) * len(counts) + here
    _, own, within = np.unique(own, return_inverse=True, return_counts=True)
    return counts[here] > within[own]


def _add_labels(chunk: Examples, elsewhere: np.ndarray) -> np.ndarray:
    """Adds `word_labels` to a chunk; returns the rest of `elsewhere`."""
    units, starts = chunk.ragged["units"]
    is_text = units & TEXT > 0
    labels = units & np.uint8(TEXT | CAPITAL)
    labels[is_text] |= ELSEWHERE * elsewhere[: is_text.sum()].astype(np.uint8)
    chunk.ragged |= {
        "units": Ragged(units & np.uint8(UNIT_BITS), starts),
        "word_labels": Ragged(labels, starts),
    }
    return elsewhere[is_text.sum() :]
