"""Synthetic text: every second token is a function of its left and right neighbors.

Tokens 0, 2, 4, ... are free: uniform over K letters, ids 0 to K - 1. Each token between them is
K + table[left, right]. A masked model sees both neighbors and can predict it with certainty. A
causal model sees only the left neighbor, and more context does not help, because free tokens are
independent. So its loss has an exact lower bound.
"""

import dataclasses
from typing import Any

import numpy as np

from scalelab.worlds.markov import entropy


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbours:
    """The texts of one table: [K, K] int, the letter between two neighbors."""

    table: np.ndarray

    @property
    def vocab_size(self) -> int:
        """Number of different tokens: K free and K determined ones."""
        return 2 * len(self.table)

    @property
    def given_left(self) -> np.ndarray:
        """[K, K]: probabilities of the determined letter, given the left neighbor."""
        return (self.table[..., None] == np.arange(len(self.table))).mean(1)

    def facts(self) -> dict[str, Any]:
        """Returns the exact entropies, in nats, the accuracy of the best guess, and the table."""
        return {
            "nats_per_word": float(np.log(len(self.table))) / 2,  # only free words have entropy
            "nats_of_decided_word_from_left": float(entropy(self.given_left).mean()),
            "accuracy_of_decided_word_from_left": float(self.given_left.max(1).mean()),
            "table": self.table.tolist(),
        }

    def sample(self, rng: np.random.Generator, count: int, length: int) -> np.ndarray:
        """Draws texts: [count, length] int32.

        Raises:
          ValueError: `length` is even, so that the last token would have one neighbor.
        """
        if length % 2 == 0:
            raise ValueError(f"length {length}: expected an odd number, so that both ends are free")
        num_letters = len(self.table)
        free = rng.integers(num_letters, size=(count, length // 2 + 1))
        tokens = np.zeros((count, length), np.int32)
        tokens[:, ::2] = free
        tokens[:, 1::2] = num_letters + self.table[free[:, :-1], free[:, 1:]]
        return tokens


def draw(num_letters: int, seed: int) -> Neighbours:
    """Draws a table, all letters about equally frequent.

    Args:
      num_letters: K, at least 2.
      seed: seed of the table.
    """
    if num_letters < 2:
        raise ValueError(f"expected 2 letters or more, got {num_letters}")
    letters = np.arange(num_letters**2) % num_letters
    drawn = np.random.default_rng(seed).permutation(letters)
    return Neighbours(drawn.reshape(num_letters, num_letters))
