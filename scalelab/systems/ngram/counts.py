"""Counts n-grams and smooths them: interpolated Kneser-Ney (Chen and Goodman 1999, 2.7 and 4.1.1).

The n-grams of the highest order have their counts. Those of a lower order have the number of
different tokens before them. A discount is taken from each count and given to the next lower order,
in the end to all tokens alike. By default each order has the discount n1 / (n1 + 2 n2) of Ney et
al. 1994, where n1 and n2 count the n-grams that occur once and twice; 0.5 if no n-gram occurs once.
"""

import dataclasses
from typing import NamedTuple

import numpy as np


class Order(NamedTuple):
    """The counts of one order n.

    Attributes:
      keys: [G] int64, the n-grams, ascending: first token x number of (n-1)-grams + its suffix.
      counts: [G], of each n-gram.
      contexts: [G], the (n-1)-gram before the last token of each n-gram.
      totals: [C], the sum of the counts behind each context, an (n-1)-gram.
      types: [C], the number of n-grams with a count behind each context.
      discount: taken from each count above 0.
    """

    keys: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    types: np.ndarray
    discount: float


@dataclasses.dataclass(frozen=True)
class NGrams:
    """An interpolated Kneser-Ney model.

    Attributes:
      orders: counts of the orders 1, 2, ..., N.
      vocab_size: V; None: the first order has no discount, and new tokens no probability.
    """

    orders: list[Order]
    vocab_size: int | None

    def nats(self, tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Returns minus the log-probability of each token [n] after the tokens of its document.

        Args:
          tokens: [n] int, all documents, one behind the other.
          starts: [D + 1], the first token of each document, and n.
        """
        stream, real = pad(tokens, starts, len(self.orders) - 1)
        chance = np.full(len(stream), 1.0 / self.vocab_size if self.vocab_size else 0.0)
        grams = np.zeros(len(stream), np.int64)  # the empty n-gram
        num_grams = 1
        for n, order in enumerate(self.orders, 1):
            context = before(grams, 1) if n > 1 else grams
            grams, num_grams = look_up(order.keys, stream, grams, n, num_grams)[0], len(order.keys)
            known = (context >= 0) & (order.totals[context] > 0)
            totals = np.where(known, order.totals[context], 1)
            counts = np.where(grams >= 0, order.counts[grams], 0)
            own = np.maximum(counts - order.discount, 0) / totals
            rest = order.discount * order.types[context] / totals
            chance = np.where(known, own + rest * chance, chance)
        with np.errstate(divide="ignore"):  # without `vocab_size` a new token has none
            return -np.log(chance[real])

    def tables(self) -> tuple[np.ndarray, list[dict[str, np.ndarray]]]:
        """Lays the model out for look-ups from left to right; needs `vocab_size`.

        Returns:
          The probabilities [V] of order 1, and a dictionary for each higher order. Its n-grams are
          sorted by context and last token. `last` [G] is the last token plus 1, `own` [G] the
          discounted share of the context's counts, `first` [C + 1] the first n-gram of each
          context, `rest` [C] the weight of the next lower order. Contexts are the n-grams of the
          next lower order by number; of order 1 the tokens, plus 1.
        """
        assert self.vocab_size is not None
        made, last, number, num_contexts = [], np.zeros(1, np.int64), np.zeros(1, np.int64), 1
        unigrams = np.zeros(self.vocab_size)
        for n, order in enumerate(self.orders, 1):
            totals = np.maximum(order.totals, 1)
            own = np.maximum(order.counts - order.discount, 0) / totals[order.contexts]
            rest = np.where(order.totals > 0, order.discount * order.types / totals, 1)
            last = order.keys if n == 1 else last[order.keys % len(number)]
            if n == 1:
                unigrams += rest[0] / self.vocab_size
                unigrams[last[last > 0] - 1] += own[last > 0]
                number, num_contexts = last, self.vocab_size + 1
                continue
            used = order.counts > 0
            if n < len(self.orders):  # the places before a text are a context
                used |= self.orders[n].totals > 0
            contexts = number[order.contexts]
            chosen = np.flatnonzero(used)
            chosen = chosen[np.lexsort((last[chosen], contexts[chosen]))]
            ends = np.cumsum(np.bincount(contexts[chosen], minlength=num_contexts))
            rests = np.ones(num_contexts)
            rests[number[number >= 0]] = rest[number >= 0]
            made.append(
                {"last": last[chosen], "own": own[chosen], "first": np.append(0, ends),
                 "rest": rests}
            )  # fmt: skip
            number, num_contexts = np.full(len(used), -1), len(chosen)
            number[chosen] = np.arange(len(chosen))
        return unigrams, made


def pad(tokens: np.ndarray, starts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Puts tokens 0 before each document; returns the tokens plus 1, and their places.

    Args:
      tokens: [n], of all documents.
      starts: [documents + 1], the first token of each document, and the end.
      size: number of tokens 0 before each document.
    """
    real = np.arange(len(tokens)) + size * np.repeat(np.arange(1, len(starts)), np.diff(starts))
    stream = np.zeros(len(tokens) + size * (len(starts) - 1), np.int64)
    stream[real] = np.asarray(tokens, np.int64) + 1
    return stream, real


def before(values: np.ndarray, steps: int) -> np.ndarray:
    """Moves values to later places, and puts -1 where nothing is before.

    Args:
      values: [n].
      steps: number of places.
    """
    return np.concatenate(
        [np.full(min(steps, len(values)), -1), values[: max(0, len(values) - steps)]]
    )


def look_up(
    keys: np.ndarray | None, stream: np.ndarray, suffixes: np.ndarray, n: int, num_suffixes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of the n-gram that ends at each place, or -1, and the keys [G].

    Args:
      keys: [G], of known n-grams; None: all of the stream are known.
      stream: [n], tokens.
      suffixes: [n], index of the (n-1)-gram that ends at each place, or -1.
      n: the order.
      num_suffixes: number of (n-1)-grams.
    """
    # For n = 1 the empty suffix ends everywhere, and the first token is the one at the place.
    first = before(stream, n - 1)
    there = (first >= 0) & (suffixes >= 0)
    made = np.where(there, first * num_suffixes + suffixes, -1)
    if keys is None:
        keys = np.unique(made[there])
    index = np.minimum(np.searchsorted(keys, made), len(keys) - 1)
    return np.where(there & (keys[index] == made), index, -1), keys


def fit(
    tokens: np.ndarray, starts: np.ndarray, order: int, vocab_size: int | None,
    discount: float | None = None,
) -> NGrams:  # fmt: skip
    """Counts the n-grams of documents.

    Args:
      tokens: [n] int, all documents, one behind the other.
      starts: [D + 1], the first token of each document, and n.
      order: N, the length of the longest n-grams.
      vocab_size: V, as in `NGrams`.
      discount: of all orders; None: estimated for each.
    """
    stream, real = pad(tokens, starts, order - 1)
    grams, keys = [np.zeros(len(stream), np.int64)], [np.zeros(1, np.int64)]
    for n in range(1, order + 1):
        found, made = look_up(None, stream, grams[-1], n, len(keys[-1]))
        grams.append(found)
        keys.append(made)
    orders, counts = [], np.bincount(grams[order][real], minlength=len(keys[order]))
    for n in range(order, 0, -1):
        contexts = np.zeros(len(keys[n]), np.int64)
        if n > 1:
            there = grams[n] >= 0
            contexts[grams[n][there]] = before(grams[n - 1], 1)[there]
        size = len(keys[n - 1])
        totals = np.bincount(contexts, counts, size)
        types = np.bincount(contexts, counts > 0, size)
        once, twice = ((counts == k).sum() for k in (1, 2))
        estimate = once / (once + 2 * twice) if once else 0.5  # 0 would give new tokens nothing
        own = estimate if discount is None else discount
        if n == 1 and vocab_size is None:
            own = 0.0
        orders.append(Order(keys[n], counts, contexts, totals, types, float(own)))
        if n > 1:  # the n-grams that end in each (n-1)-gram
            suffixes = keys[n][counts > 0] % size
            counts = np.bincount(suffixes, minlength=size)
    return NGrams(orders[::-1], vocab_size)
