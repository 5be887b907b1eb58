"""Structural probes: does a linear map of a model's states encode syntax trees?

Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word Representations", section 2.
A map B of rank k maps word i to the vector B h_i. The distance probe fits |B h_i - B h_j|^2 to the
number of edges between two words. The depth probe fits |B h_i|^2 to the number of edges between a
word and the root. The loss is the mean absolute error over the pairs or words of a sentence.

Each layer has its own map, fitted on train. The layer is chosen on dev and scored on test. The
learning rate falls to 0 over a fixed number of epochs; the reference code instead divides it by 10
when the dev loss stalls.
"""

import functools
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from scalelab.eval import items as items_lib
from scalelab.eval import likelihood, token_scores
from scalelab.eval.evaluation import Asked, Measured
from scalelab.eval.probes import states, trees
from scalelab.eval.probes.states import Split
from scalelab.eval.probes.trees import Probe
from scalelab.helpers.progress import show_bar
from scalelab.lab import tables
from scalelab.tasks.treebank import Sentence
from scalelab.training.pretrained import Pretrained

LEARNING_RATE = 1e-3  # Adam's, as in the reference code
BATCH = 20  # sentences per step
BASELINE = "chain"  # the baseline: each word is the head of the next one


def fit(
    probe: Probe, split: Split, rank: int, epochs: int, seed: int = 0,
    partial: pathlib.Path | None = None,
) -> np.ndarray:  # fmt: skip
    """Fits the maps of all layers at once: [L + 1, k, D] float32, k = min(rank, D).

    Args:
      probe: the target and its prediction.
      split: train, with vectors [num_words, L + 1, D].
      rank: maximum rank of the maps.
      epochs: passes over train.
      seed: seed of the initial maps and the order.
      partial: file for partial results; the next call continues from them.
    """
    _, num_layers, width = split.vectors.shape
    shape = num_layers, min(rank, width), width
    maps = jax.random.uniform(jax.random.key(seed), shape, minval=-0.05, maxval=0.05)
    rng, starts = np.random.default_rng(seed), split.starts
    plan = [batch for _ in range(epochs) for batch in draw_epoch(starts, rng)]
    targets = [probe.target(sentence.heads) for sentence in split.sentences]
    carry, step = adam(functools.partial(loss, probe.predict), maps, LEARNING_RATE, len(plan))
    leaves, structure = jax.tree.flatten(carry)
    saved, saved_at = likelihood.load_partial(partial), time.monotonic()
    done = int(saved.get("done", 0))
    carry = jax.tree.unflatten(structure, [saved.get(f"{k}", x) for k, x in enumerate(leaves)])
    with show_bar("steps", len(plan), show=True) as tick:
        tick(done)
        for k, (length, members) in enumerate(plan[done:], done + 1):
            carry = step(carry, *_fill(split, starts, targets, members, length))
            tick(1)
            if partial is not None and time.monotonic() - saved_at >= likelihood.SAVE_SECS:
                own = {f"{k}": leaf for k, leaf in enumerate(jax.tree.leaves(carry))}
                likelihood.save_partial(partial, done=k, **own)
                saved_at = time.monotonic()
    return np.asarray(carry[0])


def adam(
    loss: Callable[..., jax.Array], params: Any, learning_rate: float, num_steps: int
) -> tuple[Any, Callable[..., Any]]:
    """Makes Adam with a learning rate that falls to 0 (Kingma and Ba 2015, algorithm 1).

    Args:
      loss: (params, *batch) -> loss [].
      params: at the start.
      learning_rate: at the start.
      num_steps: steps until it is 0.

    Returns:
      The initial carry (parameters, optimizer state), and the compiled step: (carry, *batch) ->
      carry.
    """
    optimizer = optax.adam(optax.linear_schedule(learning_rate, 0.0, num_steps))

    def step(carry: Any, *batch: jax.Array) -> Any:
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, *batch), state)
        return optax.apply_updates(params, updates), state

    return (params, optimizer.init(params)), jax.jit(step)


Plan = list[tuple[int, np.ndarray]]  # batches: padded length, indices of sentences


def draw_epoch(starts: np.ndarray, rng: np.random.Generator, batch_size: int = BATCH) -> Plan:
    """Draws the batches of an epoch, each of sentences of similar lengths.

    Args:
      starts: [num_sentences + 1] int; words starts[k] to starts[k + 1] - 1 are sentence k.
      rng: generator of the order.
      batch_size: most sentences of a batch.
    """
    lengths = np.diff(starts)
    padded = np.array([token_scores.round_up(n, int(lengths.max())) for n in lengths.tolist()])
    found = []
    for length in np.unique(padded).tolist():
        members = rng.permutation(np.flatnonzero(padded == length))
        found += [
            (length, part)
            for part in np.split(members, range(batch_size, len(members), batch_size))
        ]
    return [found[k] for k in rng.permutation(len(found))]


