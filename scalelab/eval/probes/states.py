"""The frozen states of a net: a vector for each word at every layer.

Layer 0 is the input of the first layer, the embedding. The last layer is the net's output, after
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

from scalelab.eval import likelihood
from scalelab.eval.likelihood import Reading
from scalelab.eval.placement import Placed
from scalelab.eval.probes.treebank import Sentence
from scalelab.helpers.progress import show_bar
from scalelab.nn.stack import STATES, Stack
from scalelab.runs.pretrained import Pretrained

# Name -> (ranges of words' pieces [n, 2] -> ranges that are averaged).
POOLING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda ranges: ranges,
    "first": lambda ranges: np.stack([ranges[:, 0], ranges[:, 0] + 1], axis=1),
    "last": lambda ranges: np.stack([ranges[:, 1] - 1, ranges[:, 1]], axis=1),
}


def read(
    opened: Pretrained,
    placed: Placed,
    sentences: Sequence[Sentence],
    pooling: str = "mean",
    *,
    batch_tokens: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the states of all words. A sentence is one row, in the frame of training.

    Args:
      opened: the run.
      placed: its net on the devices.
      sentences: treebank sentences; the net reads their original text with its spaces.
      pooling: a name in POOLING.
      batch_tokens: tokens in a batch, padding included; None: chosen for the device.

    Returns:
      [num_words, L + 1, D] float32, the words of the kept sentences in order; and the indices of
      the kept sentences, int64. A sentence is left out if it is too long for the net, or if the
      tokenizer drops one of its words.

    Raises:
      ValueError: the net has a source, the pooling is unknown, no sentence is left, or a state is
        not finite.
    """
    if pooling not in POOLING:
        raise ValueError(f"pooling {pooling!r}: expected {', '.join(POOLING)}")
    layout = lay_out(opened, placed, sentences, batch_tokens)
    kept, compute, found = layout.kept, _computer(placed.net), None
    word_starts = np.cumsum([0, *(len(sentences[k].words) for k in kept)])
    with show_bar("states", len(kept), show=True) as tick:
        for rows, arrays in layout.batches:
            made = np.asarray(compute(placed.params, placed.put(arrays)))
            if found is None:
                found = np.zeros((word_starts[-1], *made.shape[2:]), np.float32)
            for row, k in zip(made, rows, strict=False):
                own = POOLING[pooling](layout.pieces[k])
                # Every second sum is over own[:, 0] to own[:, 1]. The row of zeros makes each
                # own[:, 1] a valid index.
                padded = np.concatenate([row, np.zeros_like(row[:1])])
                sums = np.add.reduceat(padded, own.ravel(), axis=0)[::2]
                counts = (own[:, 1] - own[:, 0])[:, None, None]
                found[word_starts[k] : word_starts[k + 1]] = sums / counts
            tick(len(rows))
    assert found is not None
    if not np.isfinite(found).all():
        raise ValueError("the net's states are not finite: its training had diverged")
    return found, kept


class Layout(NamedTuple):
    """Sentences as rows of batches, in the frame of training."""

    kept: np.ndarray  # [num_kept] int64, indices of the sentences that have a row
    pieces: Sequence[np.ndarray]  # for each, its words' tokens [n, 2]: first, after the last
    batches: Iterator[tuple[np.ndarray, Mapping[str, np.ndarray]]]  # indices into `kept`, arrays


def lay_out(
    opened: Pretrained, placed: Placed, sentences: Sequence[Sentence], batch_tokens: int | None
) -> Layout:
    """Lays out the sentences that `read` keeps; arguments and errors are those of `read`."""
    frame, room = opened.tokenizer.frame(), longest(opened)
    reading = Reading(frame.begin, frame.end, None, room, room, in_place=True)
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
    return Layout(kept, [ranges[k] + len(frame.begin) for k in kept], batches)


def longest(opened: Pretrained) -> int:
    """Returns the number of tokens that the net reads beside the frame."""
    frame = opened.tokenizer.frame()
    return opened.config.net.max_len - len(frame.begin) - len(frame.end)


def describe_left_out(opened: Pretrained, num_left_out: int, num: int) -> tuple[str, ...]:
    """Returns the note on the sentences, of `num`, that `read` left out; () if it left out none."""
    why = f"longer than {longest(opened)} tokens, or the tokenizer drops a word"
    return (f"{num_left_out:,} of {num:,} sentences are left out: {why}",) * bool(num_left_out)


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


@functools.lru_cache(maxsize=4)  # so that the next call compiles nothing again
def _computer(net: nn.Module) -> Callable[..., jax.Array]:
    """Returns (parameters, batch) -> the states of all layers [B, T, L + 1, D] float32."""

    def compute(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        inputs = []

        def keep_input(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            if isinstance(context.module, Stack) and context.method_name == "__call__":
                inputs.append(args[0])
            return call(*args, **kwargs)

        with nn.intercept_methods(keep_input):
            (output, _), found = net.apply({"params": params}, batch, train=False, mutable=[STATES])
        (first,), (layers,) = inputs, jax.tree.leaves(found)
        states = jnp.stack([first, *layers[:-1], output], axis=2)
        return states.astype(jnp.float32)

    return jax.jit(compute)
