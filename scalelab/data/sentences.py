"""Documents into natural sentences.

Ordinary prose goes through nupunkt, a maintained Punkt (Kiss and Strunk 2006) that needs no model
download. Text in WikiText's `.tokens` and `.raw` layout is Moses-tokenised: its full stops stand
alone, which Punkt has never seen, so such paragraphs are cut at the standing-alone stops.
"""

import functools
import importlib.metadata
import re

VERSION = "1"  # version of the rules below; part of the cache's key

_STOPS = (".", "?", "!")
_CLOSERS = (")", "]", "}", "”", "’", "»", "''")
_STANDALONE = re.compile(r"(?<!\S)(?:[.,?!;()\"]|@[-,.]@)(?!\S)")
# Four letters before a full stop: Moses leaves abbreviations whole.
_ATTACHED = re.compile(r"(?:\w[,?!;]|[a-z]{4}\.)(?!\S)")


def version() -> str:
    """Returns the version of the segmentation: these rules and the library's release."""
    return f"{VERSION}, nupunkt {importlib.metadata.version('nupunkt')}"


def split(document: str) -> list[str]:
    """Splits a document, paragraphs joined by line breaks, into its sentences.

    Every character is kept except white space between sentences; none is empty, has white space at
    its ends or a line break in it.

    >>> split("It rained. Dr. Smith left.")
    ['It rained.', 'Dr. Smith left.']
    """
    sentences = []
    for paragraph in filter(None, map(str.strip, document.split("\n"))):
        cut = _split_moses if is_moses(paragraph) else _split_prose
        sentences.extend(cut(paragraph))
    return sentences


def is_moses(paragraph: str) -> bool:
    """Returns True for a Moses-tokenised paragraph: most of its punctuation stands alone."""
    standalone = sum(1 for _ in _STANDALONE.finditer(paragraph))
    return standalone > 0 and standalone > sum(1 for _ in _ATTACHED.finditer(paragraph))


def _split_prose(paragraph: str) -> list[str]:
    pieces, start = [], 0
    for _, end in _punkt().span_tokenize(paragraph):
        pieces.append(paragraph[start:end].strip())
        start = end
    pieces.append(paragraph[start:].strip())
    return [piece for piece in pieces if piece]


@functools.cache
def _punkt():
    import nupunkt  # takes a moment, and only preparation needs it

    return nupunkt.load("default")


def _split_moses(paragraph: str) -> list[str]:
    """Cuts after a stop that stands alone and the quotes and brackets that close behind it.

    A straight double quote looks the same on both sides, so it closes if it is the second of a
    pair; pairs are counted over the paragraph, because a quotation may hold several sentences. A
    single one is counted within its sentence, because it is an apostrophe as well.
    """
    words = paragraph.split(" ")
    sentences: list[str] = []
    start = double = single = 0
    at = 0
    while at < len(words):
        word = words[at]
        double += word == '"'
        single += word == "'"
        at += 1
        if word not in _STOPS:
            continue
        while at < len(words):
            word = words[at]
            closes_double = word == '"' and double % 2 == 1
            closes_single = word == "'" and single % 2 == 1
            if not (word in _STOPS or word in _CLOSERS or closes_double or closes_single):
                break
            double += closes_double
            single += closes_single
            at += 1
        sentences.append(" ".join(words[start:at]))
        start, single = at, 0
    sentences.append(" ".join(words[start:]))
    return [stripped for sentence in sentences if (stripped := sentence.strip())]
