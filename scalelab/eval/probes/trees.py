"""Dependency trees: distances and depths, and the scores of their predictions.

Scores are as in Hewitt and Manning 2019, section 3. As in their code, edges and roots leave out
punctuation, and correlations include it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, stats
from scipy.sparse import csgraph

from scalelab.lab.compare import estimates
from scalelab.tasks.treebank import PUNCTUATION, Sentence

LENGTHS = range(5, 51)  # numbers of words of the sentences in the mean correlation


class Probe(NamedTuple):
    """The target of a structural probe for a sentence of n words, and its scores."""

    target: Callable[[Sequence[int]], np.ndarray]  # heads -> target
    predict: Callable[[Any], Any]  # vectors [..., n, k] -> prediction; NumPy or JAX
    # (prediction, sentence) -> {item, such as an edge: whether it is found}.
    judge: Callable[[np.ndarray, Sentence], dict[str, bool]]
    chain: Callable[[int], np.ndarray]  # n -> the target of a chain of words
    scores: tuple[str, str]  # names: share of found items, rank correlation


class Score(NamedTuple):
    """The scores of the predictions for sentences."""

    hits: np.ndarray  # [items] bool
    items: list[str]  # their names
    correlation: float  # mean over lengths of mean rank correlations; NaN without sentences


def score(probe: Probe, sentences: Sequence[Sentence], predictions: Sequence[np.ndarray]) -> Score:
    """Scores the predictions of sentences.

    Args:
      probe: what is predicted.
      sentences: the sentences.
      predictions: [n] depths or [n, n] distances, for each sentence of n words.
    """
    hits: list[tuple[str, bool]] = []
    by_length: dict[int, list[float]] = {}
    for sentence, found in zip(sentences, predictions, strict=True):
        hits += probe.judge(found, sentence).items()
        if len(found) in LENGTHS:
            correlations = rank_correlations(probe.target(sentence.heads), found)
            by_length.setdefault(len(found), []).extend(correlations)
    means = [np.mean(values) for values in by_length.values()]
    right = np.array([hit for _, hit in hits], bool)
    return Score(right, [name for name, _ in hits], float(np.mean(means)) if means else np.nan)


def percent(right: np.ndarray) -> str:
    """Formats the share of right answers [n] with its 95% interval: "45.5 [43.7, 47.2]"."""
    low, high = estimates.wilson([(right.mean(), len(right))])
    return f"{100 * right.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def rank_correlations(gold: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Returns Spearman's correlation of each row (Spearman 1904); 0 if one is constant.

    Args:
      gold: [n] or [m, n].
      found: the same shape.
    """
    middle = (gold.shape[-1] + 1) / 2
    a, b = (stats.rankdata(np.atleast_2d(x), axis=-1) - middle for x in (gold, found))
    scale = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return np.divide((a * b).sum(-1), scale, out=np.zeros_like(scale), where=scale > 0)


def _words(sentence: Sentence) -> np.ndarray:
    """Returns the indices of the words that are not punctuation."""
    return np.flatnonzero(np.array(sentence.upos) != PUNCTUATION)


# --- Distances ----------------


def edges_between(heads: Sequence[int]) -> np.ndarray:
    """Counts the edges between every two words of a tree [n, n]; the root has head 0."""
    children = np.flatnonzero(heads)
    edges = np.ones(len(children)), (children, np.array(heads)[children] - 1)
    graph = sparse.coo_array(edges, shape=(len(heads), len(heads)))
    return csgraph.shortest_path(graph.tocsr(), directed=False, unweighted=True)


def spanning_tree(distances: np.ndarray) -> set[tuple[int, int]]:
    """Returns the edges (i, j), i < j, of the minimum spanning tree of distances [n, n]."""
    # SciPy reads 0 as a missing edge. Adding one number to all distances does not change the tree.
    positive = np.triu(distances - distances.min() + 1.0, 1)
    rows, columns = csgraph.minimum_spanning_tree(positive).nonzero()
    return set(zip(rows.tolist(), columns.tolist(), strict=True))


def _judge_edges(distances: np.ndarray, sentence: Sentence) -> dict[str, bool]:
    """Returns {edge without punctuation: True if it is in the spanning tree}."""
    words = _words(sentence)
    pairs = ((child, head - 1) for child, head in enumerate(sentence.heads) if head)
    gold = [(min(pair), max(pair)) for pair in pairs if set(pair) <= {*words.tolist()}]
    if not gold:
        return {}
    found = {(words[i], words[j]) for i, j in spanning_tree(distances[np.ix_(words, words)])}
    text = [f"{place} {word}" for place, word in enumerate(sentence.words, 1)]
    return {f"{text[i]}, {text[j]}": (i, j) in found for i, j in gold}


def _squared_distances(vectors: Any) -> Any:
    squares = (vectors**2).sum(-1)
    products = vectors @ vectors.swapaxes(-1, -2)
    return squares[..., :, None] + squares[..., None, :] - 2 * products


DISTANCE = Probe(
    target=edges_between,
    predict=_squared_distances,
    judge=_judge_edges,
    chain=lambda n: np.abs(np.subtract.outer(np.arange(n), np.arange(n))),
    scores=("UUAS", "DSpr."),
)

# --- Depths ----------------


def depths(heads: Sequence[int]) -> np.ndarray:
    """Counts the edges between each word of a tree and its root [n]."""
    return edges_between(heads)[heads.index(0)]


def _judge_root(found: np.ndarray, sentence: Sentence) -> dict[str, bool]:
    """Returns {sentence: the root is found}; {} without a choice between two words or more."""
    words, root = _words(sentence), sentence.heads.index(0)
    has_choice = len(words) > 1 and root in words
    return {sentence.text.strip(): words[found[words].argmin()] == root} if has_choice else {}


DEPTH = Probe(
    target=depths,
    predict=lambda vectors: (vectors**2).sum(-1),
    judge=_judge_root,
    chain=np.arange,
    scores=("root accuracy", "NSpr."),
)

PROBES = {"distance": DISTANCE, "depth": DEPTH}
