"""Scores the tokens of documents under a model with a memory.

A document is read in windows that do not overlap. Each window sees the memory of the windows before
it, as in training; the first window sees an empty memory (Dai et al. 2019, "Transformer-XL", 3.2).
A masked model reads a window once for each token, with this token masked, and once without masks,
for the memory.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from scalelab.eval import likelihood, token_scores
from scalelab.eval.likelihood import Batch, Reading, Windows
from scalelab.eval.placement import Placed
from scalelab.helpers.progress import show_bar


def lay_windows(starts: np.ndarray, reading: Reading) -> tuple[Windows, np.ndarray]:
    """Cuts documents into windows of `reading.context` tokens.

    If a causal model has no special token before the text, the last state of a window predicts the
    first token of the next one.

    Args:
      starts: [num_documents + 1] int64, offset of each document in the flat tokens.
      reading: the way to read documents.

    Returns:
      The windows in order, and offsets [num_documents + 1]: document d has the windows
      offsets[d] to offsets[d + 1] - 1.
    """
    parts = [np.arange(start, stop, reading.context) for start, stop in itertools.pairwise(starts)]
    places = np.cumsum([0, *map(len, parts)])
    firsts = np.concatenate([np.zeros(0, np.int64), *parts])
    ends = np.repeat(starts[1:], np.diff(places))
    shift = int(reading.looks_back and not reading.begin)
    stops = np.minimum(firsts + reading.context, ends)
    lasts = np.minimum(stops + shift, ends)
    return Windows(firsts, stops, firsts + shift, np.maximum(lasts, firsts + shift), stops), places


def passes(windows: Windows, reading: Reading) -> Iterator[Windows]:
    """Yields the passes over windows; the last one reads the text without masks, for the memory."""
    if reading.mask_id is None:
        yield windows
        return
    for place in range((windows.stops - windows.starts).max() + 1):
        first, last = (np.minimum(windows.starts + k, windows.stops) for k in (place, place + 1))
        yield Windows(windows.starts, windows.stops, first, last, last)


def score(
    placed: Placed,
    tokens: np.ndarray,
    starts: np.ndarray,
    reading: Reading,
    batch_size: int,
    judge: token_scores.Judge,
) -> np.ndarray:
    """Judges the tokens of documents; the result is as in `likelihood.score`.

    Args:
      placed: the model on its devices.
      tokens: [n] ids of all documents.
      starts: [num_documents + 1] offsets of the documents.
      reading: context and special tokens of a window.
      batch_size: documents that are read at a time.
      judge: scores the tokens.

    Raises:
      ValueError: a score is not finite.
    """
    rows, places = lay_windows(starts, reading)
    counts = np.diff(places)
    order = np.argsort(-counts, kind="stable")
    size = placed.round_up(min(batch_size, len(order)))
    length = reading.context + reading.num_special
    run, found = likelihood.compile_judge(placed.net, judge), None
    with show_bar("windows", len(rows.starts), show=True) as tick:
        for group in np.split(order, range(size, len(order), size)):
            carried = after = None
            for place in range(counts[group[0]]):
                numbers = places[group[counts[group] > place]] + place
                batch = Batch(np.arange(len(numbers)), size, length)
                for windows in passes(Windows(*(x[numbers] for x in rows)), reading):
                    given, at, scored = likelihood.fill(batch, windows, tokens, reading)
                    shared = at._replace(at=placed.put(at.at), targets=placed.put(at.targets))
                    values, after = run(placed.params, placed.put(given), shared, carried)
                    values = np.asarray(values)[: len(scored)]
                    if not np.isfinite(values).all():
                        raise ValueError("the model's scores are not finite: its training diverged")
                    if found is None:
                        found = np.full((len(tokens), *values.shape[1:]), np.nan, np.float32)
                    found[scored] = values
                carried = after
                tick(len(numbers))
    assert found is not None, "no document has a token"
    return found
