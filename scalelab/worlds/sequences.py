"""Pairs of sequences that ask for memory: associative recall, copies, reversed texts.

K words stand for letters. The first half of them are keys, the second half values; texts to copy
have all of them. The words of a text are uniform and independent, but keys differ.

  recall   k3 v7 k1 v2 k5 v7 k1 k5 k3 -> k1 v2 k5 v7 k3 v7
  copy     a c b -> a c b
  reverse  a c b -> b c a

The source of `recall` has pairs of a key and its value, and then every key once more, in random
order. The target repeats these keys, each followed by its value. Keys of a target stand at known
places of the source. The place of a value depends on two random orders, so a rule of places alone
finds one value in `num_pairs`, and equal values by chance. The target repeats a key because
RNNsearch looks for a value before it reads the previous token (Bahdanau et al. 2015, A.2.2): the
look for the key prepares it. Several keys are asked for, because an encoder can answer one query
while it reads the source.

`copy` and `reverse` have uniform lengths from `shortest` to `longest`, as in figure 2 of Bahdanau
et al. 2015, which compares translations by length.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from scalelab.worlds import lexicon, pairs

Pair = tuple[np.ndarray, np.ndarray]  # letters of a source and of its target
TASKS = ("recall", "copy", "reverse")


@dataclasses.dataclass(frozen=True)
class Sequences:
    """The texts of one alphabet.

    Attributes:
      num_letters: K, an even number.
      num_pairs: pairs of a key and a value in a source, at most K / 2.
      shortest: words of the shortest text to copy.
      longest: words of the longest one.
    """

    num_letters: int
    num_pairs: int
    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if self.num_letters < 2 or self.num_letters % 2:
            raise ValueError(
                f"num_letters {self.num_letters}: expected an even number from 2 on, because half"
                " of them are keys"
            )
        if not 1 <= self.num_pairs <= self.num_letters // 2:
            raise ValueError(
                f"num_pairs {self.num_pairs}: expected 1 to {self.num_letters // 2}, because the"
                f" keys of a text differ, and half of the {self.num_letters} letters are keys"
            )
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"expected 1 <= shortest <= longest, got {self.shortest} and {self.longest}"
            )

    @property
    def vocab_size(self) -> int:
        """Number of different tokens."""
        return self.num_letters

    def facts(self) -> dict[str, float]:
        """Returns the exact entropy in nats of a word of the corpus."""
        return {"nats_per_word": float(np.log(self.num_letters))}

    def sample(self, rng: np.random.Generator, count: int, length: int) -> np.ndarray:
        """Draws the texts of the corpus: [count, length] int32."""
        return rng.integers(self.num_letters, size=(count, length), dtype=np.int32)

    def pair(self, task: str, rng: np.random.Generator) -> Pair:
        """Draws the source and the target of an example of one of TASKS."""
        if task == "recall":
            half = self.num_letters // 2
            keys = rng.permutation(half)[: self.num_pairs]
            values = half + rng.integers(half, size=self.num_pairs)
            order = rng.permutation(self.num_pairs)
            known = np.stack([keys, values], axis=1)
            return np.concatenate([known.ravel(), keys[order]]), known[order].ravel()
        length = rng.integers(self.shortest, self.longest + 1)
        text = rng.integers(self.num_letters, size=length)
        return text, text[::-1] if task == "reverse" else text


def draw_tasks(source: Sequences, seed: int, num_pairs: int) -> dict[str, dict[str, list[str]]]:
    """Draws the lines of each task and split (`pairs.draw`), in the words of the corpus.

    Args:
      source: draws the pairs.
      seed: seed of all draws, as of `corpus.write_tokens`.
      num_pairs: training pairs of each task.

    Raises:
      ValueError: there are too few different sources.
    """
    words = lexicon.stems(np.random.default_rng([seed, 1]), source.vocab_size)

    def texts(task: str, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
        while True:
            first, second = (" ".join(words[i] for i in own) for own in source.pair(task, rng))
            yield first, second

    sizes = pairs.split_sizes(num_pairs)
    return {
        task: pairs.draw(sizes, texts(task, np.random.default_rng([seed, 2, number])))
        for number, task in enumerate(TASKS)
    }
