"""Reads texts of the grammar corpus back into derivations, from left to right."""

import math
from collections.abc import Iterator, Sequence

from scalelab.worlds.discourse import QUALITY_RATE, REPEAT_RATES, World
from scalelab.worlds.grammar import KINDS, STAGES
from scalelab.worlds.lexicon import QUALITIES
from scalelab.worlds.pcfg import Pcfg, Right, Symbol, Tree


def derivations(
    pcfg: Pcfg, symbol: Symbol, words: Sequence[str], start: int = 0
) -> Iterator[tuple[int, Tree]]:
    """The derivations of the text that begins at `start`, each with the place where it ends."""
    for right in pcfg.rules[symbol]:
        for end, children in _sequences(pcfg, right, words, start):
            yield end, Tree(symbol, children)


def _sequences(
    pcfg: Pcfg, right: Right, words: Sequence[str], start: int
) -> Iterator[tuple[int, tuple[Tree | str, ...]]]:
    if not right:
        yield start, ()
        return
    first, rest = right[0], right[1:]
    if isinstance(first, str):
        begun = [(start + 1, first)] if start < len(words) and words[start] == first else []
    else:
        begun = derivations(pcfg, first, words, start)
    for middle, child in begun:
        for end, children in _sequences(pcfg, rest, words, middle):
            yield end, (child, *children)


def whole(pcfg: Pcfg, symbol: Symbol, words: Sequence[str]) -> list[Tree]:
    """All derivations of a whole text."""
    return [tree for end, tree in derivations(pcfg, symbol, words) if end == len(words)]


def read(world: World, sentence: list[str]) -> Tree | None:
    """The derivation of a sentence; None if it is not one of this language."""
    stages = [stage for stage, table in STAGES.items() if sentence[0] in table]
    nouns = [world.noun_places[word] for word in sentence if word in world.noun_places]
    if not stages or not nouns:
        return None
    topic, head = nouns[0]  # the subject comes first in its sentence, its head first in it
    for kind in KINDS:
        if found := whole(world.pcfg, ("S", topic, stages[0], kind, head), sentence):
            return found[0]
    return None


def derivation_log_prob(pcfg: Pcfg, tree: Tree) -> float:
    """Log-probability of a derivation, given its symbol."""
    right = tuple(c.symbol if isinstance(c, Tree) else c for c in tree.children)
    inner = sum(derivation_log_prob(pcfg, c) for c in tree.children if isinstance(c, Tree))
    return math.log(pcfg.rules[tree.symbol][right]) + inner


def log_prob(world: World, trees: Sequence[Tree]) -> float:
    """Log-probability of a document in nats."""
    total = -math.log(len(world.lexicon.topics))
    stages = [tree.symbol[2] for tree in trees]
    for stage, rate in REPEAT_RATES.items():
        total += (stages.count(stage) - 1) * math.log(rate) + math.log(1 - rate)
    mood = last = None
    for tree in trees:
        kind, head = tree.symbol[3:]
        total += math.log(QUALITY_RATE if kind in QUALITIES else 1 - QUALITY_RATE)
        if kind in QUALITIES and mood is None:
            mood = kind
            total += math.log(0.5)
        total += math.log(world.subject_chances(last)[head]) + derivation_log_prob(world.pcfg, tree)
        last = world.last_head(tree)
    return total
