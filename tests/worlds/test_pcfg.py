"""Grammars against the list of all their texts, and against an endless one solved by hand."""

import collections
import math

import pytest
import reading

from scalelab.worlds.pcfg import Pcfg

FINITE = {
    ("S",): {(("A",), ("B", 1)): 0.6, (("B", 1), "x"): 0.4},
    ("A",): {("a",): 0.25, ("b", "b"): 0.75},
    ("B", 1): {("c",): 0.5, (("A",), "d"): 0.5},
}
# One word, and after it with chance 1/4 another of the kind: 4/3 words.
ENDLESS = {("S",): {("a",): 0.75, ("a", ("S",)): 0.25}}


def every(pcfg: Pcfg, symbol: tuple) -> dict[tuple[str, ...], float]:
    """Texts of a finite grammar and their probabilities."""
    texts: collections.Counter = collections.Counter()
    for right, chance in pcfg.rules[symbol].items():
        partial = {(): chance}
        for part in right:
            ends = {(part,): 1.0} if isinstance(part, str) else every(pcfg, part)
            partial = {a + b: p * q for a, p in partial.items() for b, q in ends.items()}
        texts.update(partial)
    return dict(texts)


def test_entropy_and_length_are_those_of_the_list() -> None:
    pcfg = Pcfg(FINITE)
    texts = every(pcfg, ("S",))
    assert sum(texts.values()) == pytest.approx(1)
    assert len(texts) == 9
    assert pcfg.entropies()["S",] == pytest.approx(-sum(p * math.log(p) for p in texts.values()))
    assert pcfg.lengths()["S",] == pytest.approx(sum(len(t) * p for t, p in texts.items()))
    letters = pcfg.lengths(lambda word: ord(word))["S",]
    assert letters == pytest.approx(sum(sum(map(ord, t)) * p for t, p in texts.items()))


def test_every_text_is_read_with_its_probability() -> None:
    pcfg = Pcfg(FINITE)
    for text, chance in every(pcfg, ("S",)).items():
        (tree,) = reading.whole(pcfg, ("S",), text)
        assert tree.words() == list(text)
        assert math.exp(reading.derivation_log_prob(pcfg, tree)) == pytest.approx(chance)
    for wrong in (["a"], ["a", "c", "c"], ["c"], [], ["b", "c"]):
        assert not reading.whole(pcfg, ("S",), wrong)


def test_an_endless_grammar_by_hand() -> None:
    pcfg = Pcfg(ENDLESS)
    coin = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert pcfg.lengths()["S",] == pytest.approx(4 / 3, rel=1e-12)
    assert pcfg.entropies()["S",] == pytest.approx(4 / 3 * coin, rel=1e-12)
