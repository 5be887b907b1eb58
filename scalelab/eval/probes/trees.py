"""Dependency trees: distances and depths, and the scores of predicted ones.

Scores are those of Hewitt and Manning 2019, section 3. As in their code, edges and roots leave out
punctuation, and correlations include it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, stats
from scipy.sparse import csgraph

from scalelab.eval.probes.treebank import PUNCTUATION, Sentence

LENGTHS = range(5, 51)  # words of the sentences whose correlations are averaged
Edge = tuple[int, int]


class Probe(NamedTuple):
    """What a structural probe predicts for a sentence of n words, and its scores."""

    target: Callable[[Sequence[int]], np.ndarray]  # heads -> target
    predict: Callable[[Any], Any]  # vectors [..., n, k] -> prediction; NumPy or JAX
    judge: Callable[[np.ndarray, Sentence], list[bool]]  # prediction -> whether each item is found
    items: Callable[[Sentence], list[str]]  # names of the items, in the order of `judge`
    chain: Callable[[int], np.ndarray]  # n -> the target of a chain of words
    scores: tuple[str, str]  # names: share of found items, rank correlation


class Score(NamedTuple):
    """The scores of the predictions for sentences."""

    hits: np.ndarray  # [items] bool
    correlation: float  # mean over lengths of mean rank correlations; NaN: no sentence


def score(
    probe: Probe,
    sentences: Sequence[Sentence],
    targets: Sequence[np.ndarray],
    predictions: Sequence[np.ndarray],
) -> Score:
    """Scores the predictions of sentences."""
    hits: list[bool] = []
    by_length: dict[int, list[float]] = {}
    for sentence, target, found in zip(sentences, targets, predictions, strict=True):
        hits += probe.judge(found, sentence)
        if len(target) in LENGTHS:
            by_length.setdefault(len(target), []).extend(rank_correlations(target, found))
    means = [np.mean(values) for values in by_length.values()]
    return Score(np.array(hits, bool), float(np.mean(means)) if means else np.nan)


def rank_correlations(gold: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Returns Spearman's correlation of each row of two arrays [(m, )n]; 0 if one is constant."""
    middle = (gold.shape[-1] + 1) / 2
    a, b = (stats.rankdata(np.atleast_2d(x), axis=-1) - middle for x in (gold, found))
    scale = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return np.divide((a * b).sum(-1), scale, out=np.zeros_like(scale), where=scale > 0)


def _words(sentence: Sentence) -> np.ndarray:
    """Returns the places of the words that are not punctuation."""
    return np.flatnonzero(np.array(sentence.upos) != PUNCTUATION)


# --- Distances ----------------


def edges_between(heads: Sequence[int]) -> np.ndarray:
    """Counts the edges between every two words of a tree [n, n]; the root has head 0."""
    children = np.flatnonzero(heads)
    edges = np.ones(len(children)), (children, np.array(heads)[children] - 1)
    graph = sparse.coo_array(edges, shape=(len(heads), len(heads)))
    return csgraph.shortest_path(graph.tocsr(), directed=False, unweighted=True)


def spanning_tree(distances: np.ndarray) -> set[Edge]:
    """Returns the edges (i, j), i < j, of the minimum spanning tree of distances [n, n]."""
    # SciPy reads 0 as no edge. Adding one number to all distances keeps the tree.
    positive = np.triu(distances - distances.min() + 1.0, 1)
    rows, columns = csgraph.minimum_spanning_tree(positive).nonzero()
    return set(zip(rows.tolist(), columns.tolist(), strict=True))


def _edges(sentence: Sentence) -> list[Edge]:
    """Returns the edges (i, j), i < j, between words that are not punctuation."""
    words = set(_words(sentence).tolist())
    pairs = ((child, head - 1) for child, head in enumerate(sentence.heads) if head)
    return [(min(pair), max(pair)) for pair in pairs if words.issuperset(pair)]


def _judge_edges(distances: np.ndarray, sentence: Sentence) -> list[bool]:
    gold, words = _edges(sentence), _words(sentence)
    if not gold:
        return []
    found = {(words[i], words[j]) for i, j in spanning_tree(distances[np.ix_(words, words)])}
    return [edge in found for edge in gold]


def _squared_distances(vectors: Any) -> Any:
    squares = (vectors**2).sum(-1)
    products = vectors @ vectors.swapaxes(-1, -2)
    return squares[..., :, None] + squares[..., None, :] - 2 * products


DISTANCE = Probe(
    target=edges_between,
    predict=_squared_distances,
    judge=_judge_edges,
    items=lambda s: [f"{i + 1} {s.words[i]}, {j + 1} {s.words[j]}" for i, j in _edges(s)],
    chain=lambda n: np.abs(np.subtract.outer(np.arange(n), np.arange(n))),
    scores=("UUAS", "DSpr."),
)

# --- Depths ----------------


def depths(heads: Sequence[int]) -> np.ndarray:
    """Counts the edges between each word of a tree and its root [n]."""
    return edges_between(heads)[heads.index(0)]


def _has_choice(sentence: Sentence) -> bool:
    """Returns True if the root is one of several words that are not punctuation."""
    words = _words(sentence)
    return len(words) > 1 and sentence.heads.index(0) in words


def _judge_root(found: np.ndarray, sentence: Sentence) -> list[bool]:
    words = _words(sentence)
    return [sentence.heads[words[found[words].argmin()]] == 0] if _has_choice(sentence) else []


DEPTH = Probe(
    target=depths,
    predict=lambda vectors: (vectors**2).sum(-1),
    judge=_judge_root,
    items=lambda s: [s.text.strip()] if _has_choice(s) else [],
    chain=np.arange,
    scores=("root accuracy", "NSpr."),
)