def _fill(
    split: Split, starts: np.ndarray, targets: Sequence[np.ndarray], members: np.ndarray,
    length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Returns states [S, T, L + 1, D], targets [S, T(, T)] and lengths [S], padded with 0."""
    ndim = targets[0].ndim
    found = np.zeros((BATCH, length, *split.vectors.shape[1:]), np.float32)
    gold = np.zeros((BATCH, *(length,) * ndim), np.float32)
    lengths = np.zeros(BATCH, np.int32)
    for row, k in enumerate(members):
        lengths[row] = num = len(targets[k])
        found[row, :num] = split.vectors[starts[k] : starts[k + 1]]
        gold[(row, *(slice(num),) * ndim)] = targets[k]
    return found, gold, lengths


def loss(
    predict: Callable[[Any], Any], maps: jax.Array, found: jax.Array, gold: jax.Array,
    lengths: jax.Array,
) -> jax.Array:  # fmt: skip
    """Computes the mean loss over sentences, summed over layers: layers share no parameters.

    Args:
      predict: `Probe.predict`.
      maps: [L + 1, k, D].
      found: states [S, T, L + 1, D].
      gold: targets [S, T] or [S, T, T].
      lengths: [S], numbers of words; sentences of length 0 do not count.
    """
    with jax.default_matmul_precision("float32"):
        made = predict(jnp.einsum("stld,lkd->lstk", found, maps))
    places = jnp.indices(gold.shape[1:])
    inside = (places < lengths.reshape(-1, *(1,) * places.ndim)).all(axis=1)
    errors = jnp.where(inside, jnp.abs(made - gold), 0.0).sum(tuple(range(2, made.ndim)))
    counts = jnp.maximum(lengths, 1) ** (gold.ndim - 1)
    return (errors / counts).sum() / (lengths > 0).sum()


def predict(probe: Probe, split: Split, maps: np.ndarray) -> list[list[np.ndarray]]:
    """Returns for each layer the predictions of all sentences: [n] depths or [n, n] distances.

    Args:
      probe: what is predicted.
      split: vectors of the words of each layer.
      maps: [L + 1, k, D], from `fit`.
    """
    vectors = np.einsum("nld,lkd->lnk", split.vectors, maps, optimize=True)
    return [[probe.predict(x) for x in np.split(own, split.starts[1:-1])] for own in vectors]


# --- The evaluation ----------------


def measure(
    kind: str, opened: Pretrained, items: Sequence[Sequence[Sentence]], asked: Asked
) -> Measured:
    """Fits a probe on the first split, chooses a layer on the second, scores the third.

    Args:
      kind: a name in trees.PROBES.
      opened: the model.
      items: sentences of train, dev and test.
      asked: options and batch sizes.

    Raises:
      ValueError: dev or test has no tree of several words, or as in `states.read`.
    """
    probe, most = trees.PROBES[kind], asked.options["max_words"]
    num_words = np.cumsum([len(sentence.words) for sentence in items[0]])
    items = [items[0][: max(1, int((num_words <= most).sum()))], *items[1:]]
    (train, *tests), notes = states.read_splits(opened, items, asked)
    maps = fit(probe, train, asked.options["rank"], asked.options["epochs"], partial=asked.partial)
    scores = []  # dev and test, for each layer and the baseline
    for split in tests:
        chain = [probe.chain(len(sentence.words)) for sentence in split.sentences]
        found = [*predict(probe, split, maps), chain]
        scores.append([trees.score(probe, split.sentences, x) for x in found])
    if not all(own[0].hits.size for own in scores):
        raise ValueError("--data: dev or test has no tree of several words to score")
    columns = ["layer", *(f"{name} {split}" for name in probe.scores for split in ("dev", "test"))]
    rows = [
        [name, a.hits.mean(), b.hits.mean(), a.correlation, b.correlation]
        for name, a, b in zip([*map(str, range(len(maps))), BASELINE], *scores, strict=True)
    ]
    best = int(np.argmax([own.hits.mean() for own in scores[0][:-1]]))
    right = scores[1][best].hits
    shown = [[name, *(f"{100 * x:.1f}" for x in own)] for name, *own in rows]
    return Measured(
        texts=[scores[1][best].items],
        recipe=f"layer {best}, rank {maps.shape[1]}",
        **items_lib.hits(right),
        table=pd.DataFrame(rows, columns=columns),
        printed=tables.plain(columns, shown)
        + f"{probe.scores[0]} of layer {best}, the best on dev: {trees.percent(right)}"
        f" of {len(right):,}\n",
        notes=notes,
    )
