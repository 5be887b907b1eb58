"""The frozen states of a model: a vector for each word at every layer.

Layer 0 is the input of the first layer, the embedding. The last layer is the model's output, after
its last norm. These are the `hidden_states` of transformers. A word's vector is the mean over its
pieces, or its first or last piece.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from scalelab.eval import likelihood, placement
from scalelab.eval.evaluation import Asked
from scalelab.eval.likelihood import Reading
from scalelab.eval.placement import Placed
from scalelab.helpers.progress import show_bar
from scalelab.nn.stack import INPUTS, STATES
from scalelab.tasks.treebank import Sentence
from scalelab.training.pretrained import Pretrained

# Name -> function from ranges of words' pieces [n, 2] to the ranges to average [n, 2].
POOLING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda ranges: ranges,
    "first": lambda ranges: np.stack([ranges[:, 0], ranges[:, 0] + 1], axis=1),
    "last": lambda ranges: np.stack([ranges[:, 1] - 1, ranges[:, 1]], axis=1),
}


class Split(NamedTuple):
    """The sentences of a split that a model can read, with the states of their words."""

    sentences: Sequence[Sentence]
    numbers: np.ndarray  # [num_sentences] int64, the index of each in its file
    vectors: np.ndarray  # [num_words, L + 1, D] float32, the words in order

    @property
    def starts(self) -> np.ndarray:
        """The first word of each sentence and, last, the number of words."""
        return np.cumsum([0, *(len(sentence.words) for sentence in self.sentences)])


def read_splits(
    opened: Pretrained, items: Sequence[Sequence[Sentence]], asked: Asked, pooling: str = "mean"
) -> tuple[list[Split], tuple[str, ...]]:
    """Computes the states of each split, with notes on sentences left out; errors as in `read`.

    Args:
      opened: the model.
      items: sentences of each split.
      asked: batch sizes and devices.
      pooling: as in `read`.
    """
    placed = placement.place(opened, asked.tensor_parallel)
    splits = [read(opened, placed, x, pooling, batch_tokens=asked.batch_tokens) for x in items]
    return splits, describe_left_out(opened, splits, items)


def read(
    opened: Pretrained,
    placed: Placed,
    sentences: Sequence[Sentence],
    pooling: str = "mean",
    *,
    batch_tokens: int | None = None,
) -> Split:
    """Computes the states of all words. A sentence is one row, in the frame of training.

    A sentence is left out if it is too long for the model, or if the tokenizer drops a word of it.

    Args:
      opened: the run.
      placed: its model on the devices.
      sentences: treebank sentences; the model reads their original text with its spaces.
      pooling: a name in POOLING.
      batch_tokens: tokens in a batch, padding included; None: chosen for the device.

    Raises:
      ValueError: the model has a source, the pooling is unknown, no sentence is left, or a state is
        not finite.
    """
    if pooling not in POOLING:
        raise ValueError(f"pooling {pooling!r}: expected {', '.join(POOLING)}")
    layout = lay_out(opened, placed, sentences, batch_tokens)
    kept, found = [sentences[k] for k in layout.kept], np.zeros(0, np.float32)
    starts = np.cumsum([0, *(len(sentence.words) for sentence in kept)])
    for k, _, row in layout.compute(placed, _computer(placed.net), "states"):
        if not found.size:
            found = np.zeros((starts[-1], *row.shape[1:]), np.float32)
        own = POOLING[pooling](layout.pieces[k])
        # Every second sum is over own[:, 0] to own[:, 1]. The row of zeros makes each own[:, 1] a
        # valid index.
        sums = np.add.reduceat(np.concatenate([row, np.zeros_like(row[:1])]), own.ravel(), axis=0)[
            ::2
        ]
        found[starts[k] : starts[k + 1]] = sums / (own[:, 1] - own[:, 0])[:, None, None]
    if not np.isfinite(found).all():
        raise ValueError("the model's states are not finite: its training had diverged")
    return Split(kept, layout.kept, found)


class Layout(NamedTuple):
    """Sentences as rows of batches, in the frame of training."""

    kept: np.ndarray  # [num_kept] int64, indices of the sentences that have a row
    pieces: Sequence[np.ndarray]  # tokens of each row's words [n, 2]: first, and after the last
    batches: Iterator[tuple[np.ndarray, Mapping[str, np.ndarray]]]  # indices into `kept`, arrays

    def compute(
        self, placed: Placed, function: Callable[..., jax.Array], title: str
    ) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yields, for each sentence, its index in `kept`, its length in tokens and its result.

        Args:
          placed: parameters on the devices.
          function: (parameters, batch) -> results [B, ...].
          title: name of the progress bar.
        """
        with show_bar(title, len(self.kept), show=True) as tick:
            for rows, arrays in self.batches:
                made = np.asarray(function(placed.params, placed.put(arrays)))
                yield from zip(rows.tolist(), arrays["lengths"].tolist(), made, strict=False)
                tick(len(rows))


