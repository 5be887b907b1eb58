"""Lagged copies: a word repeats the word `lag` places before it, so that memory pays.

A text alternates between free words and their partners. A free word (places 0, 2, 4, ...) is one of
K letters, ids 0 to K - 1. The first `lag` words have uniform letters. After them a letter is copied
from the word `lag` places before with some probability, and else uniform. The partner of letter i
is K + i and follows it at once.

Any causal model can learn partners. They show that a model was trained enough, whether it remembers
or not. The last `lag` - 2 words tell nothing about the next letter, so both bounds are exact.
"""

import dataclasses

import numpy as np

from scalelab.worlds.markov import entropy


@dataclasses.dataclass(frozen=True)
class Copies:
    """The texts of one lag.

    Attributes:
      num_letters: K, at least 2.
      lag: words between a letter and its copy, an even number.
      percent_copied: probability of a copy, in percent.
    """

    num_letters: int
    lag: int
    percent_copied: int

    def __post_init__(self) -> None:
        if self.num_letters < 2:
            raise ValueError(f"expected 2 letters or more, got {self.num_letters}")
        if self.lag < 2 or self.lag % 2:
            raise ValueError(
                f"lag {self.lag}: expected an even number from 2 on, because every second word is"
                " free"
            )
        if not 0 <= self.percent_copied <= 100:
            raise ValueError(f"percent_copied {self.percent_copied}: expected 0 to 100")

    @property
    def vocab_size(self) -> int:
        """Number of different tokens: K letters and their partners."""
        return 2 * self.num_letters

    @property
    def copied(self) -> float:
        """Nats of a letter, given the letter `lag` words before."""
        rate = self.percent_copied / 100
        chances = np.full(self.num_letters, (1 - rate) / self.num_letters)
        chances[0] += rate  # the letter that may be copied
        return float(entropy(chances))

    def bound(self, num_seen: int, length: int) -> float:
        """Returns the loss of the best predictor in nats per word, the mean over a document.

        Args:
          num_seen: words before a word that the predictor sees, at least 1.
          length: words of the document, at least 1.
        """
        if min(num_seen, length) < 1:
            raise ValueError(
                f"expected texts of 1 or more words, 1 or more of them seen; got {length} and"
                f" {num_seen}"
            )
        first = min(length, self.lag) if num_seen >= self.lag - 1 else length
        free, later = -(-first // 2), -(-length // 2) - -(-first // 2)
        return float(free * np.log(self.num_letters) + later * self.copied) / length

    def facts(self, length: int) -> dict[str, float]:
        """Returns the exact entropies in nats: of documents, and of single words."""
        return {
            "nats_per_word": self.bound(self.lag, length),
            "nats_per_word_without_memory": self.bound(1, length),
            "nats_of_copied_letter": self.copied,
            "nats_of_uniform_letter": float(np.log(self.num_letters)),
        }

    def sample(self, rng: np.random.Generator, count: int, length: int) -> np.ndarray:
        """Draws texts: [count, length] int32."""
        letters = rng.integers(self.num_letters, size=(count, -(-length // 2)))
        copies = 100 * rng.random(letters.shape) < self.percent_copied
        lag = self.lag // 2  # in letters
        for place in range(lag, letters.shape[1]):
            before = letters[:, place - lag]
            letters[:, place] = np.where(copies[:, place], before, letters[:, place])
        tokens = np.stack([letters, self.num_letters + letters], -1).reshape(count, -1)
        return tokens[:, :length].astype(np.int32)
