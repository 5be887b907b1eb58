"""Pairs of segments of one document, before the second may be replaced or the two swapped.

The module `segment_pair` describes the rules.
"""

import dataclasses

import numpy as np

from scalelab.config.fields import Probability
from scalelab.formats import Documents, assembly, draws

CHOICES = ("is_short", "target", "split", "label", "only", "other_document", "other_sentence")


@dataclasses.dataclass(frozen=True)
class Rates:
    """Probabilities of label 1 if both labels are possible, and of keeping an only sentence."""

    random: float
    only: float


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Examples before a random B is chosen; all [num_examples], indices are in the block.

    A is the sentences [first, middle), B of label 0 is [middle, end).
    """

    sentences: np.ndarray  # index in the split of the first new sentence: addresses the draws
    first: np.ndarray
    middle: np.ndarray
    end: np.ndarray
    target: np.ndarray  # number of tokens
    labels: np.ndarray
    is_repeated: np.ndarray  # A was used before
    is_only: np.ndarray  # A is its whole document

    def select(self, block: assembly.Block, keep: np.ndarray) -> tuple["Pairs", int]:
        """Returns some of the pairs, and the number of tokens of A in the others.

        Args:
          block: the sentences of the pairs.
          keep: [num_examples] bool.
        """
        left_out = (block.offsets[self.middle] - block.offsets[self.first])[~keep].sum()
        fields = dataclasses.fields(self)
        return Pairs(*(getattr(self, field.name)[keep] for field in fields)), int(left_out)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a format of pairs."""

    short_rate: Probability = 0.1  # share of examples with a random shorter target


class Choices:
    """A stream of random numbers for each choice, addressed by the example's first sentence."""

    def __init__(self, seed: int, room: int, short_rate: float) -> None:
        self.room = room  # tokens of text in an example
        self._short_rate = short_rate
        self._keys = {name: draws.key(seed, place) for place, name in enumerate(CHOICES)}

    def uniform(self, name: str, sentences: np.ndarray) -> np.ndarray:
        """Draws uniformly in [0, 1): float64 [n].

        Args:
          name: the choice.
          sentences: [n] int, first sentence of each example.
        """
        return draws.uniform(self._keys[name], sentences)

    def below(self, name: str, sentences: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
        """Draws uniform integers in [0, limit): int64 [n].

        Args:
          name: the choice.
          sentences: [n] int, first sentence of each example.
          limit: [] or [n], 1 or more.
        """
        return draws.below(self._keys[name], sentences, limit)

    def target(self, sentences: np.ndarray) -> np.ndarray:
        """Draws the target length of each example, in tokens."""
        is_short = self.uniform("is_short", sentences) < self._short_rate
        return np.where(is_short, 2 + self.below("target", sentences, self.room - 1), self.room)


def cut_spans(block: assembly.Block, choices: Choices) -> tuple[np.ndarray, np.ndarray]:
    """Cuts documents into spans; returns first sentences, and the sentences after the last ones."""
    # A span is cut from every sentence; then the chain of consecutive spans is kept.
    ends = _cut(block, np.arange(len(block)), block.document_ends, choices)[0]
    first = assembly.follow(ends)
    return first, ends[first]


def choose_pairs(
    block: assembly.Block, spans: tuple[np.ndarray, np.ndarray], choices: Choices, rates: Rates
) -> Pairs:
    """Chooses target, A, label and a following B of every example of a block.

    Args:
      block: sentences of some documents.
      spans: [n] each, first sentence of each span and the one after its last.
      choices: streams of random numbers.
      rates: probabilities of the choices.
    """
    (here, stop), rounds = spans, []
    while len(here):  # one round makes one example from each span that is not used up
        pairs, used = _choose_round(block, here, stop, choices, rates)
        rounds.append(pairs)
        here, stop = used[used < stop], stop[used < stop]
    fields = [field.name for field in dataclasses.fields(Pairs)]
    joined = Pairs(*(np.concatenate([getattr(pairs, name) for pairs in rounds]) for name in fields))
    order = np.argsort(joined.sentences)
    return Pairs(*(getattr(joined, name)[order] for name in fields))


def _cut(
    block: assembly.Block, here: np.ndarray, stop: np.ndarray, choices: Choices
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the end of each span (exclusive) and its drawn target length.

    The end is the first sentence at which the span from `here` holds `target` tokens, at most
    `stop`.
    """
    target = choices.target(block.sentences[here])
    end = np.searchsorted(block.offsets, block.offsets[here] + target)
    return np.minimum(np.maximum(end, here + 2), stop), target


def _choose_round(
    block: assembly.Block, here: np.ndarray, stop: np.ndarray, choices: Choices, rates: Rates
) -> tuple[Pairs, np.ndarray]:
    """Makes the next example of each span [here, stop); also returns the next unused sentences."""
    sentences = block.sentences[here]
    end, target = _cut(block, here, stop, choices)
    is_single = end - here == 1
    is_only = is_single & (block.document_ends[here] - block.document_begins[here] == 1)
    labels = is_only | (choices.uniform("label", sentences) < rates.random)
    is_repeated = is_single & ~labels
    # The sentences before a single last one that fit the target together with it, at least one.
    earliest = np.searchsorted(block.offsets, block.offsets[end] - target)
    earliest = np.clip(earliest, block.document_begins[here], np.maximum(here - 1, 0))
    num_choices = np.where(is_repeated, here - earliest, np.maximum(end - here - 1, 1))
    num_a = 1 + choices.below("split", sentences, num_choices)
    first = np.where(is_repeated, here - num_a, here)
    middle = first + num_a
    pairs = Pairs(
        sentences, first, middle, end, target, labels.astype(np.int32), is_repeated, is_only
    )
    return pairs, np.where(labels, middle, end)


def segments(
    documents: Documents, block: assembly.Block, pairs: Pairs
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the first token and the length of A, and of the B that follows it."""
    first_a = np.asarray(documents.sentence_starts)[block.sentences[pairs.first]]
    length_a = block.offsets[pairs.middle] - block.offsets[pairs.first]
    length_b = block.offsets[pairs.end] - block.offsets[pairs.middle]
    return first_a, length_a, first_a + length_a, length_b


def fit(length_a: np.ndarray, length_b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the longer segment until both fit; returns the lengths that are kept.

    Args:
      length_a: [n] int, tokens of A.
      length_b: [n] int, tokens of B.
      room: tokens of both together.
    """
    kept_a = np.minimum(length_a, np.maximum(room - length_b, room - room // 2))
    return kept_a, np.minimum(length_b, room - kept_a)
