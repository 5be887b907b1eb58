"""Probabilistic context-free grammars: texts, trees, probabilities, entropy.

A symbol is a tuple, a label and its features: ("NP", 3, "pl"). A word is a string. The entropy of
derivations is (Soule 1974, "Entropies of probabilistic grammars", Information and Control 25):

  H(A) = h(A) + sum over rules r of A, p_r * (sum over symbols B right of r, H(B))

with h(A) the entropy of the choice among A's rules. The entropy of texts is the same if each text
has one derivation.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Symbol = tuple[Any, ...]
Right = tuple[Symbol | str, ...]
CLOSE = 1e-14  # a fixed point is found if the relative change is below this


@dataclasses.dataclass(frozen=True)
class Tree:
    """A derivation: the expanded symbol, and the trees and words below it."""

    symbol: Symbol
    children: "tuple[Tree | str, ...]"

    @property
    def label(self) -> str:
        """The symbol without its features."""
        return self.symbol[0]

    def words(self) -> list[str]:
        """Returns the words of the text."""
        return [w for c in self.children for w in (c.words() if isinstance(c, Tree) else [c])]


class Pcfg:
    """A grammar: for each symbol its right sides with their probabilities, which sum to 1."""

    def __init__(self, rules: Mapping[Symbol, Mapping[Right, float]]) -> None:
        self.rules = rules
        self._rights = {symbol: list(options) for symbol, options in rules.items()}
        self._limits = {s: np.cumsum(list(o.values())).tolist() for s, o in rules.items()}

    def sample(self, symbol: Symbol, rng: np.random.Generator) -> Tree:
        """Draws a derivation."""
        limits = self._limits[symbol]
        drawn = bisect.bisect_right(limits, rng.random() * limits[-1])
        right = self._rights[symbol][min(drawn, len(limits) - 1)]
        return Tree(symbol, tuple(r if isinstance(r, str) else self.sample(r, rng) for r in right))

    def entropies(self) -> dict[Symbol, float]:
        """Returns the entropy in nats of the derivations of each symbol."""
        return self.expected(
            lambda symbol: -sum(p * math.log(p) for p in self.rules[symbol].values() if p > 0)
        )

    def lengths(self, measure: Callable[[str], float] = lambda word: 1) -> dict[Symbol, float]:
        """Returns the expected length of the text of each symbol; `measure` is a word's length."""
        return self.expected(
            lambda symbol: sum(
                p * sum(measure(r) for r in right if isinstance(r, str))
                for right, p in self.rules[symbol].items()
            )
        )

    def expected(self, own: Callable[[Symbol], float]) -> dict[Symbol, float]:
        """Returns the expected sum of `own` over the symbols of a derivation, for each symbol."""
        place = {symbol: i for i, symbol in enumerate(self.rules)}
        edges = [
            (place[symbol], place[r], p)
            for symbol, options in self.rules.items()
            for right, p in options.items()
            for r in right
            if not isinstance(r, str)
        ]
        rows, columns, chances = map(np.array, zip(*edges, strict=True))
        here = np.array([own(symbol) for symbol in self.rules], float)
        sums, change = here, math.inf
        while change > CLOSE * np.abs(sums).max():
            following = here + np.bincount(rows, chances * sums[columns], len(here))
            change, sums = np.abs(following - sums).max(), following
            assert np.isfinite(sums).all(), "the grammar's derivations do not end"
        return dict(zip(self.rules, sums.tolist(), strict=True))
