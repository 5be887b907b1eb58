"""Unigram tokenizers: the best segmentation and a step of EM, by enumeration (Kudo 2018, 3.2)."""

import collections
import json
import math
import random
from collections.abc import Iterator

import pytest

from scalelab.data import tokenizers

RNG = random.Random(5)
STEMS = ["".join(RNG.choices("abcde", k=RNG.randint(2, 4))) for _ in range(12)]
WORDS = collections.Counter(
    "▁" + "".join(RNG.choices(STEMS, weights=range(1, 13), k=RNG.randint(1, 2))) for _ in range(600)
)
SPECIAL = (("pad", "<pad>"), ("unk", "<unk>"))
Scores = dict[str, float]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[tokenizers.Tokenizer, Scores]:
    """A tokenizer and the log-probabilities of its pieces."""
    folder = tmp_path_factory.mktemp("unigram")
    texts = [word.removeprefix("▁") for word, n in WORDS.items() for _ in range(n)]
    tokenizers.train(tokenizers.TokenizerSpec("unigram", 40, False, SPECIAL), texts, folder)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return tokenizers.Tokenizer.load(folder), dict(vocab[len(SPECIAL) :])


def segmentations(word: str, scores: Scores) -> Iterator[tuple[str, ...]]:
    if not word:
        yield ()
    for k in range(1, len(word) + 1):
        if word[:k] in scores:
            yield from ((word[:k], *rest) for rest in segmentations(word[k:], scores))


def score(pieces: tuple[str, ...], scores: Scores) -> float:
    return sum(scores[piece] for piece in pieces)


def greedy(word: str, scores: Scores) -> tuple[str, ...]:
    """The longest piece first, as WordPiece takes them."""
    if not word:
        return ()
    k = next(k for k in range(len(word), 0, -1) if word[:k] in scores)
    return (word[:k], *greedy(word[k:], scores))


def log_likelihood(scores: Scores) -> float:
    total = 0.0
    for word, count in WORDS.items():
        total += count * math.log(
            sum(math.exp(score(x, scores)) for x in segmentations(word, scores))
        )
    return total


def em_step(scores: Scores) -> Scores:
    """Expected counts of the pieces, normalised."""
    counts = collections.Counter[str]()
    for word, count in WORDS.items():
        found = list(segmentations(word, scores))
        chances = [math.exp(score(x, scores)) for x in found]
        for pieces, chance in zip(found, chances, strict=True):
            for piece in pieces:
                counts[piece] += count * chance / sum(chances)
    total = sum(counts.values())
    return {piece: math.log(n / total) for piece, n in counts.items() if n > 0}


def test_the_segmentation_is_the_best_of_all(trained) -> None:
    ours, scores = trained
    best_by_greed = 0
    for word in WORDS:
        ids = ours.encode(word.removeprefix("▁"))
        found = tuple(ours.token(i) for i in ids)
        assert "".join(found) == word
        best = max(score(pieces, scores) for pieces in segmentations(word, scores))
        assert score(found, scores) == pytest.approx(best, abs=1e-9)
        best_by_greed += score(greedy(word, scores), scores) > best - 1e-9
    assert len(WORDS) > 50 and best_by_greed < len(WORDS)


def test_a_step_of_em_never_lowers_the_likelihood(trained) -> None:
    _, learned = trained
    uniform = dict.fromkeys(learned, -math.log(len(learned)))
    for scores in (learned, uniform):
        likelihoods = [log_likelihood(scores)]
        for _ in range(4):
            scores = em_step(scores)
            likelihoods.append(log_likelihood(scores))
        assert all(b > a - 1e-6 for a, b in zip(likelihoods, likelihoods[1:], strict=False))
    assert log_likelihood(learned) > log_likelihood(uniform)
