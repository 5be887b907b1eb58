"""Likelihood of documents, token by token.

A causal net predicts a token from the tokens before it: -log p(x_t | x_<t). The first token of a
document is not predicted, as in training (`scalelab.objectives.clm`). A masked net predicts a token
from all others: -log p(x_t | x without t), with each token masked in turn. The log-probabilities
sum to the pseudo-log-likelihood of Salazar et al. 2020 ("Masked language model scoring", eq. 1).

Documents longer than the context are read in windows: a token of a causal net has at least
context - stride tokens before it, a token of a masked net half as many on either side.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from scalelab.data.corpora import Corpus
from scalelab.data.sentences import split as split_sentences
from scalelab.data.tokenizers import Tokenizer
from scalelab.eval import token_scores
from scalelab.eval.placement import Placed
from scalelab.helpers.progress import show_bar

AT_ONCE = 256  # documents that are encoded together
OPENING = 48  # characters of a document that tables show


class Documents(NamedTuple):
    """Documents to score, as training reads them: sentences joined by single spaces."""

    tokens: np.ndarray  # [n] int32, ids of all of them, without special tokens
    starts: np.ndarray  # [num_documents + 1] int64, the offset of each in `tokens`
    num_bytes: list[int]  # UTF-8 bytes of each
    openings: list[str]  # the first characters of each


def read_documents(
    corpus: Corpus,
    split: str,
    max_docs: int | None,
    tokenizer: Tokenizer,
    tick: Callable[[int], object],
) -> Documents:
    """Reads and encodes the documents of a split that have text: the first `max_docs`, or all.

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


class Reading(NamedTuple):
    """The way a net reads documents."""

    begin: tuple[int, ...]  # special ids before the text of a window
    end: tuple[int, ...]  # special ids after it; none for a causal net
    mask_id: int | None  # replaces the predicted token; None: the net is causal
    context: int  # tokens of text that a window holds
    stride: int  # tokens of text by which it moves on

    @property
    def num_special(self) -> int:
        """Special tokens of a row."""
        return len(self.begin) + len(self.end)


class Windows(NamedTuple):
    """Windows of documents, in order: [n] int64 each, indices of tokens."""

    starts: np.ndarray  # the first token that each sees
    stops: np.ndarray  # after the last one that it sees
    firsts: np.ndarray  # the first token that it scores
    lasts: np.ndarray  # after the last one that it scores


def slide(num_tokens: int, context: int, stride: int, ahead: int) -> Windows:
    """Lays windows over a document; each token is scored in one of them.

    A window holds behind + stride + ahead = context tokens: `stride` scored tokens, and the context
    on either side of them (except at the document's ends).

    Args:
      num_tokens: of the document, at least 1.
      context: tokens of it that the net sees at once.
      stride: tokens that a window adds, in [1, context].
      ahead: least number of tokens after a scored one, in [0, context - stride].
    """
    assert num_tokens > 0 and 1 <= stride <= context and 0 <= ahead <= context - stride
    count = 1 + max(0, -(-(num_tokens - context) // stride))
    starts = np.arange(count, dtype=np.int64) * stride
    firsts = starts + (context - stride - ahead)
    firsts[0] = 0
    lasts = np.append(firsts[1:], num_tokens)
    return Windows(starts, np.minimum(starts + context, num_tokens), firsts, lasts)


def lay_rows(starts: np.ndarray, reading: Reading) -> Windows:
    """Lays out the rows that score every token once; a row of a masked net scores one token.

    Args:
      starts: [num_documents + 1] int64, where each document begins in the flat tokens.
      reading: how they are read.
    """
    causal = reading.mask_id is None
    ahead = 0 if causal else (reading.context - reading.stride) // 2
    parts = [np.zeros((4, 0), np.int64)]
    for start, stop in itertools.pairwise(starts.tolist()):
        if stop > start:
            made = slide(stop - start, reading.context, reading.stride, ahead)
            if causal and not reading.begin:
                made.firsts[0] = 1
            parts.append(np.stack(made) + start)
    table = np.concatenate(parts, axis=1)
    counts = table[3] - table[2]
    if causal:
        return Windows(*table[:, counts > 0])
    table = np.repeat(table, counts, axis=1)
    table[2] += np.arange(table.shape[1]) - np.repeat(np.cumsum(counts) - counts, counts)
    table[3] = table[2] + 1
    return Windows(*table)


class Batch(NamedTuple):
    """Rows that are scored together."""

    rows: np.ndarray  # [at most B] int64, their numbers
    size: int  # B
    length: int  # T
    num_places: int  # P, predictions in a row at most


def plan(rows: Windows, reading: Reading, batch_size: int, ways: int = 1) -> Iterator[Batch]:
    """Sorts rows into batches of few shapes, the largest first.

    A batch has `batch_size` rows of a full context, more of shorter ones; B is a multiple of
    `ways`, the devices that share it.
    """
    longest = reading.context + reading.num_special
    lengths = rows.stops - rows.starts + reading.num_special
    shapes: dict[tuple[int, int], list[int]] = {}
    for i, (length, count) in enumerate(zip(lengths, rows.lasts - rows.firsts, strict=True)):
        padded = token_scores.round_up(int(length), longest)
        places = 1 if reading.mask_id is not None else token_scores.round_up(int(count), padded)
        shapes.setdefault((padded, places), []).append(i)
    for (length, num_places), members in sorted(shapes.items(), reverse=True):
        size = token_scores.round_up(len(members), max(1, batch_size * longest // length))
        size = -(-size // ways) * ways
        for part in np.split(np.asarray(members), range(size, len(members), size)):
            yield Batch(part, size, length, num_places)


def fill(
    batch: Batch, rows: Windows, tokens: np.ndarray, reading: Reading
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns the batch for the net, and places and targets [B, P] int32, padded with 0."""
    shape = batch.size, batch.num_places
    places, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    filled = []
    for i, row in enumerate(batch.rows):
        start, stop, first, last = (int(column[row]) for column in rows)
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
    placed: Placed, tokens: np.ndarray, starts: np.ndarray, reading: Reading, batch_size: int
) -> np.ndarray:
    """Computes minus the log-probability of each of the `tokens` [n], with a progress bar.

    Documents begin at `starts` [num_documents + 1]. Returns [n] float32, nats; NaN for tokens that
    are not predicted.

    Raises:
      ValueError: a score is not finite.
    """
    rows = lay_rows(starts, reading)
    batches = list(plan(rows, reading, batch_size, placed.ways))
    total = sum(len(batch.rows) * batch.length for batch in batches)
    score = jax.jit(lambda *given: token_scores.nats(placed.net, *given))
    found = np.full(len(tokens), np.nan, np.float32)
    with show_bar("scores", total, show=True, unit=" positions") as tick:
        for batch in batches:
            made = np.asarray(score(placed.params, *placed.put(fill(batch, rows, tokens, reading))))
            for own, row in zip(made, batch.rows, strict=False):
                first, last = rows.firsts[row], rows.lasts[row]
                assert np.isnan(found[first:last]).all(), "a token is scored twice"
                found[first:last] = own[: last - first]
                if not np.isfinite(found[first:last]).all():
                    raise ValueError("the net's scores are not finite: its training had diverged")
            tick(len(batch.rows) * batch.length)
    return found
