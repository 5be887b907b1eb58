"""Scores the tokens of documents under a net with a memory.

A document is read in windows that do not overlap. Each window sees the memory that the windows
before it left, as in training; the first sees an empty memory (Dai et al. 2019, "Transformer-XL",
3.2).
"""

import itertools

import numpy as np

from scalelab.eval import likelihood, token_scores
from scalelab.eval.likelihood import Batch, Reading, Windows
from scalelab.eval.placement import Placed
from scalelab.helpers.progress import show_bar


def lay_windows(starts: np.ndarray, reading: Reading) -> tuple[Windows, np.ndarray]:
    """Cuts documents into windows of `reading.context` tokens.

    If no special token stands before the text, the last state of a window predicts the first token
    of the next one.

    Args:
      starts: [num_documents + 1] int64, where each document begins in the flat tokens.
      reading: how the documents are read.

    Returns:
      The windows in order, and [num_documents + 1] offsets: document d has the windows from
      offset d up to offset d + 1.
    """
    parts = [np.arange(start, stop, reading.context) for start, stop in itertools.pairwise(starts)]
    places = np.cumsum([0, *map(len, parts)])
    firsts = np.concatenate([np.zeros(0, np.int64), *parts])
    ends = np.repeat(starts[1:], np.diff(places))
    shift = int(not reading.begin)
    stops = np.minimum(firsts + reading.context, ends)
    lasts = np.minimum(stops + shift, ends)
    return Windows(firsts, stops, firsts + shift, np.maximum(lasts, firsts + shift), stops), places


def score(
    placed: Placed,
    tokens: np.ndarray,
    starts: np.ndarray,
    reading: Reading,
    batch_size: int,
    judge: token_scores.Judge,
) -> np.ndarray:
    """Judges the tokens of documents; arguments and result are those of `likelihood.score`.

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
            carried = None
            for place in range(counts[group[0]]):
                batch = Batch(places[group[counts[group] > place]] + place, size, length)
                given, at, scored = likelihood.fill(batch, rows, tokens, reading)
                shared = at._replace(at=placed.put(at.at), targets=placed.put(at.targets))
                values, carried = run(placed.params, placed.put(given), shared, carried)
                values = np.asarray(values)[: len(scored)]
                if not np.isfinite(values).all():
                    raise ValueError("the net's scores are not finite: its training had diverged")
                if found is None:
                    found = np.full((len(tokens), *values.shape[1:]), np.nan, np.float32)
                found[scored] = values
                tick(len(batch.rows))
    assert found is not None, "no document has a token"
    return found
