"""Tensor product decomposition networks (TPDN).

McCoy et al. 2019, "RNNs implicitly implement tensor-product representations", section 2; for BERT,
Jawahar et al. 2019, section 6. A sentence's vector is approximated by M(mean of f(word) (x)
r(role)) + b, with learned vectors f and r and a learned linear map M. The papers use sums; with
means on both sides, long sentences do not outweigh short sentences. All layers are fitted at once,
each with its own parameters, by Adam with a learning rate that falls to 0. The epoch with the
smallest error on dev counts. Words and roles with fewer than two occurrences in train share one
vector.
"""

import collections
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from scalelab.eval import items as items_lib
from scalelab.eval import likelihood
from scalelab.eval.evaluation import Asked, Measured
from scalelab.eval.probes import engine, states, structural, trees
from scalelab.helpers.progress import show_bar
from scalelab.lab import tables
from scalelab.tasks.treebank import Sentence
from scalelab.training.pretrained import Pretrained

LEARNING_RATE = 1e-2
SCALE = 0.03  # scale of the initial fillers; small, because rare words stay near them
BATCH = 64  # sentences per step
LEAST = 2  # minimum occurrences in train of a word or role with its own vector


def tree_positions(heads: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the path of each word up to the root.

    An edge is k for the k-th dependent to the right of its head, counted from the head, and -k for
    the k-th to the left.
    """
    steps = []
    for place, head in enumerate(heads, 1):
        nearer = range(place + 1, head) if place < head else range(head + 1, place)
        nth = 1 + sum(heads[other - 1] == head for other in nearer)
        steps.append(-nth if place < head else nth)
    found = []
    for place in range(1, len(heads) + 1):
        path = []
        while heads[place - 1]:
            path.append(steps[place - 1])
            place = heads[place - 1]
        found.append(tuple(path))
    return found


# Name -> (heads of a sentence -> the role of each word).
SCHEMES: dict[str, Callable[[Sequence[int]], Sequence[Hashable]]] = {
    "left to right": lambda heads: range(len(heads)),
    "right to left": lambda heads: range(len(heads))[::-1],
    "bidirectional": lambda heads: [(k, len(heads) - k) for k in range(len(heads))],
    "bag of words": lambda heads: [0] * len(heads),
    "tree": tree_positions,
}


class Split(NamedTuple):
    """The sentences of a split."""

    heads: Sequence[Sequence[int]]
    words: Sequence[Sequence[Hashable]]
    vectors: np.ndarray  # [L + 1, num_sentences, D] float32


class Numbered(NamedTuple):
    """Sentences as numbers; the last row of each array is 0, for padding."""

    vectors: np.ndarray  # [L + 1, num_sentences + 1, D] float32
    words: np.ndarray  # [num_sentences + 1, T] int32
    roles: np.ndarray  # [num_sentences + 1, T] int32
    lengths: np.ndarray  # [num_sentences + 1] int32

    def plan(self, rng: np.random.Generator) -> structural.Plan:
        """Draws the batches of an epoch."""
        return structural.draw_epoch(np.cumsum([0, *self.lengths[:-1]]), rng, BATCH)

    def batches(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
        """Yields the sentences of each batch of an epoch, and the arrays of its BATCH rows."""
        for length, members in self.plan(rng):
            rows = np.pad(members, (0, BATCH - len(members)), constant_values=-1)
            texts = self.words[rows, :length], self.roles[rows, :length]
            yield members, self.vectors[:, rows], *texts, self.lengths[rows]


def number(splits: Sequence[Sequence[Sequence[Hashable]]]) -> tuple[list[np.ndarray], int]:
    """Numbers the words or roles from 1; 0 means rare in the first split, or padding.

    Returns:
      The numbers in each split [num_sentences + 1, T] int32, and the count of numbers, 0 included.
    """
    counts = collections.Counter(value for sentence in splits[0] for value in sentence)
    known = [value for value, count in counts.items() if count >= LEAST]
    ids = {value: k for k, value in enumerate(known, 1)}
    made = []
    for split in splits:
        made.append(np.zeros((len(split) + 1, max(map(len, split))), np.int32))
        for row, sentence in zip(made[-1], split, strict=False):
            row[: len(sentence)] = [ids.get(value, 0) for value in sentence]
    return made, len(ids) + 1


def standardize(splits: Sequence[Split]) -> list[Split]:
    """Shifts and scales vectors to mean 0 and mean square 1 on the first split, at each layer."""
    first = splits[0].vectors
    mean = first.mean(axis=1, keepdims=True)
    scale = np.sqrt(np.maximum(((first - mean) ** 2).mean(axis=(1, 2), keepdims=True), 1e-12))
    return [own._replace(vectors=(own.vectors - mean) / scale) for own in splits]


def approximate(
    params: dict[str, jax.Array], words: jax.Array, roles: jax.Array, lengths: jax.Array
) -> jax.Array:
    """Returns the approximations [L + 1, S, D] of the vectors of S sentences.

    Args:
      params: fillers [L + 1, types, f], roles [L + 1, roles, r], map [L + 1, f, r, D] and bias.
      words: [S, T] int32.
      roles: [S, T] int32.
      lengths: [S] int32.
    """
    inside = jnp.arange(words.shape[1]) < lengths[:, None]
    share = jnp.where(inside, 1 / jnp.maximum(lengths, 1)[:, None], 0.0)
    with jax.default_matmul_precision("float32"):
        fillers = params["fillers"][:, words] * share[..., None]
        bound = jnp.einsum("lstf,lstr->lsfr", fillers, params["roles"][:, roles])
        return jnp.einsum("lsfr,lfrd->lsd", bound, params["map"]) + params["bias"]


def _squares(params: dict[str, jax.Array], gold: jax.Array, *rows: jax.Array) -> jax.Array:
    """Returns the mean squared error of each sentence [L + 1, S]."""
    return ((approximate(params, *rows) - gold) ** 2).mean(axis=2)


def _loss(params: dict[str, jax.Array], gold: jax.Array, *rows: jax.Array) -> jax.Array:
    return jnp.where(rows[-1] > 0, _squares(params, gold, *rows), 0.0).sum() / BATCH


def fit(splits: Sequence[Split], scheme: str, size: int, epochs: int, seed: int = 0) -> np.ndarray:
    """Fits the approximation on the first split; the second one chooses the epoch of each layer.

    Args:
      splits: train, dev and test, standardized.
      scheme: a name in SCHEMES.
      size: width of the vectors of fillers and roles.
      epochs: passes over train.
      seed: seed of the parameters and the order.

    Returns:
      The squared errors of the sentences of test, means over D: [L + 1, num_sentences].
    """
    words, num_words = number([own.words for own in splits])
    roles, num_roles = number([[SCHEMES[scheme](x) for x in own.heads] for own in splits])
    train, *others = (
        Numbered(np.pad(own.vectors, ((0, 0), (0, 1), (0, 0))), row_words, row_roles,
                 np.array([*map(len, own.words), 0], np.int32))
        for own, row_words, row_roles in zip(splits, words, roles, strict=True)
    )  # fmt: skip
    num_layers, _, width = train.vectors.shape
    shapes = {"fillers": (num_words, size), "roles": (num_roles, size), "map": (size, size, width)}
    params = {
        name: jax.random.normal(jax.random.key(seed + k), (num_layers, *shape))
        for k, (name, shape) in enumerate(shapes.items())
    }
    params |= {"bias": jnp.zeros((num_layers, 1, width)), "map": params["map"] / size}
    params["fillers"] *= SCALE
    rng = np.random.default_rng(seed)
    num_steps = epochs * len(train.plan(rng))
    carry, step = structural.adam(_loss, params, LEARNING_RATE, num_steps)
    judge, found = (
        jax.jit(_squares),
        [np.zeros(own.vectors.shape[:2], np.float32)[:, 1:] for own in others],
    )
    (dev, test), least = found, np.full(num_layers, np.inf)
    best = np.full_like(test, np.nan)
    with show_bar(scheme, num_steps, show=True) as tick:
        for _ in range(epochs):
            for _, *batch in train.batches(rng):
                carry = step(carry, *batch)
                tick(1)
            for own, errors in zip(others, (dev, test), strict=True):
                for members, *batch in own.batches(rng):
                    made = np.asarray(judge(carry[0], *batch))
                    errors[:, members] = made[:, : len(members)]
            better = dev.mean(axis=1) < least
            least, best[better] = np.minimum(least, dev.mean(axis=1)), test[better]
    return best


# --- The evaluation ----------------


def measure(opened: Pretrained, items: Sequence[Sequence[Sentence]], asked: Asked) -> Measured:
    """Fits every scheme on train and compares their errors on test; errors as in `states.read`."""
    items = [engine.thin(items[0], asked.options["max_words"]), *items[1:]]
    read, notes = states.read_splits(opened, items, asked)
    splits = []
    for own in read:
        sums = np.add.reduceat(own.vectors, own.starts[:-1], axis=0)
        vectors = (sums / np.diff(own.starts)[:, None, None]).swapaxes(0, 1)
        given = [s.heads for s in own.sentences], [s.words for s in own.sentences]
        splits.append(Split(*given, vectors))
    splits, known = standardize(splits), likelihood.load_partial(asked.partial)
    for scheme in SCHEMES:
        if scheme not in known:
            known[scheme] = fit(splits, scheme, asked.options["size"], asked.options["epochs"])
            likelihood.save_partial(asked.partial, **known)
    errors = np.stack([known[scheme] for scheme in SCHEMES])  # [schemes, L + 1, num_sentences]
    shares = errors.mean(axis=2).T
    best = [list(SCHEMES)[k] for k in shares.argmin(axis=1)]
    table = pd.DataFrame(shares, columns=list(SCHEMES)).assign(best=best)
    table.insert(0, "layer", range(len(shares)))
    right = errors[:, -1].argmin(axis=0) == list(SCHEMES).index("tree")
    rows = [[str(k), *(f"{100 * x:.1f}" for x in own), best[k]] for k, own in enumerate(shares)]
    return Measured(
        texts=[[" ".join(map(str, words)) for words in splits[2].words]],
        recipe=f"size {asked.options['size']}",
        **items_lib.hits(right, ("other", "tree")),
        table=table,
        printed=tables.plain(list(table), rows)
        + f"% of sentences that tree positions fit best at the last layer: {trees.percent(right)}"
        f" of {len(right):,}\n",
        notes=notes,
    )
