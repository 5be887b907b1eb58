"""Attention between the words of sentences (Clark et al. 2019, "What Does BERT Look At?").

K = L N is the number of heads of all layers. Entry [i, j] of a map is the attention from i to j.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from scalelab.eval.placement import Placed
from scalelab.eval.probes import states
from scalelab.nn.attention import WEIGHTS
from scalelab.tasks.treebank import PUNCTUATION, Sentence
from scalelab.training.pretrained import Pretrained

SURFACE = ("itself", "previous", "next", "begin", "end", "punctuation", "entropy")


class Attention(NamedTuple):
    """The attention of K heads in sentences."""

    sentences: Sequence[Sentence]  # the sentences that fit the model
    maps: Sequence[np.ndarray]  # between the words of each sentence: [K, n, n] float32
    surface: np.ndarray  # [K, 7], means over tokens, in the order of SURFACE


def read(
    opened: Pretrained,
    placed: Placed,
    sentences: Sequence[Sentence],
    batch_tokens: int | None = None,
) -> Attention:
    """Computes the attention of every head in sentences, without dropout.

    Args:
      opened: the model.
      placed: its parameters on the devices.
      sentences: the sentences.
      batch_tokens: tokens of a batch, padding included; None: 2048.

    Raises:
      ValueError: the model has no attention, or as in `states.read`.
    """
    layout = states.lay_out(opened, placed, sentences, batch_tokens or 2048)
    kept, frame = [sentences[k] for k in layout.kept], opened.frame_text(causal=False)
    maps: list[Any] = [None] * len(kept)
    sums, counts = np.zeros(0), np.zeros(len(SURFACE))
    for k, num, row in layout.compute(placed, _computer(placed.net), "attention"):
        own, pieces = row[:, :num, :num], layout.pieces[k]
        maps[k] = between_words(own, pieces)
        text = range(len(frame.begin), num - len(frame.end))
        marks = [upos == PUNCTUATION for upos in kept[k].upos]
        more = surface(own, text, _covers(pieces[marks], num).sum(axis=0) > 0)
        sums, counts = (sums + more[0] if sums.size else more[0]), counts + more[1]
    if not np.isfinite(sums).all():
        raise ValueError("the model's attention is not finite: its training had diverged")
    return Attention(kept, maps, sums / counts)


@functools.lru_cache(maxsize=4)  # the next call does not compile again
def _computer(net: nn.Module) -> Callable[..., jax.Array]:
    """Returns (parameters, batch) -> the attention of all heads [B, K, T, T] float32."""

    def compute(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        _, found = net.apply({"params": params}, batch, train=False, mutable=["intermediates"])
        leaves = jax.tree_util.tree_leaves_with_path(found)
        weights = [x for path, x in leaves if jax.tree_util.DictKey(WEIGHTS) in path]
        if not weights:
            raise ValueError("this model has no attention to read")
        (layers,) = weights  # [L, B, N, T, T]
        heads = layers.swapaxes(0, 1).astype(jnp.float32)
        return heads.reshape(heads.shape[0], -1, *heads.shape[3:])

    return jax.jit(compute)


def between_words(maps: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    """Turns attention between tokens into attention between words (4.1).

    Attention to a word is the sum over its pieces; attention from a word is the mean over them.

    Args:
      maps: [K, T, T].
      pieces: [n, 2], the first token of each word and the token after its last.

    Returns:
      [K, n, n]; attention to tokens outside all words is left out.
    """
    member = _covers(pieces, maps.shape[1])
    return (member / member.sum(axis=1, keepdims=True)) @ maps @ member.T


def _covers(ranges: np.ndarray, num_tokens: int) -> np.ndarray:
    """Returns 1 for the tokens inside each range [n, 2], else 0: [n, T] float32."""
    places = np.arange(num_tokens)
    return ((places >= ranges[:, :1]) & (places < ranges[:, 1:])).astype(np.float32)


def surface(
    maps: np.ndarray, text: range, punctuation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums the attention from T tokens by its target (3.1 to 3.3).

    Args:
      maps: [K, T, T].
      text: the tokens without special tokens; only attention from these tokens counts.
      punctuation: [T] bool.

    Returns:
      [K, 7] sums in the order of SURFACE (the last is the entropy in nats), and [7] numbers of
      tokens.
    """
    rows = np.arange(text.start, text.stop)
    own = maps[:, rows]
    sums, counts = [], [len(rows)] * len(SURFACE)
    for column, offset in enumerate((0, -1, 1)):
        there = rows[(rows + offset >= 0) & (rows + offset < maps.shape[1])]
        sums.append(maps[:, there, there + offset].sum(axis=1))
        counts[column] = len(there)
    for part in (own[..., : text.start], own[..., text.stop :], own[..., punctuation]):
        sums.append(part.sum(axis=(1, 2)))
    sums.append(-(own * np.log(np.maximum(own, 1e-30))).sum(axis=(1, 2)))
    return np.stack(sums, axis=1), np.array(counts)
