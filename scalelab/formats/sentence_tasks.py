"""SENTENCE-TASKS: examples with labels for ERNIE 2.0's tasks on words and on document structure.

Sun et al. 2020, "ERNIE 2.0: A Continual Pre-training Framework for Language Understanding", 4.2.
Texts are made as in `doc_sentences`, units as in `doc_units`. Each example draws its kind:

| kind | text | label (-1: another kind) |
|---|---|---|
| reorder | three parts of a text, in one of 3! orders | `order`: place in `ORDERS` |
| distance | A, and a B of whole sentences that fit | `distance`: 0: B follows A |
| | | 1: B is elsewhere in the document; 2: B is in another document |
| relevance | a title, and a text | `title`: 0: the text's own title; 1: another document's |
| discourse | A, and the text after a marker | `marker`: index in `marks.MARKERS` |
| plain | a text | |

`reorder` needs three whole sentences. `distance` needs two, another place in the document and
another document. `relevance` needs a title (`data.keep_headings`). A text with a marker between two
sentences becomes `discourse` with probability `discourse_rate`; the other texts draw another kind.

Lengths do not reveal the label. Only plain texts end with a cut sentence. The length of B follows
the same rule for each label; after a marker, B has the space that the longest marker leaves. The
"other" title of a text is the title of another text, so each title is used equally often as both.

`word_labels` [T] has the bits TEXT (the token is not special), CAPITAL (of a word that begins with
a capital) and ELSEWHERE (the token occurs in its document outside the example; 4.2.1).
Titles are in examples of relevance only. `dropped_tokens` counts tokens cut off texts, titles,
markers, and each own B that another B replaces.

Departs from the paper (4.2.3): the paper's relevance has three classes (users of a search engine
chose the title, saw it, or did not see it); no public corpus separates the first two. The paper's
discourse pairs are single sentences of Sileo et al. 2019; here they are texts of the corpus.
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
    Pieces,
    Ragged,
    Specials,
    assembly,
    doc_sentences,
    doc_units,
    draws,
    marks,
)

VERSION = 2
ARRAYS = (
    *doc_units.ARRAYS,
    Array("word_labels", "ragged", "uint8"),
    Array("second_starts"),  # index in the example where B begins; max_len: there is none
    Array("order", dtype="int8"),
    Array("distance", dtype="int8"),
    Array("title", dtype="int8"),
    Array("marker", dtype="int8"),
)
ORDERS = np.array([*itertools.permutations(range(3))])
ELSEWHERE, TEXT = 1, 128  # bits of `word_labels`, besides CAPITAL
UNIT_BITS = CAPITAL - 1


@dataclasses.dataclass(frozen=True)
class Options(doc_units.Options):
    """The options of `doc_units`, and the shares of kinds; the other examples are plain."""

    reorder_rate: Share = 1 / 4
    distance_rate: Share = 1 / 4
    relevance_rate: Share = 1 / 4
    discourse_rate: Share = 1.0  # share of the texts with a marker


def annotate(
    documents: Mapping[str, Documents], tokenizer: Pieces, options: Options
) -> dict[str, Documents]:
    """Marks units (as `doc_units`), words that begin with a capital, titles and markers."""
    made = doc_units.annotate(documents, tokenizer, options)
    is_capital = np.frombuffer(tokenizer.capitals, np.uint8) > 0
    for text in made.values():
        assert text.units is not None
        for words in doc_units.split_words(text, np.frombuffer(tokenizer.joins, np.uint8)):
            sizes = np.diff(np.append(words.first, len(words.joined)))
            text.units[words.tokens] |= CAPITAL * np.repeat(is_capital[words.pieces], sizes).astype(
                np.uint8
            )
    return marks.mark(made, tokenizer)


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    seed: int,
    document_ids: np.ndarray | None = None,
    options: Options | None = None,
) -> Iterator[Examples]:
    """Yields examples as `formats.Format.build`.

    The other document of a B comes from the same block.
    """
    room = assembly.room_for_text(specials, max_len, num_pieces=3, at_least=3)
    units = np.zeros(len(documents.tokens), np.uint8)
    units |= np.uint8(TEXT) | (0 if documents.units is None else np.asarray(documents.units))
    documents = dataclasses.replace(documents, units=units)
    byte_offsets = assembly.count_bytes_before(documents)
    before_b = len(specials.begin) + len(specials.between)
    for block, at, ends in doc_sentences.string_together(documents, document_ids, room):
        marked = marks.read(documents, block.sentences)
        at = at + (marked[at, 0] == marks.TITLE)
        texts = _Texts(block, at[at < ends], ends[at < ends], marked, room, seed)
        labels, (sentences, skips, lengths) = _choose(texts, options or Options())
        foreign = lengths[labels["distance"] > 0, 1], lengths[labels["title"] >= 0, 0]
        dropped = int(block.offsets[-1] - lengths.sum() + sum(x.sum() for x in foreign))
        used = lengths > 0
        starts = np.asarray(documents.sentence_starts)[block.sentences[sentences]] + skips
        plan = assembly.Plan(used.sum(axis=1), starts[used], lengths[used])
        second = np.where(plan.num_pieces == 2, before_b + lengths[:, 0], max_len)
        flat = labels | {"second_starts": second}
        places = (block.offsets[sentences] + skips)[used]
        elsewhere = _find_elsewhere(documents, block, places, plan)
        for chunk in assembly.assemble(documents, plan, specials, byte_offsets, dropped, flat):
            elsewhere = _add_labels(chunk, elsewhere)
            yield chunk


@dataclasses.dataclass(frozen=True)
class _Texts:
    """The n texts of a block, without titles.

    Attributes:
      at, ends: first sentence of each text, and the sentence after its last, [n].
      marked: marks of the block's sentences, as in `marks.Marked.marks`.
      room: number of tokens that fit an example.
      seed: seed of all draws.
    """

    block: assembly.Block
    at: np.ndarray
    ends: np.ndarray
    marked: np.ndarray
    room: int
    seed: int

    @property
    def is_title(self) -> np.ndarray:
        """Marks the sentences of the block that are titles."""
        return self.marked[:, 0] == marks.TITLE

    @property
    def home(self) -> np.ndarray:
        """First sentence of each text's document: the title, if there is one."""
        return self.block.document_begins[self.at]

    @property
    def count(self) -> np.ndarray:
        """Returns the number of whole sentences of each text that fit into `room`."""
        return np.minimum(self.fit(self.at, self.room), self.ends) - self.at

    def uniform(self, stream: int) -> np.ndarray:
        """Draws a number in [0, 1) for each text."""
        return draws.uniform(draws.key(self.seed, stream), self.block.sentences[self.at])

    def below(self, stream: int, limit: np.ndarray | int) -> np.ndarray:
        """Draws an integer in [0, limit) for each text; 0 if limit is 0."""
        return (self.uniform(stream) * np.maximum(limit, 1)).astype(np.int64)

    def fit(self, first: np.ndarray, room: np.ndarray | int) -> np.ndarray:
        """Returns the end of the whole sentences from `first` on that fit into `room` tokens."""
        offsets = self.block.offsets
        return np.searchsorted(offsets, offsets[first] + room, "right") - 1

    def lay(self, *pieces: tuple[np.ndarray, np.ndarray | int, np.ndarray]) -> np.ndarray:
        """Stacks first sentence, skipped tokens and tokens of up to three pieces: [3, n, 3]."""
        made = np.zeros((3, len(self.at), 3), np.int64)
        for place, piece in enumerate(pieces):
            made[:, :, place] = np.broadcast_arrays(*piece)
        return made


