"""Probabilistic context-free grammars: texts, trees, probabilities, entropy.

A symbol is a tuple, a label and its features: ("NP", 3, "pl"). A word is a string. The entropy is
that of derivations (Soule 1974, "Entropies of probabilistic grammars", Information and Control 25):

  H(A) = h(A) + sum over rules r of A, p_r * (sum over symbols B right of r, H(B))

with h(A) the entropy of the choice among A's rules. Of texts it is the entropy too if each text has
one derivation. Texts are read from left to right, so no symbol may begin with itself.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Symbol = tuple[Any, ...]
Right = tuple[Symbol | str, ...]
MAX_ROUNDS = 10_000
TOO_LARGE = 1e15  # what grows so far does not end
CLOSE = 1e-14  # relative change at which a fixed point counts as found


@dataclasses.dataclass(frozen=True)
class Tree:
    """A derivation.

    Attributes:
      symbol: what was expanded.
      children: trees and words.
    """

    symbol: Symbol
    children: "tuple[Tree | str, ...]"

    @property
    def label(self) -> str:
        """The symbol without its features."""
        return self.symbol[0]

    @property
    def right(self) -> Right:
        """The rule's right side."""
        return tuple(c.symbol if isinstance(c, Tree) else c for c in self.children)

    def words(self) -> list[str]:
        """The text, word by word."""
        return [w for c in self.children for w in (c.words() if isinstance(c, Tree) else [c])]


class Pcfg:
    """A grammar.

    Attributes:
      rules: for each symbol its right sides with their probabilities, which sum to 1.
    """

    def __init__(self, rules: Mapping[Symbol, Mapping[Right, float]]) -> None:
        self.rules = rules
        self._rights = {symbol: list(options) for symbol, options in rules.items()}
        self._limits = {s: np.cumsum(list(o.values())).tolist() for s, o in rules.items()}
        for symbol, limits in self._limits.items():
            assert math.isclose(limits[-1], 1, abs_tol=1e-9), f"{symbol}: rules sum to {limits[-1]}"
        self._words_alone = {
            s for s, rights in self._rights.items()
            if all(len(r) == 1 and isinstance(r[0], str) for r in rights)
        }  # fmt: skip

    def sample(self, symbol: Symbol, rng: np.random.Generator) -> Tree:
        """Draws a derivation."""
        limits = self._limits[symbol]
        drawn = bisect.bisect_right(limits, rng.random() * limits[-1])
        right = self._rights[symbol][min(drawn, len(limits) - 1)]
        return Tree(symbol, tuple(r if isinstance(r, str) else self.sample(r, rng) for r in right))

    def log_prob(self, tree: Tree) -> float:
        """Log-probability of a derivation, given its symbol."""
        own = math.log(self.rules[tree.symbol][tree.right])
        return own + sum(self.log_prob(c) for c in tree.children if isinstance(c, Tree))

    def derivations(
        self, symbol: Symbol, words: Sequence[str], start: int = 0
    ) -> Iterator[tuple[int, Tree]]:
        """Streams the derivations of what begins at `start`, each with the place where it ends."""
        if symbol in self._words_alone:
            if start < len(words) and (words[start],) in self.rules[symbol]:
                yield start + 1, Tree(symbol, (words[start],))
            return
        for right in self._rights[symbol]:
            for end, children in self._sequences(right, words, start):
                yield end, Tree(symbol, children)

    def _sequences(
        self, right: Right, words: Sequence[str], start: int
    ) -> Iterator[tuple[int, tuple[Tree | str, ...]]]:
        """Streams what a right side may stand for."""
        if not right:
            yield start, ()
            return
        first, rest = right[0], right[1:]
        if isinstance(first, str):
            there = start < len(words) and words[start] == first
            begun = [(start + 1, first)] if there else []
        else:
            begun = self.derivations(first, words, start)
        for middle, child in begun:
            for end, children in self._sequences(rest, words, middle):
                yield end, (child, *children)

    def whole(self, symbol: Symbol, words: Sequence[str]) -> list[Tree]:
        """All derivations of a whole text; more than one if the grammar is ambiguous."""
        return [t for end, t in self.derivations(symbol, words) if end == len(words)]

    def entropies(self) -> dict[Symbol, float]:
        """Nats of the derivations of each symbol."""
        return self.expected(
            lambda symbol: -sum(p * math.log(p) for p in self.rules[symbol].values() if p > 0)
        )

    def lengths(self, of: Callable[[str], float] = lambda word: 1) -> dict[Symbol, float]:
        """Expected length of what each symbol stands for.

        Args:
          of: length of a word; as it is, words are counted.
        """
        return self.expected(
            lambda symbol: sum(
                p * sum(of(r) for r in right if isinstance(r, str))
                for right, p in self.rules[symbol].items()
            )
        )

    def expected(self, own: Callable[[Symbol], float]) -> dict[Symbol, float]:
        """Expected sum of `own` over the symbols of a derivation of each symbol.

        Raises:
          ValueError: it is infinite: the rules go on for ever.
        """
        place = {symbol: i for i, symbol in enumerate(self.rules)}
        edges = [
            (place[symbol], place[r], p)
            for symbol, options in self.rules.items()
            for right, p in options.items()
            for r in right
            if not isinstance(r, str)
        ]
        rows, columns, chances = (np.array(e) for e in zip(*edges, strict=True)) if edges else (
            np.zeros(0, int), np.zeros(0, int), np.zeros(0)
        )  # fmt: skip
        here = np.array([own(symbol) for symbol in self.rules], float)
        sums = here
        for _ in range(MAX_ROUNDS):
            following = here + np.bincount(rows, chances * sums[columns], len(here))
            change, size = np.abs(following - sums).max(), np.abs(following).max()
            sums = following
            if size > TOO_LARGE:
                break
            if change <= CLOSE * size:
                return dict(zip(self.rules, sums.tolist(), strict=True))
        raise ValueError("the grammar's rules go on for ever: no expectation is finite")
