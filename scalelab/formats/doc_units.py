"""DOC-UNITS: DOC-SENTENCES, its tokens marked with the words, phrases and entities of the text.

Sun et al. 2019, "ERNIE: Enhanced Representation through Knowledge Integration", 3.2, find phrases
and entities by tools for Chinese that are not published. A corpus with spans (`jsonl`) marks its
phrases and entities. In other corpora they are found without labels:

| unit | definition |
|---|---|
| word | pieces that the tokenizer joins; only `wordpiece` makes punctuation a word |
| phrase | a run of words in which each two adjacent words are a collocation |
| entity | a run of words that begin with a capital |

A pair of words is a collocation if it occurs `min_count` times in the training text, and its
pointwise mutual information, log(n(ab) n / (n(a) n(b))) of n words, is `min_pmi` or more. A capital
at the start of a sentence counts only if that piece occurs inside sentences more often than at
their start ("Paris", not "The"). Words like the "of" in "House of Lords" end an entity. Statistics
come from the first LEARN_TOKENS training tokens. A unit is inside one sentence; runs are cut after
`max_words` words.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated

import numpy as np

from scalelab.config.fields import Count
from scalelab.formats import (
    COMMON,
    ENTITY,
    PHRASE,
    WORD,
    Array,
    Documents,
    Examples,
    Pieces,
    doc_sentences,
    draws,
)

VERSION = 2
ARRAYS = (*COMMON, Array("units", "ragged", "uint8"))
LEARN_TOKENS = 1 << 23
BLOCK_TOKENS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    min_count: Count = 10  # minimum occurrences of a collocation in the training text
    # Minimum pointwise mutual information of a collocation, in nats.
    min_pmi: Annotated[float, ("a number", lambda value: value == value)] = 3.0
    max_words: Count = 5  # maximum words of a phrase or an entity


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of some sentences."""

    tokens: slice  # range of its tokens in the split
    joined: np.ndarray  # bool [num_tokens], pieces that continue a word
    first: np.ndarray  # int64 [n], place of each word's first piece among the tokens
    pieces: np.ndarray  # [n], ids of the first pieces
    opens: np.ndarray  # bool [n], first words of sentences
    keys: np.ndarray  # uint64 [n], hashes of the words

    @property
    def pairs(self) -> np.ndarray:
        """Hashes of each word with the word before it, uint64 [n - 1]."""
        return draws.mix(self.keys[:-1]) + self.keys[1:]


@dataclasses.dataclass(frozen=True)
class Learned:
    """Statistics of the training text that mark units."""

    collocations: np.ndarray  # hashes of pairs, uint64, ascending
    opening: np.ndarray  # bool [V], pieces that mostly begin sentences


def annotate(
    documents: Mapping[str, Documents], tokenizer: Pieces, options: Options
) -> dict[str, Documents]:
    """Returns the documents of all splits with `units` marked."""
    inside = np.frombuffer(tokenizer.joins, np.uint8)
    is_capital = np.frombuffer(tokenizer.capitals, np.uint8) > 0
    given = documents["train"].units is not None
    learned = None if given else learn(documents["train"], inside, options)
    made = {}
    for split, text in documents.items():
        units = np.zeros(len(text.tokens), np.uint8) if text.units is None else np.array(text.units)
        for words in split_words(text, inside):
            units[words.tokens] |= WORD * words.joined.astype(np.uint8)
            if learned is not None:
                units[words.tokens] |= _mark(words, learned, is_capital, options.max_words)
        made[split] = dataclasses.replace(text, units=units)
    return made


def split_words(documents: Documents, joins: np.ndarray) -> Iterator[Words]:
    """Yields the words of about BLOCK_TOKENS tokens at a time.

    Args:
      documents: a split.
      joins: [V] uint8, as `Tokenizer.joins`.
    """
    starts = np.asarray(documents.sentence_starts)
    cuts = np.flatnonzero(np.diff(starts // BLOCK_TOKENS)) + 1
    for begin, end in zip([0, *cuts], [*cuts, len(starts) - 1], strict=True):
        part = slice(int(starts[begin]), int(starts[end]))
        tokens, sentences = np.asarray(documents.tokens[part]), starts[begin:end] - starts[begin]
        if not len(tokens):
            continue
        joined = np.zeros(len(tokens), bool)
        joined[1:] = (joins[tokens[1:]] & 1 | joins[tokens[:-1]] & 2) > 0
        joined[sentences] = False
        first = np.flatnonzero(~joined)
        places = np.arange(len(tokens)) - np.maximum.accumulate(
            np.where(joined, 0, np.arange(len(tokens)))
        )
        keys = np.add.reduceat(draws.bits(tokens.astype(np.uint64), places), first)
        yield Words(part, joined, first, tokens[first], np.isin(first, sentences), keys)


def learn(documents: Documents, joins: np.ndarray, options: Options) -> Learned:
    """Counts words and pairs of the first LEARN_TOKENS tokens.

    Args:
      documents: of the split "train".
      joins: [V] uint8, as `Tokenizer.joins`.
      options: thresholds of collocations.
    """
    blocks = []
    for words in split_words(documents, joins):
        blocks.append(words)
        if words.tokens.stop >= LEARN_TOKENS:
            break
    keys = np.concatenate([words.keys for words in blocks])
    within = [~words.opens[1:] for words in blocks]
    pairs = np.concatenate([w.pairs[inner] for w, inner in zip(blocks, within, strict=True)])
    left, right = (
        np.concatenate([w.keys[part][inner] for w, inner in zip(blocks, within, strict=True)])
        for part in (slice(-1), slice(1, None))
    )
    known, counts = np.unique(keys, return_counts=True)
    found, at, together = np.unique(pairs, return_index=True, return_counts=True)
    alone = [counts[np.searchsorted(known, side[at])] for side in (left, right)]
    pmi = np.log(together) + np.log(len(keys)) - np.log(alone[0]) - np.log(alone[1])
    opening, inner = (
        sum(np.bincount(w.pieces[w.opens == side], minlength=len(joins)) for w in blocks)
        for side in (True, False)
    )
    is_collocation = (together >= options.min_count) & (pmi >= options.min_pmi)
    return Learned(found[is_collocation], np.asarray(opening >= inner))


def _mark(words: Words, learned: Learned, is_capital: np.ndarray, max_words: int) -> np.ndarray:
    """Returns the phrases and entities of a block, uint8 [num_tokens]."""
    units = np.zeros(len(words.joined), np.uint8)
    within = ~words.opens[1:]
    is_name = is_capital[words.pieces] & ~(words.opens & learned.opening[words.pieces])
    for bit, linked in (
        (PHRASE, within & np.isin(words.pairs, learned.collocations)),
        (ENTITY, within & is_name[1:] & is_name[:-1]),
    ):
        linked = np.append(False, linked)
        places = np.arange(len(linked))
        begins = np.maximum.accumulate(np.where(linked, 0, places))
        units[words.first[linked & ((places - begins) % max_words > 0)]] |= bit
    return units


def build(documents: Documents, *, options: Options | None = None, **given) -> Iterator[Examples]:
    """Yields examples as `doc_sentences.build`; without `units` each token is a unit."""
    del options
    if documents.units is None:
        none = np.zeros(len(documents.tokens), np.uint8)
        documents = dataclasses.replace(documents, units=none)
    return doc_sentences.build(documents, **given)
