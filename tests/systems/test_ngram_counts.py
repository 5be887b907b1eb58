"""N-grams: nltk's Kneser-Ney, dictionaries by hand, the entropy of planted Markov sources."""

import collections
import itertools
from typing import Any

import numpy as np
import pytest

from scalelab.systems.ngram import counts
from scalelab.worlds import markov

VOCAB = 5


def draw(seed: int, lengths: tuple[int, ...] = (40, 1, 17, 0, 30)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    chances = 0.1 + 0.5 * np.random.default_rng(9).dirichlet(np.ones(VOCAB))
    starts = np.cumsum([0, *lengths])
    return rng.choice(VOCAB, starts[-1], p=chances), starts


def padded(tokens: np.ndarray, starts: np.ndarray, order: int) -> list[list[Any]]:
    parts = np.split(tokens, starts[1:-1])
    return [["<s>"] * (order - 1) + part.tolist() for part in parts]


def grams_of(documents: list[list[Any]], order: int) -> list[tuple[Any, ...]]:
    """All n-grams up to an order that end in a token."""
    return [
        tuple(row[i - n + 1 : i + 1])
        for row in documents
        for i in range(order - 1, len(row))
        for n in range(1, order + 1)
    ]


def by_hand(
    counted: collections.Counter, word: int, context: tuple, discount: float, raw: bool = False
) -> float:
    """The definition, with dictionaries: `counted` has the n-grams of every order.

    `raw`: lower orders have their own counts, which is wrong.
    """
    order = max(map(len, counted))

    def count(gram: tuple) -> int:
        if len(gram) == order or raw:
            return counted[gram]
        return sum(longer[1:] == gram for longer in counted if len(longer) == len(gram) + 1)

    behind = [count((*context, w)) for w in range(VOCAB)]
    lower = by_hand(counted, word, context[1:], discount, raw) if context else 1 / VOCAB
    if not sum(behind):
        return lower
    rest = discount * sum(c > 0 for c in behind)
    return (max(behind[word] - discount, 0) + rest * lower) / sum(behind)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_are_those_of_dictionaries_and_add_up(order: int) -> None:
    model = counts.fit(*draw(0), order, VOCAB, discount=0.4)
    counted = collections.Counter(grams_of(padded(*draw(0), order), order))
    texts = np.array([[*context, w] for context in itertools.product(range(VOCAB), repeat=2)
                      for w in range(VOCAB)])  # fmt: skip
    starts = np.arange(0, texts.size + 1, 3)
    found = np.exp(-model.nats(texts.ravel(), starts)).reshape(-1, 3)
    np.testing.assert_allclose(found[:, 2].reshape(-1, VOCAB).sum(axis=1), 1, rtol=1e-12)
    for row, chances in zip(texts.tolist(), found, strict=True):
        every = ["<s>"] * (order - 1) + row
        for i, chance in enumerate(chances):
            context = tuple(every[i : i + order - 1])
            assert chance == pytest.approx(by_hand(counted, row[i], context, 0.4), rel=1e-12)
    wrong = by_hand(counted, row[i], context, 0.4, raw=True)
    assert (wrong == pytest.approx(chance, rel=1e-3)) == (order == 1)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("discount", [0.1, 0.75])
def test_the_perplexity_is_nltks(order: int, discount: float) -> None:
    lm = pytest.importorskip("nltk.lm", reason="nltk is not installed")
    documents = padded(*draw(0), order)
    theirs = lm.KneserNeyInterpolated(order, discount=discount)
    words = lambda grams: [tuple(map(str, gram)) for gram in grams]  # noqa: E731
    theirs.fit(
        [words(grams_of(documents, order))], vocabulary_text=["<s>", *map(str, range(VOCAB))]
    )
    other = draw(1)
    tested = [gram for gram in words(grams_of(padded(*other, order), order)) if len(gram) == order]
    ours = counts.fit(*draw(0), order, None, discount).nats(*other)
    assert np.isfinite(ours).all()
    assert np.exp(ours.mean()) == pytest.approx(theirs.perplexity(tested), rel=1e-10)
    wrong = counts.fit(*draw(0), order, None, discount + 0.1).nats(*other)
    assert np.exp(wrong.mean()) != pytest.approx(theirs.perplexity(tested), rel=1e-4)


@pytest.mark.parametrize("order", [1, 2])
def test_a_source_of_order_k_is_known_to_k_plus_1_grams_alone(order: int) -> None:
    """Each order reaches the bound of the tokens that it sees, and no more."""
    source = markov.draw(4, order, seed=3, concentration=0.5)
    texts = source.sample(np.random.default_rng(0), 400, 500)
    starts = np.arange(0, texts.size + 1, 500) // 2
    half = texts.size // 2
    for n in range(1, order + 3):
        model = counts.fit(texts.ravel()[:half], starts, n, 4)
        loss = model.nats(texts.ravel()[half:], starts).mean()
        assert loss == pytest.approx(source.bound(n - 1), abs=0.01), n
    bounds = [source.bound(n) for n in range(order + 1)]
    assert min(np.diff(bounds[::-1])) > 0.03
