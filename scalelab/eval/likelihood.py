"""Likelihood of documents, token by token.

A causal model predicts a token from the tokens before it: -log p(x_t | x_<t). The first token of a
document is not predicted, as in training (`scalelab.objectives.clm`), unless the system puts a
token before it. A masked model predicts a
token from all others: -log p(x_t | x without t), with each token masked in turn. The
log-probabilities sum to the pseudo-log-likelihood of Salazar et al. 2020 ("Masked language model
scoring", eq. 1).

Documents longer than the context are read in windows. A token of a causal model has at least
context - stride tokens before it; a token of a masked model has at least half of them on each side.
"""

import functools
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from scalelab.data.corpora import Corpus
from scalelab.data.sentences import split as split_sentences
from scalelab.data.tokenizers import Tokenizer
from scalelab.eval import token_scores
from scalelab.eval.placement import Placed
from scalelab.helpers import files
from scalelab.helpers.progress import show_bar
from scalelab.training.pretrained import Pretrained

AT_ONCE = 256  # documents that are encoded together
SAVE_SECS = 10.0  # between two saves of partial results
MOST_CELLS = 2**25  # maximum cells of the table that finds equal prefixes
OPENING = 48  # characters of a document that tables show


class Documents(NamedTuple):
    """Documents to score, as training reads them: sentences joined by single spaces."""

    tokens: np.ndarray  # [n] int32, ids of all documents, without special tokens
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
    """Reads and encodes the documents of a split that have text.

    Args:
      corpus: the corpus.
      split: name of the split.
      max_docs: only the first so many; None: all.
      tokenizer: the model's tokenizer.
      tick: called with the number of bytes read.

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
    """The way a model reads documents."""

    begin: tuple[int, ...]  # special ids before the text of a window
    end: tuple[int, ...]  # special ids after it; none for a causal model
    mask_id: int | None  # replaces the predicted token; None: the model is causal
    context: int  # tokens of text that a window holds
    stride: int  # tokens of text between the starts of two windows
    in_place: bool = False  # nothing is masked, and each token is judged at its own position
    # The state before a masked token predicts this token, and all tokens see each other.
    shifted: bool = False
    source: tuple[int, ...] | None = None  # ids that the encoder reads; None without an encoder

    @property
    def num_special(self) -> int:
        """Number of special tokens of a row."""
        return len(self.begin) + len(self.end)

    @property
    def looks_back(self) -> int:
        """1 if the state before a token predicts it, else 0."""
        return int(self.shifted or (self.mask_id is None and not self.in_place))


def make_reading(
    opened: Pretrained, *, causal: bool, masked: bool, length: int | None = None
) -> Reading:
    """Returns the `Reading` of single texts; a text that fits is one row.

    Args:
      opened: the run.
      causal: whether each token is predicted from the tokens before it.
      masked: whether a mask replaces the predicted token.
      length: tokens of a row, special ones included; None means the model's number of positions.

    Raises:
      ValueError: the model reads a source, but its READING and FRAME put no token into it.
    """
    begin, end, source = opened.frame_text(causal=causal)
    if source == ():
        raise ValueError(
            f"the model in {opened.path} reads a source, but its system puts no special token into"
            " the source of a single text: declare one in FRAME or READING"
        )
    room = (length or opened.config.model.max_len) - len(begin) - len(end)
    mask_id = opened.tokenizer.special_ids["mask"] if masked else None
    return Reading(begin, end, mask_id, room, room, source=source)


class Windows(NamedTuple):
    """Windows of documents, in order: [n] int64 each, indices of tokens."""

    starts: np.ndarray  # the first token that the window sees
    stops: np.ndarray  # the token after the last one that it sees
    firsts: np.ndarray  # the first token that it scores; a masked model sees a mask there
    lasts: np.ndarray  # the token after the last one that it scores
    hidden: np.ndarray  # the token after the last masked one, for a masked model


def slide(num_tokens: int, context: int, stride: int, ahead: int) -> Windows:
    """Cuts a document into windows; each token is scored in one of them.

    A window has behind + stride + ahead = context tokens: `stride` scored tokens, and context
    tokens on both sides of them (except at the document's ends).

    Args:
      num_tokens: number of tokens of the document, at least 1.
      context: number of tokens that the model sees at once.
      stride: number of scored tokens of a window, in [1, context].
      ahead: minimum number of tokens after a scored token, in [0, context - stride].
    """
    assert num_tokens > 0 and 1 <= stride <= context and 0 <= ahead <= context - stride
    count = 1 + max(0, -(-(num_tokens - context) // stride))
    starts = np.arange(count, dtype=np.int64) * stride
    firsts = starts + (context - stride - ahead)
    firsts[0] = 0
    lasts = np.append(firsts[1:], num_tokens)
    return Windows(starts, np.minimum(starts + context, num_tokens), firsts, lasts, lasts)


def lay_rows(starts: np.ndarray, reading: Reading, word_stops: np.ndarray | None = None) -> Windows:
    """Lays out the rows that score every token once; a row of a masked model scores one token.

    Args:
      starts: [num_documents + 1] int64, offset of each document in the flat tokens.
      reading: the way to read them.
      word_stops: [n] int64, index after the last token of each token's word. With it a masked model
        does not see the rest of the word (Kauf and Ivanova 2023, "PLL-word-l2r"); None: it does.
    """
    whole_rows = reading.mask_id is None
    ahead = 0 if whole_rows else (reading.context - reading.stride) // 2
    parts = [np.zeros((5, 0), np.int64)]
    for start, stop in itertools.pairwise(starts.tolist()):
        if stop > start:
            made = slide(stop - start, reading.context, reading.stride, ahead)
            if reading.looks_back and not reading.begin:
                made.firsts[0] = 1
            parts.append(np.stack(made) + start)
    table = np.concatenate(parts, axis=1)
    counts = table[3] - table[2]
    if whole_rows:
        return Windows(*table[:, counts > 0])
    table = np.repeat(table, counts, axis=1)
    table[2] += np.arange(table.shape[1]) - np.repeat(np.cumsum(counts) - counts, counts)
    table[3] = table[2] + 1
    table[4] = table[3] if word_stops is None else np.minimum(word_stops[table[2]], table[1])
    return Windows(*table)


def trim(rows: Windows, wanted: np.ndarray) -> Windows:
    """Drops rows without wanted tokens, and unwanted scored tokens at the ends of rows.

    Args:
      rows: windows of a text of n tokens.
      wanted: [n] bool.
    """
    places = np.flatnonzero(wanted)
    first, last = np.searchsorted(places, rows.firsts), np.searchsorted(places, rows.lasts)
    kept = Windows(*(column[last > first] for column in rows))
    first, last = first[last > first], last[last > first]
    return kept._replace(firsts=places[first], lasts=places[last - 1] + 1)


class Batch(NamedTuple):
    """Rows that are scored together."""

    rows: np.ndarray  # [at most B] int64, their indices
    size: int  # B
    length: int  # T


def plan(rows: Windows, reading: Reading, batch_size: int, ways: int = 1) -> Iterator[Batch]:
    """Sorts rows into batches of few lengths, the longest first.

    Args:
      rows: windows of a text.
      reading: context and special tokens of a row.
      batch_size: rows of full length in a batch; shorter rows are more.
      ways: number of devices that share a batch; B is a multiple of it.
    """
    longest = reading.context + reading.num_special
    lengths = _round_up(rows.stops - rows.starts + reading.num_special, longest)
    for length in np.unique(lengths)[::-1].tolist():
        members = np.flatnonzero(lengths == length)
        size = token_scores.round_up(len(members), max(1, batch_size * longest // length))
        size = -(-size // ways) * ways
        for part in np.split(members, range(size, len(members), size)):
            yield Batch(part, size, length)


def _round_up(lengths: np.ndarray, most: int) -> np.ndarray:
    """Rounds lengths up, so that few programs are compiled: to 8, 10, ... 32, then 64, 128, ..."""
    steps = [*range(8, 33, 2)]
    while steps[-1] < most:
        steps.append(2 * steps[-1])
    return np.minimum(np.asarray(steps)[np.searchsorted(steps, lengths)], most)


def fill(
    batch: Batch, rows: Windows, tokens: np.ndarray, reading: Reading
) -> tuple[dict[str, np.ndarray], token_scores.Places, np.ndarray]:
    """Fills a batch with its rows.

    Args:
      batch: from `plan`.
      rows: all rows.
      tokens: [n] int32, ids of all documents.
      reading: the way to read documents.

    Returns:
      The batch for the model (tokens [B, T], lengths [B], ...), its scored places, and the index in
      `tokens` of each scored token.
    """
    begin, end = (np.asarray(ids, np.int32) for ids in (reading.begin, reading.end))
    starts, stops, firsts, lasts, hidden = (column[batch.rows, None] for column in rows)
    ids = np.zeros((batch.size, batch.length), np.int32)
    text, num = ids[: len(batch.rows)], stops - starts
    at = np.arange(batch.length) - len(begin)  # index in the text
    inside = (at >= 0) & (at < num)
    np.copyto(text, tokens[np.clip(starts + at, 0, len(tokens) - 1)], where=inside)
    text[:, : len(begin)] = begin
    np.put_along_axis(text, len(begin) + num + np.arange(len(end)), end[None], axis=1)
    if reading.mask_id is not None:
        np.putmask(text, (at >= firsts - starts) & (at < hidden - starts), reading.mask_id)
    lengths = np.zeros(batch.size, np.int32)
    lengths[: len(batch.rows)] = num[:, 0] + reading.num_special

    counts = (lasts - firsts)[:, 0]
    row = np.repeat(np.arange(len(counts)), counts)
    scored = firsts[row, 0] + np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    near = scored - starts[row, 0] + len(begin) - reading.looks_back
    most = batch.size * (1 if reading.mask_id is not None else batch.length)
    places, targets = np.zeros((2, most), np.int32)
    places[: len(row)], targets[: len(row)] = row * batch.length + near, tokens[scored]
    made = {"tokens": ids, "lengths": lengths, "examples": np.arange(batch.size, dtype=np.int32)}
    if reading.shifted:
        made["visible"] = np.broadcast_to(np.int32([0, batch.length]), (*ids.shape, 2))
    if reading.source is not None:
        source = np.array(reading.source, np.int32)
        made["source"] = np.broadcast_to(source, (batch.size, len(source)))
        made["source_lengths"] = np.full(batch.size, len(source), np.int32)
    return made, token_scores.Places(places, targets, np.int32(len(row))), scored


def first_with_prefix(tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns for each token [n] the index of one token with the same prefix, itself included.

    All tokens with equal prefixes get the same index. A causal model gives them the same score.

    Args:
      tokens: [n] ids of all texts.
      starts: [num_texts + 1] offsets of the texts.
    """
    lengths, found = np.diff(starts), np.arange(len(tokens))
    table = np.full((len(lengths), lengths.max(initial=0)), -1, np.int32)
    inside = np.arange(table.shape[1]) < lengths[:, None]
    table[inside] = tokens
    order = np.lexsort(table.T[::-1])
    table, inside = table[order], inside[order]
    shared = np.zeros_like(inside)  # whether the previous text in this order has the same prefix
    shared[1:] = np.logical_and.accumulate(table[1:] == table[:-1], axis=1)
    owner = np.maximum.accumulate(np.where(shared, 0, np.arange(len(order))[:, None]), axis=0)
    places = starts[:-1][order][owner] + np.arange(table.shape[1])
    found[(starts[:-1][order][:, None] + np.arange(table.shape[1]))[inside]] = places[inside]
    return found


def score(
    placed: Placed,
    tokens: np.ndarray,
    starts: np.ndarray,
    reading: Reading,
    batch_size: int,
    *,
    judge: token_scores.Judge | None = None,
    word_stops: np.ndarray | None = None,
    wanted: np.ndarray | None = None,
    partial: pathlib.Path | None = None,
) -> np.ndarray:
    """Judges the tokens of texts in their context.

    Args:
      placed: the model on the devices.
      tokens: [n] ids.
      starts: [num_texts + 1], offset of each text in `tokens`.
      reading: the way to read texts.
      batch_size: number of rows of full length in a batch.
      judge: a function of token_scores; None: `token_scores.nats`.
      word_stops: as in `lay_rows`.
      wanted: [n] bool, the tokens that need a score; None: all.
      partial: as in `score_rows`.

    Returns:
      [n, ...] float32; minus the log-probabilities, in nats, for the default judge. NaN for tokens
      that are not judged: unwanted tokens (some are judged), and a text's first token if nothing
      predicts it.

    Raises:
      ValueError: a score is not finite.
    """
    judge = judge or (None if reading.in_place else token_scores.nats)
    rows = lay_rows(starts, reading, word_stops)
    same = None
    longest = np.diff(starts).max(initial=0)
    is_causal = reading.mask_id is None and not reading.in_place
    if is_causal and longest <= reading.context and longest * len(starts) <= MOST_CELLS:
        same = first_with_prefix(tokens, starts)
        needed = np.zeros(len(tokens), bool)
        needed[same if wanted is None else same[wanted]] = True
        wanted = needed
    rows = rows if wanted is None else trim(rows, wanted)
    found = score_rows(placed, tokens, rows, reading, batch_size, judge, partial=partial)
    return found if same is None else found[same]


def score_rows(
    placed: Placed,
    tokens: np.ndarray,
    rows: Windows,
    reading: Reading,
    batch_size: int,
    judge: token_scores.Judge | None,
    *,
    partial: pathlib.Path | None = None,
    show: bool = True,
) -> np.ndarray:
    """Judges the tokens that the rows score, with a progress bar.

    Args:
      placed: the model on its devices.
      tokens: [n] ids of all texts.
      rows: from `lay_rows`.
      reading: context and special tokens of a row.
      batch_size: rows of full length in a batch.
      judge: as in `token_scores.judge_places`.
      partial: file for partial results; the next call with the same batches continues from it;
        None: no file.
      show: whether the bar is shown.

    Returns:
      [n, ...] float32; NaN for tokens that no row scores.

    Raises:
      ValueError: a score is not finite.
    """
    batches = list(plan(rows, reading, batch_size, placed.ways))
    total = sum(len(batch.rows) * batch.length for batch in batches)
    run = compile_judge(placed.net, judge)
    found, done, saved_at = np.full(len(tokens), np.nan, np.float32), 0, time.monotonic()
    saved = load_partial(partial)
    if saved.get("of") == len(batches):  # the number of devices changes the batches
        found, done = saved["found"], int(saved["done"])
    with show_bar("scores", total, show=show) as tick:
        tick(sum(len(batch.rows) * batch.length for batch in batches[:done]))
        for k, batch in enumerate(batches[done:], done + 1):
            given, places, scored = fill(batch, rows, tokens, reading)
            shared = places._replace(at=placed.put(places.at), targets=placed.put(places.targets))
            values = np.asarray(run(placed.params, placed.put(given), shared)[0])[: len(scored)]
            if found.ndim < values.ndim:  # the first batch
                found = np.full((len(tokens), *values.shape[1:]), np.nan, np.float32)
            assert np.isnan(found[scored]).all(), "a token is scored twice"
            found[scored] = values
            if not np.isfinite(values).all():
                raise ValueError("the model's scores are not finite: its training had diverged")
            tick(len(batch.rows) * batch.length)
            if partial is not None and time.monotonic() - saved_at >= SAVE_SECS:
                save_partial(partial, done=k, of=len(batches), found=found)
                saved_at = time.monotonic()
    return found


def save_partial(path: pathlib.Path | None, **arrays: np.typing.ArrayLike) -> None:
    """Writes the results so far to an npz file; an interruption leaves the previous file.

    Args:
      path: the file; None: nothing is written.
      **arrays: name -> array.
    """
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_partial(path: pathlib.Path | None) -> dict[str, np.ndarray]:
    """Returns the arrays of `save_partial`; {} if there is no file."""
    if path is None or not path.exists():
        return {}
    with files.reading(path, ": delete it to start again"), path.open("rb") as file:
        with np.load(file) as saved:
            return dict(saved)


@functools.lru_cache(maxsize=4)  # the next call does not compile again
def compile_judge(net: nn.Module, judge: token_scores.Judge | None) -> Callable[..., Any]:
    """Returns the compiled judge: (params, batch, places, carried) -> (scores, carried)."""
    return jax.jit(functools.partial(token_scores.judge_places, net, judge))