# For each text: whether it can be of this kind, its label, and its pieces from `_Texts.lay`.
_Kind = tuple[np.ndarray, np.ndarray, np.ndarray]


def _choose(texts: _Texts, options: Options) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draws a kind for each text; returns the labels, each [n], and the pieces of `_Texts.lay`."""
    rates = np.cumsum([options.reorder_rate, options.distance_rate, options.relevance_rate])
    drawn = np.searchsorted(rates, texts.uniform(0), "right")
    is_marked = texts.uniform(5) < options.discourse_rate
    kinds = {
        "marker": (is_marked, _make_discourse(texts)),
        "order": (drawn == 0, _make_order(texts)),
        "distance": (drawn == 1, _make_distance(texts)),
        "title": (drawn == 2, _make_relevance(texts)),
    }
    offsets, free = texts.block.offsets, np.ones(len(texts.at), bool)
    size = np.minimum(offsets[texts.ends] - offsets[texts.at], texts.room)
    pieces, labels = texts.lay((texts.at, 0, size)), {}
    for name, (is_drawn, (able, label, own)) in kinds.items():
        taken = free & is_drawn & able
        labels[name] = np.where(taken, label, -1)
        pieces = np.where(taken[:, None], own, pieces)
        free &= ~taken
    return labels, pieces


def _make_order(texts: _Texts) -> _Kind:
    """Cuts each text into three parts in one of ORDERS."""
    offsets, order = texts.block.offsets, texts.below(1, len(ORDERS))
    edges = texts.at[:, None] + texts.count[:, None] * np.arange(4) // 3
    parts = np.take_along_axis(edges, ORDERS[order], axis=1)
    part_ends = np.take_along_axis(edges, ORDERS[order] + 1, axis=1)
    sizes = offsets[part_ends] - offsets[parts]
    return texts.count >= 3, order, texts.lay(*((parts[:, k], 0, sizes[:, k]) for k in range(3)))


def _make_distance(texts: _Texts) -> _Kind:
    """Cuts each text into A and B, or replaces B by another text."""
    block, offsets, at, home = texts.block, texts.block.offsets, texts.at, texts.home
    begin, end = home + texts.is_title[home], block.document_ends[at]
    middle = at + np.maximum(texts.count // 2, 1)
    own = middle + 1 - at  # number of sentences of A, plus the next one
    places, others = end - begin - own, len(block) - (end - home)
    distance = texts.below(2, 3)
    same, other = begin + texts.below(3, places), texts.below(4, others)
    same += own * (same >= at)
    other += (end - home) * (other >= home)
    second = np.choose(distance, [middle, same, other]).clip(max=len(block) - 1)
    second += texts.is_title[second]
    stop = np.where((distance == 1) & (second < at), at, block.document_ends[second])
    left = texts.room - (offsets[middle] - offsets[at])
    stop = np.minimum(stop, texts.fit(second, left))
    length = np.minimum(offsets[np.maximum(stop, second + 1)] - offsets[second], left)
    able = (texts.count >= 2) & (places > 0) & (others > 0)
    return able, distance, texts.lay((at, 0, texts.room - left), (second, 0, length))


def _make_relevance(texts: _Texts) -> _Kind:
    """Puts a title before each text: its own title, or the title of another document."""
    offsets, home = texts.block.offsets, texts.home
    relevance = texts.below(6, 2)
    titles = home[texts.is_title[home]]  # ascending; one entry for each text with a title
    first, last = (np.searchsorted(titles, home, side) for side in ("left", "right"))
    others = len(titles) - (last - first)
    other = texts.below(7, others)
    other += (last - first) * (other >= first)
    able = texts.is_title[home] & (others > 0)
    title = np.where(able & (relevance == 1), np.append(titles, 0)[other * able], home)
    _, before, after = texts.marked[title].T
    size = offsets[title + 1] - offsets[title] - before - after
    stop = np.minimum(texts.fit(texts.at, texts.room - size), texts.ends)
    length = offsets[stop] - offsets[texts.at]
    return able & (length > 0), relevance, texts.lay((title, before, size), (texts.at, 0, length))


def _make_discourse(texts: _Texts) -> _Kind:
    """Cuts each text at its first marker, and removes the marker."""
    offsets, at, (kinds, before, _) = texts.block.offsets, texts.at, texts.marked.T
    (found,) = np.nonzero((kinds != marks.NONE) & ~texts.is_title)
    second = np.append(found, len(kinds))[np.searchsorted(found, at, "right")]
    able = second < texts.ends
    second = np.where(able, second, at)
    size, longest = before[second], before[found].max(initial=0)
    stop = np.minimum(texts.fit(at, texts.room - longest + size), texts.ends)
    length = offsets[stop] - offsets[second] - size
    pieces = texts.lay((at, 0, offsets[second] - offsets[at]), (second, size, length))
    return able & (stop > second), kinds[second], pieces


def _find_elsewhere(
    documents: Documents, block: assembly.Block, places: np.ndarray, plan: assembly.Plan
) -> np.ndarray:
    """Returns which tokens of the plan occur in their document outside their example: bool.

    `places` are the indices of the pieces' first tokens in the block.
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
