"""Likelihood of documents, token by token.

A causal net predicts a token from those before it: -log p(x_t | x_<t). The first of a document has
nothing before it and is not predicted, as in training (`scalelab.objectives.clm`). A masked net
predicts it from all others: -log p(x_t | x without t), each token masked in turn, whose sum is the
pseudo-log-likelihood of Salazar et al. 2020 ("Masked language model scoring", equation 1).

Documents longer than what the net sees at once are read in windows (`scalelab.eval.windows`): a
token of a causal net has at least context - stride tokens before it, one of a masked net half as
many on either side.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from scalelab.eval import token_scores, windows
from scalelab.eval.windows import Windows


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a net reads documents.

    Attributes:
      begin: special ids before the text of a window.
      end: those behind it; none for a causal net.
      mask_id: stands for the token that is predicted; None: the net is causal.
      context: tokens of text that a window holds.
      stride: tokens of text by which it moves on.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    mask_id: int | None
    context: int
    stride: int

    def row_length(self, text_length: int | np.ndarray) -> Any:
        """Tokens of a row that holds so many of text."""
        return len(self.begin) + text_length + len(self.end)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows that are scored together.

    Attributes:
      rows: [at most B] int64, which ones.
      size: B.
      length: T.
      num_places: P, predictions in a row at most.
    """

    rows: np.ndarray
    size: int
    length: int
    num_places: int


def rows_of(starts: np.ndarray, reading: Reading) -> Windows:
    """The rows that score every token once.

    Args:
      starts: [num_documents + 1] int64, where each document begins in the flat tokens.
      reading: how they are read.

    Returns:
      A window a row, its indices those of the flat tokens. For a masked net a row scores one token.
    """
    causal = reading.mask_id is None
    spare = reading.context - reading.stride
    parts = [np.zeros((4, 0), np.int64)]
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if stop > start:
            ahead = 0 if causal else spare // 2
            made = windows.slide(stop - start, reading.context, reading.stride, ahead)
            if causal and not reading.begin:
                made.firsts[0] = 1
            parts.append(np.stack([made.starts, made.stops, made.firsts, made.lasts]) + start)
    table = np.concatenate(parts, axis=1)
    counts = table[3] - table[2]
    if causal:
        return Windows(*table[:, counts > 0])
    table = np.repeat(table, counts, axis=1)
    place_in_window = np.arange(table.shape[1]) - np.repeat(np.cumsum(counts) - counts, counts)
    table[2] += place_in_window
    table[3] = table[2] + 1
    return Windows(*table)


def plan(rows: Windows, reading: Reading, batch_size: int) -> list[Batch]:
    """Sorts rows into batches of few shapes, the largest first.

    Args:
      rows: what to score.
      reading: how.
      batch_size: rows of a full context in a batch; of shorter ones there are more.
    """
    longest = reading.row_length(reading.context)
    lengths = reading.row_length(rows.stops - rows.starts)
    shapes: dict[tuple[int, int], list[int]] = {}
    for i, (length, count) in enumerate(zip(lengths, rows.lasts - rows.firsts, strict=True)):
        padded = token_scores.round_up(int(length), longest)
        places = 1 if reading.mask_id is not None else token_scores.round_up(int(count), padded)
        shapes.setdefault((padded, places), []).append(i)
    batches = []
    for (length, num_places), members in sorted(shapes.items(), reverse=True):
        size = max(1, batch_size * longest // length)
        size = token_scores.round_up(len(members), size)
        cuts = range(size, len(members), size)
        for part in np.split(np.asarray(members, np.int64), cuts):
            batches.append(Batch(part, size, length, num_places))
    return batches


def fill(
    batch: Batch, rows: Windows, tokens: np.ndarray, reading: Reading
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Makes the arrays of a batch.

    Returns:
      The batch for the net; places [B, P] and targets [B, P] int32, 0 where there are fewer.
    """
    shape = batch.size, batch.num_places
    places, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    filled = []
    for i, row in enumerate(batch.rows):
        start, stop = rows.starts[row], rows.stops[row]
        first, last = rows.firsts[row], rows.lasts[row]
        ids = np.concatenate([reading.begin, tokens[start:stop], reading.end]).astype(np.int32)
        at = len(reading.begin) + np.arange(first, last) - start
        targets[i, : last - first] = tokens[first:last]
        if reading.mask_id is None:
            places[i, : last - first] = at - 1
        else:
            places[i, : last - first] = at
            ids[at] = reading.mask_id
        filled.append(ids)
    return token_scores.pad(filled, batch.length, batch.size), places, targets


def token_nats(
    net: nn.Module,
    params: Any,
    tokens: np.ndarray,
    rows: Windows,
    batches: Sequence[Batch],
    reading: Reading,
    tick: Callable[[int], object],
) -> np.ndarray:
    """Scores tokens.

    Args:
      net: a system's, unbound.
      params: its parameters.
      tokens: [n] ids of all documents.
      rows: from `rows_of`.
      batches: from `plan`.
      reading: how they are read.
      tick: called with the positions that were computed since the last call.

    Returns:
      [n] float32, minus the log-probability of each token; NaN for what is not predicted.

    Raises:
      ValueError: the net gave something that is not finite.
    """
    score = jax.jit(lambda *given: token_scores.nats(net, *given))
    found = np.full(len(tokens), np.nan, np.float32)
    for batch in batches:
        made = np.asarray(score(params, *fill(batch, rows, tokens, reading)))
        for i, row in enumerate(batch.rows):
            scored = slice(rows.firsts[row], rows.lasts[row])
            own = made[i, : rows.lasts[row] - rows.firsts[row]]
            if not np.isfinite(own).all():
                raise ValueError("the net's scores are not finite: its training had diverged")
            assert np.isnan(found[scored]).all(), "a token is scored twice"
            found[scored] = own
        tick(len(batch.rows) * batch.length)
    return found