def lay_out(
    opened: Pretrained, placed: Placed, sentences: Sequence[Sentence], batch_tokens: int | None
) -> Layout:
    """Lays out the sentences that `read` keeps; errors as in `read`.

    Args:
      opened: the model.
      placed: its parameters on the devices.
      sentences: the sentences.
      batch_tokens: tokens of a batch, padding included; None: chosen for the device.
    """
    reading = make_reading(opened)
    room = reading.context
    starts, ids, pieces = opened.tokenizer.encode_aligned([s.text for s in sentences])
    ranges = [
        _pieces_of_words(sentence, *pieces[:2, start:stop])
        for sentence, start, stop in zip(sentences, starts, starts[1:], strict=False)
    ]
    fits = np.diff(starts) <= room
    fits &= [bool((own[:, 0] < own[:, 1]).all()) for own in ranges]
    kept = np.flatnonzero(fits)
    if not len(kept):
        raise ValueError(f"{opened.path} can read none of the sentences: {room} tokens at most")
    ids = np.concatenate([ids[starts[k] : starts[k + 1]] for k in kept]).astype(np.int32)
    starts = np.cumsum([0, *np.diff(starts)[kept]])
    batch_tokens = batch_tokens or (2048 if jax.default_backend() == "cpu" else 65_536)
    batch_size = max(1, batch_tokens // (room + reading.num_special))
    rows = likelihood.lay_rows(starts, reading)
    batches = (
        (batch.rows, likelihood.fill(batch, rows, ids, reading)[0])
        for batch in likelihood.plan(rows, reading, batch_size, placed.ways)
    )
    return Layout(kept, [ranges[k] + len(reading.begin) for k in kept], batches)


def make_reading(opened: Pretrained) -> Reading:
    """Returns the `Reading` of a probe: whole sentences without masks."""
    made = likelihood.make_reading(opened, causal=False, masked=False)
    return made._replace(in_place=True)


def describe_left_out(
    opened: Pretrained, splits: Sequence[Any], items: Sequence[Sequence[Sentence]]
) -> tuple[str, ...]:
    """Returns the note on sentences left out; () if none is left out."""
    num = sum(map(len, items))
    missing = num - sum(len(split.sentences) for split in splits)
    why = f"longer than {make_reading(opened).context} tokens, or the tokenizer drops a word"
    return (f"{missing:,} of {num:,} sentences are left out: {why}",) * bool(missing)


def _pieces_of_words(sentence: Sentence, begins: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Returns the range of the pieces that overlap each word: [num_words, 2].

    Args:
      sentence: the sentence.
      begins: [T], index of the first character of each piece.
      stops: [T], index of the character after each piece.
    """
    ends = np.array(sentence.stops)
    firsts = ends - [len(word) for word in sentence.words]
    return np.stack([np.searchsorted(stops, firsts, "right"), np.searchsorted(begins, ends)], 1)


@functools.lru_cache(maxsize=4)  # the next call does not compile again
def _computer(net: nn.Module) -> Callable[..., jax.Array]:
    """Returns (parameters, batch) -> the states of all layers [B, T, L + 1, D] float32."""

    def compute(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        (output, _), found = net.apply(
            {"params": params}, batch, train=False, mutable=[STATES, INPUTS]
        )
        if INPUTS not in found:
            raise ValueError("the model has no stack of layers, so nothing has states to probe")
        (first,), (layers,) = (jax.tree.leaves(found[name]) for name in (INPUTS, STATES))
        states = jnp.stack([first, *layers[:-1], output], axis=2)
        return states.astype(jnp.float32)

    return jax.jit(compute)
