"""Gold annotations of a sentence, from its derivation."""

from collections.abc import Mapping
from typing import Any

from scalelab.worlds import lexicon
from scalelab.worlds.lexicon import NUMBERS
from scalelab.worlds.pcfg import Tree

PHRASES = ("S", "NP", "BNP", "VP", "PP", "SBAR")
VERBAL = ("AUX", "PART", "VERB")


def annotate(tree: Tree) -> dict[str, Any]:
    """Returns the annotations of a sentence.

    Returns:
      words: the words.
      tags: a tag of Universal Dependencies for each word.
      chunks: B-NP, I-NP (base noun phrases), B-VP, I-VP (verbs with `not`) or O for each word
        (Ramshaw and Marcus 1995, "Text chunking using transformation-based learning").
      spans: [label, first word, end] of every phrase, in the order of the tree.
      tree: the tree as brackets, tags included.
      agreement: for each verb that agrees {"noun", "verb": indices of the words, "number",
        "attractors": number of nouns of the other number between them}.
    """
    tags: list[str] = []
    spans: list[list[Any]] = []
    agreement: list[dict[str, Any]] = []
    numbers: dict[int, str] = {}  # place of a noun -> its number

    def walk(part: Tree, head: int | None) -> int | None:
        """Annotates a part; returns the place of its head noun, if it is a noun phrase.

        `head` is the index of the noun that a verb without an own subject agrees with.
        """
        place = len(tags)
        if part.label not in PHRASES:
            tags.append(part.label)
            if part.label == "NOUN":
                numbers[place] = part.symbol[2]
                return place
            if part.label in ("VERB", "AUX") and part.symbol[-1] in NUMBERS:
                agreement.append({"noun": head, "verb": place, "number": part.symbol[-1]})
            return None
        span = [part.label, place, 0]
        spans.append(span)
        own = None
        for child in part.children:
            assert isinstance(child, Tree), child
            found = walk(child, head if own is None or part.label == "VP" else own)
            own = found if own is None else own
        span[2] = len(tags)
        return own if part.label in ("NP", "BNP") else None

    walk(tree, None)
    for pair in agreement:
        between = range(pair["noun"] + 1, pair["verb"])
        pair["attractors"] = sum(numbers.get(i, pair["number"]) != pair["number"] for i in between)
    agreement.sort(key=lambda pair: pair["verb"])
    chunks = [
        "O" if tag not in VERBAL else "I-VP" if before in VERBAL else "B-VP"
        for before, tag in zip(["", *tags], tags, strict=False)
    ]
    for label, start, end in spans:
        if label == "BNP":
            chunks[start:end] = ["B-NP"] + ["I-NP"] * (end - start - 1)
    return {
        "words": tree.words(), "tags": tags, "chunks": chunks, "spans": spans,
        "tree": brackets(tree), "agreement": agreement,
    }  # fmt: skip


def minimal_pairs(sentence: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns minimal pairs: the sentence, and the sentence with one mistake.

    Args:
      sentence: annotations from `annotate`.

    Returns:
      Objects for `scalelab.eval.pairs`: good, bad and group. In the group "order" the first article
      is exchanged with the next word. In the other groups one verb has the wrong number. In
      "attraction" a noun between subject and verb has this number, too; in "agreement" none has
      (Linzen et al. 2016, "Assessing the ability of LSTMs").
    """
    good, first = sentence["words"], sentence["tags"].index("DET")
    swapped = [*good[:first], good[first + 1], good[first], *good[first + 2 :]]
    found = [{"good": " ".join(good), "bad": " ".join(swapped), "group": "order"}]
    for place, verb in ((pair["verb"], pair) for pair in sentence["agreement"]):
        bad = [*good[:place], lexicon.other_number(good[place])]
        group = "attraction" if verb["attractors"] else "agreement"
        texts = {"good": " ".join(good), "bad": " ".join([*bad, *good[place + 1 :]])}
        found.append(texts | {"group": group})
    return found


def brackets(tree: Tree) -> str:
    """Formats a derivation as "(S (ADV first) (NP ...) ...)", labels without features."""
    inner = " ".join(brackets(c) if isinstance(c, Tree) else c for c in tree.children)
    return f"({tree.label} {inner})"
