"""Attention heads as dependency parsers (Clark et al. 2019, 4.2 and 4.3), alone and together.

A parser scores each pair of words (i, j) of a sentence; a high score means that j is the head of i.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize

from scalelab.eval import items as items_lib
from scalelab.eval import placement
from scalelab.eval.evaluation import Asked, Measured
from scalelab.eval.probes import attention, states, trees
from scalelab.eval.probes.attention import Attention
from scalelab.lab import tables
from scalelab.tasks.treebank import Sentence
from scalelab.training.pretrained import Pretrained

OFFSETS = [k for k in range(-10, 11) if k]  # offsets of the baselines, in words
WAYS = ("word to head", "head to word")
STEPS = 200  # steps of L-BFGS
Parse = Callable[[np.ndarray], np.ndarray]  # attention [K, n, n] -> scores of F parsers [F, n, n]


def both_ways(maps: np.ndarray) -> np.ndarray:
    """Makes two parsers of each attention head.

    Args:
      maps: [K, n, n], attention from i to j.

    Returns:
      [2 K, n, n]: the attention from i to j, then from j to i; 0 on the diagonal.
    """
    found = np.concatenate([maps, maps.swapaxes(1, 2)])
    found[:, np.arange(maps.shape[1]), np.arange(maps.shape[1])] = 0.0
    return found


def offsets(maps: np.ndarray) -> np.ndarray:
    """Returns the baselines [20, n, n], one for each of OFFSETS: True if j = i + offset."""
    places = np.arange(maps.shape[1])
    return np.subtract.outer(places, places).T == np.reshape(OFFSETS, (-1, 1, 1))


def gold_heads(sentence: Sentence) -> np.ndarray:
    """Returns the index of each word's head [n]; -1 for the root and punctuation."""
    return np.where(np.array(sentence.deprels) == "punct", 0, sentence.heads) - 1


class Answers(NamedTuple):
    """The answers of F parsers for the words of a split that have a head."""

    hits: np.ndarray  # [F, words], whether the answered head is right
    relations: np.ndarray  # [words], without subtypes


def answer(found: Attention, parse: Parse) -> Answers:
    """Compares gold heads with the words of highest score; no answer if all scores are 0."""
    hits, relations = [], []
    for sentence, maps in zip(found.sentences, found.maps, strict=True):
        gold = gold_heads(sentence)
        words, scores = np.flatnonzero(gold >= 0), parse(maps)
        right = (scores.argmax(axis=-1) == gold) & (scores.max(axis=-1) > 0)
        hits.append(right[:, words])
        relations += [sentence.deprels[word].partition(":")[0] for word in words]
    return Answers(np.concatenate(hits, axis=1), np.array(relations))


def choose(dev: Answers, test: Answers) -> dict[str, int]:
    """Chooses the parser that is best on dev for each relation of test.

    "all" is the best parser over all words; relations that are not in dev use it.
    """
    chosen = {"all": int(dev.hits.mean(axis=1).argmax())}
    for name in np.unique(test.relations).tolist():
        own = dev.hits[:, dev.relations == name]
        chosen[name] = int(own.mean(axis=1).argmax()) if own.size else chosen["all"]
    return chosen


def pick(test: Answers, chosen: dict[str, int]) -> np.ndarray:
    """Returns the hits of the parser chosen for each word's relation: bool [words].

    Args:
      test: answers of all parsers.
      chosen: relation -> index of a parser, from `choose`.
    """
    parsers = [chosen[name] for name in test.relations.tolist()]
    return test.hits[parsers, np.arange(len(parsers))]


# --- All heads together ----------------


class Choices(NamedTuple):
    """The candidate heads of words: a row for each other word of the sentence."""

    features: np.ndarray  # [rows, F], scores of the parsers
    starts: np.ndarray  # [words], the first row of each word
    sizes: np.ndarray  # [words], the number of its rows
    gold: np.ndarray  # [words], the row of the right head


def list_choices(found: Attention) -> Choices:
    """Lists the candidate heads of words that have a head, with the scores of `both_ways`."""
    features, sizes, gold, row = [], [], [], 0
    for sentence, maps in zip(found.sentences, found.maps, strict=True):
        scores, heads = both_ways(maps), gold_heads(sentence)
        for word in np.flatnonzero(heads >= 0):
            features.append(np.delete(scores[:, word], word, axis=1).T)
            gold.append(row + heads[word] - (heads[word] > word))
            sizes.append(len(heads) - 1)
            row += sizes[-1]
    starts = np.cumsum([0, *sizes[:-1]])
    return Choices(np.concatenate(features), starts, np.array(sizes), np.array(gold))


