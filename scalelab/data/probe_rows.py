"""Rows of two self-labelled probe tasks, made from documents.

same_document: are two passages from one document? swapped_words: were two words of a sentence
exchanged? No shortcut gives a label away:

- Rows come in groups that hold each class equally often and lie in one split. A group of
  swapped_words is a sentence in both versions, so the classes have the same words, lengths and
  endings. A group of same_document is a passage A and a later passage B of two documents, the two
  Bs equally long in words: AB, A'B' are the same, AB', A'B are not. Every passage is in one row of
  each class, and the pairs of lengths are those of the other class.
- B is later in its document than A in both classes, so openings meet no openings in one alone. The
  order of a group's passages is then drawn, for all its rows at once.
- A document is in one group. A sentence is used where it occurs first and nowhere else, so no text
  is on both sides of a pair, or in training and dev sets; case and spaces do not count.
- Between A and B lies at least one sentence: B never goes on where A stops.
- Exchanged words consist of lower-case letters, and are neither first nor last, so capitals and
  punctuation stay in place. They may be neighbours; they differ in more than case.
- White space is a single space everywhere: tabs and line breaks would break the files.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

VERSION = "1"  # of the rules above
DIFFERENT, SAME = ORIGINAL, SWAPPED = 0, 1  # classes of same_document and swapped_words
PASSAGE_WORDS = (16, 48)  # least and most words of a passage, in whole sentences
SENTENCE_WORDS = (8, 40)  # least and most words of a sentence that may be swapped
ROWS_MULTIPLE = 4  # the largest group of rows that belong together

Words = list[str]


class Row(NamedTuple):
    """An example: one text or two, and its class."""

    texts: tuple[str, ...]
    label: int


class Passage(NamedTuple):
    """Sentences `start` to `end` of a document, the latter excluded."""

    start: int
    end: int
    words: tuple[str, ...]


def draw(documents: Iterable[str], seed: int, share: float = 1.0) -> list[str]:
    """Draws a share of the documents, each text once, in an order by a seeded hash of the text."""
    key = seed.to_bytes(8, "little", signed=True)
    drawn: dict[int, str] = {}
    for document in documents:
        text = document.encode("utf-8", "surrogatepass")
        place = int.from_bytes(hashlib.blake2b(text, digest_size=8, key=key).digest())
        if place < share * 2**64:
            drawn[place] = document
    return [drawn[place] for place in sorted(drawn)]


def _fresh(documents: Iterable[str]) -> Iterator[list[Words | None]]:
    """Streams the sentences of each document; None for one that occurred before, anywhere."""
    seen: set[str] = set()
    for document in documents:
        sentences: list[Words | None] = []
        for line in document.split("\n"):
            words = line.split()
            sentences.append(None if _key(words) in seen else words)
            seen.add(_key(words))
        yield sentences


def _key(words: Iterable[str]) -> str:
    """Returns the same key for texts that differ only in case and spaces."""
    return " ".join(words).casefold()


def _versions(documents: Sequence[str], rng: np.random.Generator) -> Iterator[list[Row]]:
    """Streams a sentence of each document that has one, as it is and swapped."""
    least, most = SENTENCE_WORDS
    used: set[str] = set()
    for sentences in _fresh(documents):
        for at in rng.permutation(len(sentences)):
            words = sentences[at]
            other = swap(words, rng) if words and least <= len(words) <= most else None
            if words and other and not {_key(words), _key(other)} & used:
                used |= {_key(words), _key(other)}
                yield [Row((" ".join(words),), ORIGINAL), Row((" ".join(other),), SWAPPED)]
                break


def swap(words: Words, rng: np.random.Generator) -> Words | None:
    """Exchanges two words of a sentence; None if no two words qualify."""
    plain = [word.isalpha() and word == word.lower() for word in words]
    inner = [i for i in range(1, len(words) - 1) if plain[i]]
    pairs = [
        (i, j)
        for i, j in itertools.combinations(inner, 2)
        if words[i].casefold() != words[j].casefold()
    ]
    if not pairs:
        return None
    i, j = pairs[rng.integers(len(pairs))]
    other = list(words)
    other[i], other[j] = words[j], words[i]
    return other


def _crossings(documents: Sequence[str], rng: np.random.Generator) -> Iterator[list[Row]]:
    """Streams the four rows of two documents whose second passages are equally long."""
    waiting: dict[int, tuple[str, str]] = {}
    for sentences in _fresh(documents):
        found = two_passages(sentences, rng)
        if found is None:
            continue
        here = (" ".join(found[0].words), " ".join(found[1].words))
        there = waiting.pop(len(found[1].words), None)
        if there is None:
            waiting[len(found[1].words)] = here
            continue
        pairs = [(there, SAME), (here, SAME)]
        pairs += [((there[0], here[1]), DIFFERENT), ((here[0], there[1]), DIFFERENT)]
        turn = -1 if rng.integers(2) else 1
        yield [Row(texts[::turn], label) for texts, label in pairs]


def two_passages(
    sentences: Sequence[Words | None], rng: np.random.Generator
) -> tuple[Passage, Passage] | None:
    """Draws two passages of a document, the earlier first; None if there are no two.

    A sentence that no passage may contain is None.
    """
    least, most = PASSAGE_WORDS
    found = []  # from each sentence on, the shortest run of whole sentences that is long enough
    for start in range(len(sentences)):
        words: Words = []
        for end, more in enumerate(sentences[start:], start + 1):
            if more is None or len(words) + len(more) > most:
                break
            words += more
            if len(words) >= least:
                found.append(Passage(start, end, tuple(words)))
                break
    firsts = [passage for passage in found if passage.end < found[-1].start]
    if not firsts:
        return None
    first = firsts[rng.integers(len(firsts))]
    later = [passage for passage in found if first.end < passage.start]
    return first, later[rng.integers(len(later))]


# Task -> what streams its groups of rows, rows of a group, and the number of its random stream.
MAKERS = {"same_document": (_crossings, 4, 1), "swapped_words": (_versions, 2, 0)}


def make_rows(
    task: str, documents: Sequence[str], num_rows: Mapping[str, int], seed: int
) -> dict[str, list[Row]]:
    """Makes the splits of same_document or swapped_words from documents in the order of `draw`.

    `num_rows` is split -> number of rows; a split does not depend on those after it.

    Raises:
      ValueError: a number is no multiple of 4, or there are too few documents.
    """
    make_groups, group_rows, stream = MAKERS[task]
    rng = np.random.default_rng([seed, stream])
    groups = make_groups(documents, rng)
    made: dict[str, list[Row]] = {}
    for split, num in num_rows.items():
        if num < ROWS_MULTIPLE or num % ROWS_MULTIPLE:
            raise ValueError(f"num_{split}: expected a multiple of {ROWS_MULTIPLE}, got {num}")
        made[split] = list(itertools.chain(*itertools.islice(groups, num // group_rows)))
        if len(made[split]) < num:
            raise ValueError(
                f"{task}: {len(documents):,} different documents give {len(made[split]):,} rows of"
                f" {split}, not {num:,}: take a larger corpus, or make fewer rows"
            )
        rng.shuffle(made[split])
    return made
