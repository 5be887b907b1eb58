"""One or two texts with special tokens around them: what a net is given of a labelled task."""

import dataclasses

import numpy as np

from scalelab.formats.documents import Frame

VERSION = 1  # of the rows that `assemble` makes; part of the cache's key


@dataclasses.dataclass(frozen=True)
class Rows:
    """Token rows of different lengths.

    Attributes:
      tokens: flat ids, special ones included, int32.
      starts: [n + 1] int64, offsets into `tokens`.
      boundaries: [n] int32, index in the row where the second text begins; the row's length where
        there is one text.
      truncated: [n] bool, whether a text was cut to fit.
    """

    tokens: np.ndarray
    starts: np.ndarray
    boundaries: np.ndarray
    truncated: np.ndarray


def kept_lengths(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Longest-first truncation: tokens go from the end of the longer text until both fit.

    Where both are equally long, the second loses one, as in `transformers`.

    Args:
      first: [n] lengths.
      second: [n] lengths.
      room: tokens that may stay.

    Returns:
      [n] and [n]: lengths that stay.
    """
    kept = np.minimum(first, np.maximum(room - second, room - room // 2))
    return kept, np.minimum(second, room - kept)


def assemble(
    first: list[np.ndarray], second: list[np.ndarray] | None, frame: Frame, max_len: int
) -> Rows:
    """Joins each example's texts: begin a end, or begin a between b end.

    Args:
      first: ids of each first text.
      second: ids of each second text; None: a task of single texts.
      frame: the special ids around them.
      max_len: tokens of the longest row; longer texts are cut.

    Raises:
      ValueError: not even the special tokens fit.
    """
    special = len(frame.begin) + len(frame.end) + (len(frame.between) if second is not None else 0)
    room = max_len - special
    if room < 1:
        raise ValueError(
            f"max_len = {max_len} leaves no room for text beside {special} special tokens"
        )
    lengths = np.array([len(ids) for ids in first], np.int64)
    others = np.array([len(ids) for ids in second or [()] * len(first)], np.int64)
    if second is None:
        kept, kept_others = np.minimum(lengths, room), others
    else:
        kept, kept_others = kept_lengths(lengths, others, room)
    begin, between, end = (list(ids) for ids in (frame.begin, frame.between, frame.end))
    pieces: list[np.ndarray | list[int]] = []
    for i, ids in enumerate(first):
        pieces += [begin, ids[: kept[i]]]
        if second is not None:
            pieces += [between, second[i][: kept_others[i]]]
        pieces.append(end)
    totals = kept + kept_others + special
    starts = np.zeros(len(first) + 1, np.int64)
    np.cumsum(totals, out=starts[1:])
    boundaries = totals if second is None else len(begin) + kept + len(between)
    return Rows(
        np.concatenate([np.asarray(p, np.int32) for p in pieces] or [np.zeros(0, np.int32)]),
        starts,
        boundaries.astype(np.int32),
        (kept < lengths) | (kept_others < others),
    )
