"""Learns WordPiece's pieces by its own rule: the merge that raises the likelihood most.

Schuster and Nakajima 2012, "Japanese and Korean voice search", section 2: the text's language model
is here the simplest, one probability for each piece. With h(x) = x log x, pieces of frequencies f
and sum N give the text the log-likelihood sum h(f) - h(N). A pair of n occurrences changes it by

  h(n) - h(f(a)) + h(f(a) - n) - h(f(b)) + h(f(b) - n) + h(N) - h(N - n).

All pieces of one text are made by the same merges, so that no pair spells a piece that there is.

For rare pairs the gain of one occurrence is about log n N / (f(a) f(b)). The score n / (f(a) f(b)),
which many descriptions have for the rule, prefers rare pieces, and splits frequent words.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from scalelab.data._vocabulary import CONTINUATION, MIN_FREQUENCY


def gains(
    pairs: np.ndarray, left: np.ndarray, right: np.ndarray, total: float, is_double: np.ndarray
) -> np.ndarray:
    """Returns the gain in log-likelihood, in nats, of merging each pair: float64 [n].

    Args:
      pairs: occurrences of the pair, without overlaps.
      left: frequency of its first piece.
      right: of its second.
      total: sum of all frequencies.
      is_double: whether both pieces are the same.
    """
    lost = _h(left) - _h(left - pairs) + _h(right) - _h(right - pairs)
    lost = np.where(is_double, _h(left) - _h(left - 2 * pairs), lost)
    return _h(pairs) - lost + _h(total) - _h(total - pairs)


def _h(counts: np.ndarray | float) -> np.ndarray:
    return counts * np.log(np.maximum(counts, 1))


class Pieces:
    """The words as pieces, with the frequencies of pieces and pairs kept up to date.

    Attributes:
      texts: of the pieces, by id.
      rows: the pieces of each word.
    """

    def __init__(self, words: Mapping[str, int]) -> None:
        """Splits words, given with their frequencies, into characters."""
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}
        self._frequency = np.zeros(1 << 16)
        self._weights = list(words.values())
        # Each pair of ids has a slot; slots of pairs that are gone are used again.
        self._slots: dict[tuple[int, int], int] = {}
        self._free: list[int] = []
        self._where: list[set[int]] = []
        self._pairs = np.zeros((3, 1 << 16), np.int64)  # left, right, occurrences
        self.rows = [
            [self._piece(CONTINUATION * (k > 0) + char) for k, char in enumerate(word)]
            for word in words
        ]
        for word in range(len(self.rows)):
            self._count(word, 1)

    def _piece(self, text: str) -> int:
        """Returns the id of a piece, a new one if need be."""
        if text not in self._ids:
            self._ids[text] = len(self.texts)
            self.texts.append(text)
            if len(self.texts) > len(self._frequency):
                self._frequency = np.append(self._frequency, np.zeros_like(self._frequency))
        return self._ids[text]

    def _count(self, word: int, sign: int) -> None:
        """Adds a word's pieces and pairs to the frequencies, or takes them away."""
        row, weight = self.rows[word], sign * self._weights[word]
        for piece in row:
            self._frequency[piece] += weight
        last = None
        for pair in zip(row, row[1:], strict=False):
            if pair == last and pair[0] == pair[1]:  # "aaa" has one pair "aa" to merge
                last = None
                continue
            last = pair
            slot = self._slots.get(pair)
            if slot is None:
                slot = self._slots[pair] = self._new_slot(pair)
            self._pairs[2, slot] += weight
            if sign > 0:
                self._where[slot].add(word)
            elif not self._pairs[2, slot]:
                del self._slots[pair]
                self._where[slot].clear()
                self._free.append(slot)

    def _new_slot(self, pair: tuple[int, int]) -> int:
        if not self._free:
            self._free.append(len(self._where))
            self._where.append(set())
        slot = self._free.pop()
        if slot == self._pairs.shape[1]:
            self._pairs = np.append(self._pairs, np.zeros_like(self._pairs), axis=1)
        self._pairs[:, slot] = *pair, 0
        return slot

    def gains(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs that are not rare, ids [2, n], and their gains [n]."""
        live = np.flatnonzero(self._pairs[2, : len(self._where)] >= MIN_FREQUENCY)
        left, right, pairs = self._pairs[:, live]
        frequencies = self._frequency[left], self._frequency[right], self._frequency.sum()
        found = gains(pairs, *frequencies, left == right)
        return np.stack([left, right]), found

    def merge(self, left: int, right: int) -> str:
        """Joins a pair wherever it occurs; returns the piece."""
        text = self.texts[left] + self.texts[right].removeprefix(CONTINUATION)
        made = self._piece(text)
        for word in sorted(self._where[self._slots[left, right]]):
            old, row, k = self.rows[word], [], 0
            while k < len(old):
                joins = old[k] == left and k + 1 < len(old) and old[k + 1] == right
                row.append(made if joins else old[k])
                k += 1 + joins
            if len(row) < len(old):
                self._count(word, -1)
                self.rows[word] = row
                self._count(word, 1)
        return text


def learn(words: Mapping[str, int]) -> Iterator[str]:
    """Yields new pieces in the order of learning, given words with their frequencies."""
    made = Pieces(words)
    while True:
        pairs, found = made.gains()
        if not len(found):
            return
        left, right = pairs[:, np.argmax(found)].tolist()
        yield made.merge(left, right)
