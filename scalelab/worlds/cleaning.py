"""C4's cleaning and deduplication: Raffel et al. 2020, 2.2.

The rules of a page's length and language, and the list of bad words, are left out.
"""

from collections.abc import Sequence

ENDS = (".", "!", "?", '"', "\N{RIGHT DOUBLE QUOTATION MARK}")
FEWEST_WORDS = 5  # in a line
SPAN = 3  # sentences that are compared


def clean(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a page that end as a sentence does, without menus and warnings.

    A page with "lorem ipsum" or a brace has none. A line has a terminal punctuation mark at its
    end, at least five words, and not the word "javascript".
    """
    page = "\n".join(lines).lower()
    if any(mark in page for mark in ("lorem ipsum", "{", "}")):
        return []
    return [
        line
        for line in lines
        if line.rstrip().endswith(ENDS)
        and len(line.split()) >= FEWEST_WORDS
        and "javascript" not in line.lower()
    ]


def deduplicate(documents: Sequence[Sequence[str]]) -> list[list[str]]:
    """Discards all but the first of any three sentences in a row that occur more than once.

    A sentence of two spans stays if one of them is such a first one.

    Args:
      documents: the sentences of each document.

    Returns:
      The sentences that stay of each document.
    """
    firsts: dict[tuple[str, ...], tuple[int, int]] = {}
    first, repeated = ([[False] * len(document) for document in documents] for _ in range(2))
    for number, document in enumerate(documents):
        for at in range(len(document) - SPAN + 1):
            home, begin = firsts.setdefault(tuple(document[at : at + SPAN]), (number, at))
            if (home, begin) != (number, at):
                repeated[number][at : at + SPAN] = [True] * SPAN
                first[home][begin : begin + SPAN] = [True] * SPAN
    return [
        [text for text, kept, again in zip(*of_each, strict=True) if kept or not again]
        for of_each in zip(documents, first, repeated, strict=True)
    ]
