"""Likelihood of documents, token by token.

A causal net predicts a token from those before it: -log p(x_t | x_<t). The first of a document has
nothing before it and is not predicted, as in training (`scalelab.objectives.clm`). A masked net
predicts it from all others: -log p(x_t | x without t), each token masked in turn, whose sum is the
pseudo-log-likelihood of Salazar et al. 2020 ("Masked language model scoring", equation 1).

Documents longer than what the net sees at once are read in windows: a token of a causal net has at
least context - stride tokens before it, one of a masked net half as many on either side.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from scalelab.data.corpora import Corpus
from scalelab.data.sentences import split as split_sentences
from scalelab.data.tokenizers import Tokenizer
from scalelab.eval import token_scores
from scalelab.eval.placement import Placed

Tick = Callable[[int], object]
AT_ONCE = 256  # documents that are encoded together
OPENING = 48  # characters of a document that tables show


@dataclasses.dataclass(frozen=True)
class Documents:
    """Documents to score, as training reads them: sentences joined by single spaces.

    Attributes:
      tokens: [n] int32, ids of all of them, without special tokens.
      starts: [num_documents + 1] int64, the offset of each in `tokens`.
      num_bytes: UTF-8 bytes of each.
      openings: the first characters of each.
    """

    tokens: np.ndarray
    starts: np.ndarray
    num_bytes: list[int]
    openings: list[str]


def read_documents(
    corpus: Corpus, split: str, max_docs: int | None, tokenizer: Tokenizer, tick: Tick
) -> Documents:
    """Reads and encodes the documents that have text.

    Args:
      corpus: the corpus.
      split: one of its splits.
      max_docs: number of documents to read, from the first; None: all.
      tokenizer: of the net.
      tick: called with the bytes on disk that were passed since the last call.

    Raises:
      ValueError: no such split, no text in it, or bytes that are not UTF-8.
    """
    joined = (" ".join(split_sentences(d)) for d in corpus.documents(split, tick))
    texts = itertools.islice(filter(None, joined), max_docs)
    ids, starts = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)]
    num_bytes: list[int] = []
    openings: list[str] = []
    while part := list(itertools.islice(texts, AT_ONCE)):
        flat, own_starts = tokenizer.encode_flat(part)
        ids.append(flat)
        starts.append(own_starts[1:] + starts[-1][-1])
        num_bytes += [len(text.encode("utf-8")) for text in part]
        openings += [text[:OPENING] for text in part]
    if not openings:
        raise ValueError(f"corpus {corpus.spec}: there is no text in its {split} split")
    return Documents(np.concatenate(ids), np.concatenate(starts), num_bytes, openings)


@dataclasses.dataclass(frozen=True)
class Reading:
    """The way a net reads documents.

    Attributes:
      begin: special ids before the text of a window.
      end: special ids behind it; none for a causal net.
      mask_id: replaces the predicted token; None: the net is causal.
      context: tokens of text that a window holds.
      stride: tokens of text by which it moves on.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    mask_id: int | None
    context: int
    stride: int

    def row_length(self, text_length: int | np.ndarray) -> Any:
        """Returns the tokens of a row that holds `text_length` tokens of text."""
        return len(self.begin) + text_length + len(self.end)


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows of one document, in order; indices of its tokens.

    Attributes:
      starts: [n] int64, the first token that each window sees.
      stops: [n] int64, behind the last one.
      firsts: [n] int64, the first token that it scores.
      lasts: [n] int64, behind the last one.
    """

    starts: np.ndarray
    stops: np.ndarray
    firsts: np.ndarray
    lasts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)


def slide(num_tokens: int, context: int, stride: int, ahead: int) -> Windows:
    """Lays windows over a document; each token is scored in one of them.

    A window holds behind + stride + ahead = context tokens: the `stride` that it scores, and those
    that it keeps on either side of them (the document's own ends apart).

    Args:
      num_tokens: of the document, at least 1.
      context: tokens of it that the net sees at once.
      stride: tokens that a window adds, in [1, context].
      ahead: tokens that a scored one has behind it at least, in [0, context - stride]; before it
        are then at least context - stride - ahead. Both hold but at the document's ends.
    """
    assert num_tokens > 0 and 1 <= stride <= context and 0 <= ahead <= context - stride
    count = 1 + max(0, -(-(num_tokens - context) // stride))
    starts = np.arange(count, dtype=np.int64) * stride
    firsts = starts + (context - stride - ahead)
    firsts[0] = 0
    lasts = np.append(firsts[1:], num_tokens)
    return Windows(starts, np.minimum(starts + context, num_tokens), firsts, lasts)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows that are scored together.

    Attributes:
      rows: [at most B] int64, their numbers.
      size: B.
      length: T.
      num_places: P, predictions in a row at most.
    """

    rows: np.ndarray
    size: int
    length: int
    num_places: int


def lay_rows(starts: np.ndarray, reading: Reading) -> Windows:
    """Lays out the rows that score every token once.

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
            made = slide(stop - start, reading.context, reading.stride, ahead)
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


def plan(rows: Windows, reading: Reading, batch_size: int, ways: int = 1) -> list[Batch]:
    """Sorts rows into batches of few shapes, the largest first.

    Args:
      rows: the rows to score.
      reading: how they are read.
      batch_size: rows of a full context in a batch; of shorter ones there are more.
      ways: devices that share a batch; B is a multiple of them.
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
        size = -(-size // ways) * ways
        cuts = range(size, len(members), size)
        for part in np.split(np.asarray(members, np.int64), cuts):
            batches.append(Batch(part, size, length, num_places))
    return batches


def fill(
    batch: Batch, rows: Windows, tokens: np.ndarray, reading: Reading
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns the batch for the net, and places and targets [B, P] int32, padded with 0."""
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
    placed: Placed,
    tokens: np.ndarray,
    rows: Windows,
    batches: Sequence[Batch],
    reading: Reading,
    tick: Tick,
) -> np.ndarray:
    """Computes minus the log-probability of each token.

    Args:
      placed: the net on its devices.
      tokens: [n] ids of all documents.
      rows: from `rows_of`.
      batches: from `plan`.
      reading: how they are read.
      tick: called with the positions that were computed since the last call.

    Returns:
      [n] float32, nats; NaN for tokens that are not predicted.

    Raises:
      ValueError: a score is not finite.
    """
    score = jax.jit(lambda *given: token_scores.nats(placed.net, *given))
    found = np.full(len(tokens), np.nan, np.float32)
    for batch in batches:
        made = np.asarray(score(placed.params, *placed.put(fill(batch, rows, tokens, reading))))
        for i, row in enumerate(batch.rows):
            scored = slice(rows.firsts[row], rows.lasts[row])
            own = made[i, : rows.lasts[row] - rows.firsts[row]]
            if not np.isfinite(own).all():
                raise ValueError("the net's scores are not finite: its training had diverged")
            assert np.isnan(found[scored]).all(), "a token is scored twice"
            found[scored] = own
        tick(len(batch.rows) * batch.length)
    return found
