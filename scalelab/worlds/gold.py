"""Gold annotations of a sentence, from its derivation."""

from typing import Any

from scalelab.worlds.lexicon import NUMBERS
from scalelab.worlds.pcfg import Tree

PHRASES = ("S", "NP", "BNP", "VP", "PP", "SBAR")
VERBAL = ("AUX", "PART", "VERB")


def annotate(tree: Tree) -> dict[str, Any]:
    """Returns the annotations of a sentence.

    Returns:
      words: the words.
      tags: a tag of Universal Dependencies each.
      chunks: B-NP, I-NP (base noun phrases), B-VP, I-VP (verbs with `not`) or O for each word
        (Ramshaw and Marcus 1995, "Text chunking using transformation-based learning").
      spans: [label, first word, end] of every phrase, in the order of the tree.
      tree: the same as brackets, tags included.
      agreement: for each verb that agrees {"noun", "verb": places of the words, "number",
        "attractors": nouns of the other number between the two}.
    """
    tags: list[str] = []
    spans: list[list[Any]] = []
    agreement: list[dict[str, Any]] = []
    _walk(tree, tags, spans, agreement)
    numbers = _noun_numbers(tree)
    for pair in agreement:
        between = range(pair["noun"] + 1, pair["verb"])
        pair["attractors"] = sum(numbers.get(i, pair["number"]) != pair["number"] for i in between)
    return {
        "words": tree.words(),
        "tags": tags,
        "chunks": _chunks(tags, spans),
        "spans": spans,
        "tree": brackets(tree),
        "agreement": sorted(agreement, key=lambda pair: pair["verb"]),
    }


def brackets(tree: Tree) -> str:
    """Formats a derivation as "(S (ADV first) (NP ...) ...)", labels without features."""
    inner = " ".join(brackets(c) if isinstance(c, Tree) else c for c in tree.children)
    return f"({tree.label} {inner})"


def _walk(
    tree: Tree,
    tags: list[str],
    spans: list[list[Any]],
    agreement: list[dict[str, Any]],
    head: int | None = None,
) -> int | None:
    """Appends the tags, phrases and agreeing pairs of a tree, from left to right.

    Args:
      tree: the next part of the sentence.
      tags: of the words before it; appended to, as are the next two.
      spans: of the phrases.
      agreement: of the verbs.
      head: place of the noun that a verb without a subject of its own agrees with.

    Returns:
      The place of the phrase's head if it is a noun phrase.
    """
    if tree.label not in PHRASES:
        if tree.symbol[-1] in NUMBERS and tree.label in ("VERB", "AUX"):
            found = {"noun": head, "verb": len(tags), "number": tree.symbol[-1]}
            agreement.append(found)
        tags.append(tree.label)
        return len(tags) - 1 if tree.label == "NOUN" else None
    span = [tree.label, len(tags), 0]
    spans.append(span)
    own = None
    for child in tree.children:
        assert isinstance(child, Tree), child
        passed = own if own is not None and tree.label != "VP" else head
        found = _walk(child, tags, spans, agreement, passed)
        own = own if own is not None else found
    span[2] = len(tags)
    return own if tree.label in ("NP", "BNP") else None


def _noun_numbers(tree: Tree) -> dict[int, str]:
    """Returns place of each noun -> its number."""
    leaves = _leaves(tree)
    return {i: leaf.symbol[2] for i, leaf in enumerate(leaves) if leaf.label == "NOUN"}


def _leaves(tree: Tree) -> list[Tree]:
    inner = [c for c in tree.children if isinstance(c, Tree)]
    return [leaf for c in inner for leaf in _leaves(c)] if inner else [tree]


def _chunks(tags: list[str], spans: list[list[Any]]) -> list[str]:
    chunks = ["O"] * len(tags)
    for label, start, end in spans:
        if label == "BNP":
            chunks[start:end] = ["B-NP"] + ["I-NP"] * (end - start - 1)
    for i, tag in enumerate(tags):
        if tag in VERBAL:
            chunks[i] = "I-VP" if i and tags[i - 1] in VERBAL else "B-VP"
    return chunks