def fit(given: Choices) -> np.ndarray:
    """Fits the weights [F] of p(head) ~ exp(weights . features) by maximum likelihood (4.3).

    This is the paper's attention-only probe.
    """
    features, starts, sizes, gold = given

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        scores = features @ weights
        scores -= np.repeat(np.maximum.reduceat(scores, starts), sizes)
        exps = np.exp(scores)
        sums = np.add.reduceat(exps, starts)
        slope = features.T @ (exps / np.repeat(sums, sizes)) - features[gold].sum(axis=0)
        return float((np.log(sums) - scores[gold]).mean()), slope / len(gold)

    start = np.zeros(features.shape[1])
    return optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x


def hits(given: Choices, weights: np.ndarray) -> np.ndarray:
    """Returns True for words with the right head as the only highest score: [words] bool.

    Args:
      given: candidates of each word, with features of the attention heads.
      weights: [features].
    """
    scores = given.features @ weights
    best = np.maximum.reduceat(scores, given.starts)
    ties = np.add.reduceat(scores == np.repeat(best, given.sizes), given.starts)
    return (scores[given.gold] == best) & (ties == 1)


# --- The evaluation ----------------


def measure(opened: Pretrained, items: Sequence[Sequence[Sentence]], asked: Asked) -> Measured:
    """Chooses attention heads on the first split and scores them on the second.

    Raises:
      ValueError: a split has no word with a head, or as in `attention.read`.
    """
    placed = placement.place(opened, asked.tensor_parallel)
    dev, test = (attention.read(opened, placed, part, asked.batch_tokens) for part in items)
    by_head, by_offset = (
        [answer(split, parse) for split in (dev, test)] for parse in (both_ways, offsets)
    )
    if not all(own.relations.size for own in by_head):
        raise ValueError("--data: a split has no word with a head")
    heads, distances = choose(*by_head), choose(*by_offset)
    right, baseline = pick(by_head[1], heads), pick(by_offset[1], distances)
    together = hits(list_choices(test), fit(list_choices(dev))).mean()
    rows = []
    for name in ["all", *pd.Series(by_head[1].relations).value_counts().index]:
        own = (by_head[1].relations == name) | (name == "all")
        way, head = divmod(heads[name], len(by_head[1].hits) // 2)
        rows.append([
            name, own.sum(), by_head[1].hits[heads[name], own].mean(), _name(opened, head),
            WAYS[way], by_offset[1].hits[distances[name], own].mean(), OFFSETS[distances[name]],
        ])  # fmt: skip
    columns = ["relation", "words", "accuracy", "head", "direction", "baseline", "offset"]
    lines = [
        tables.plain(columns, [
            [name, f"{num:,}", f"{100 * x:.1f}", head, way, f"{100 * y:.1f}", f"{offset:+d}"]
            for name, num, x, head, way, y, offset in rows
        ]),
        f"best head of each relation: {trees.percent(right)}, best offset of each:"
        f" {100 * baseline.mean():.1f}",
        f"all heads together, weights fitted on dev: {100 * together:.1f}",
        "\nattention to, in %; entropy in nats",
        tables.plain(["head", *attention.SURFACE], [
            [_name(opened, k), *(f"{100 * x:.1f}" for x in own[:-1]), f"{own[-1]:.2f}"]
            for k, own in enumerate(test.surface.tolist())
        ]),
    ]  # fmt: skip
    return Measured(
        texts=[
            [f"{s.words[word]} < {s.words[head]}: {s.deprels[word]}"
             for s in test.sentences for word, head in enumerate(gold_heads(s)) if head >= 0]
        ],
        recipe="best head of each relation",
        **items_lib.hits(right),
        table=pd.DataFrame(rows, columns=columns),
        printed="\n".join(lines),
        notes=states.describe_left_out(opened, (dev, test), items),
    )  # fmt: skip


def _name(opened: Pretrained, head: int) -> str:
    """Names a head by layer and index, both from 1, as in the paper: "2-1"."""
    layer, place = divmod(head, opened.config.model.num_heads)
    return f"{layer + 1}-{place + 1}"
