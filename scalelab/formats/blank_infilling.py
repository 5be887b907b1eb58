"""BLANK-INFILLING: the source is a text with blanks, the target is the blanks in random order.

Du et al. 2022 ("GLM"), 2.1. A text has sentences of one document, as in `doc_sentences`:

    text    w1 w2 w3 w4 w5 w6
    source  begin w1 w2 mask w4 mask end       Part A
    tokens  w5 w6 eos w3 eos                   Part B
    blanks  5  5  5   3  3                     the place of each token's mask in Part A

- `noise_rate` of the tokens, rounded, is in blanks of `mean_span` tokens on average, as in
  `span_corruption`: their number is fixed, and all ways to cut are equally likely. The paper draws
  the lengths from a Poisson distribution of mean 3.
- The blanks are anywhere in the text, and may touch each other; all ways are equally likely.
- Places, lengths and order of the blanks change with the epoch.
- The length of a text is chosen so that Parts A and B have at most `max_len` tokens together.
- The paper also trains on one long blank at the end of a text, or on blanks of whole sentences
  (2.1.2), which this format does not make.
"""

import functools
from collections.abc import Iterator

import numpy as np

from scalelab.formats import (
    Array,
    Documents,
    Examples,
    Specials,
    assembly,
    doc_sentences,
    draws,
    full_sentences,
)
from scalelab.formats.span_corruption import Options, counts, cut, number

VERSION = 1


@functools.cache
def text_length(max_len: int, options: Options) -> int:
    """Returns the length of the longest text with Parts A and B of `max_len` tokens together."""
    lengths = np.arange(max_len + 1)
    _, num_blanks = counts(lengths, options)
    return int(np.flatnonzero(lengths + 2 * num_blanks <= max_len).max(initial=0))


def target_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest Part B."""
    return int(sum(counts(np.array(text_length(max_len, options)), options)))


def source_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest Part A, with its special tokens."""
    return max_len - target_length(max_len, options)


STORED = assembly.text_arrays(text_length)
ARRAYS = (
    *assembly.pair_arrays(target_length, source_length),
    Array("blanks", "ragged", "int32", target_length),
)


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    options: Options | None = None,
    **given,
) -> Iterator[Examples]:
    """Cuts documents into texts.

    Raises:
      ValueError: `max_len` leaves no space, no text has as many noise tokens as a blank of
        `mean_span` (the default is always accepted, and cut), or the system has no mask or no end
        of a blank.
    """
    options, frame = options or Options(), len(specials.begin) + len(specials.end)
    _ = specials.ids["mask"], specials.ids["eos"]
    lengths = np.arange(text_length(max_len, options) + 1)
    dropped, num_blanks = counts(lengths, options)
    fits = lengths - dropped + num_blanks + frame <= source_length(max_len, options)
    longest = int(np.flatnonzero(fits).max(initial=0))
    if longest < 1:
        raise ValueError(
            f"blank_infilling: max_len = {max_len} leaves no token of text beside {frame} special"
            " tokens, a mask, and the end of a blank: set a larger max_len"
        )
    if options.mean_span > (most := max(int(dropped[longest]), Options.mean_span)):
        raise ValueError(
            f"format_options.mean_span = {options.mean_span:g}: with noise_rate ="
            f" {options.noise_rate:g} all blanks of an example of max_len = {max_len} have"
            f" {dropped[longest]} tokens: set it to {most:g} or less, or a larger noise_rate or"
            " max_len"
        )
    form = full_sentences if options.across_documents else doc_sentences
    return form.build(documents, specials=Specials(), max_len=longest, **given)


def corrupt(
    batch: dict[str, np.ndarray], *, specials: Specials, options: Options, max_len: int, **address
) -> dict[str, np.ndarray]:
    """Moves blanks of each text [B, T] to Part B."""
    text, lengths = batch["tokens"], batch["lengths"].astype(np.int64)
    places, filled = np.arange(text.shape[1]), lengths > 0
    dropped, num_blanks = counts(lengths, options)
    *streams, order = draws.streams(3, **address)
    part = _parts(streams, lengths - dropped, dropped, num_blanks, text.shape[1])
    is_text = places < lengths[:, None]
    in_blank = is_text & (part % 2 == 1)
    opens = in_blank & np.diff(part, axis=1, prepend=0).astype(bool)
    closes = in_blank & np.diff(part, axis=1, append=-1).astype(bool)
    kept = is_text & ~in_blank

    values, taken = np.stack([np.full_like(text, specials.ids["mask"]), text], -1), (opens, kept)
    values, taken = (x.reshape(len(text), -1) for x in (values, np.stack(taken, -1)))
    width, frame = source_length(max_len, options), (specials.begin, specials.end)
    made = batch | assembly.pack("source", values, taken, filled, width, *frame)

    most = max(int(num_blanks.max(initial=1)), 1)
    ranks = np.argsort(draws.shuffle(order, np.arange(most), num_blanks), axis=1)
    rank = np.take_along_axis(ranks, np.minimum(part // 2, most - 1), axis=1)
    mask_places = len(specials.begin) + np.cumsum(opens, axis=1) + np.cumsum(kept, axis=1) - 1
    last = most * len(places)  # behind all tokens of blanks
    keys = (len(places) * rank + places)[..., None]
    slots = np.where(np.stack([in_blank, closes], -1), keys, last).reshape(len(text), -1)
    by_rank = np.argsort(slots, axis=1, kind="stable")
    taken, width = np.sort(slots, axis=1) < last, target_length(max_len, options)
    ends = np.full_like(text, specials.ids["eos"])
    for name, pair in (("tokens", (text, ends)), ("blanks", (mask_places, mask_places))):
        values = np.take_along_axis(np.stack(pair, -1).reshape(slots.shape), by_rank, axis=1)
        made |= assembly.pack(name, values, taken, filled, width)
    return made


def _parts(
    streams: list[np.ndarray],
    kept: np.ndarray,
    dropped: np.ndarray,
    num_blanks: np.ndarray,
    width: int,
) -> np.ndarray:
    """Numbers the parts of texts, [B, width]: 0 is kept, 1 the first blank, 2 kept, and so on.

    Args:
      streams: two streams of keys, uint64 [B].
      kept: tokens of Part A, [B]; none may be before, between and behind the blanks.
      dropped: tokens of all blanks, [B].
      num_blanks: [B].
      width: places of a row.
    """
    # Cut with one token more in each part, so that a part may be empty.
    gaps = draws.uniform(streams[0][:, None], np.arange(width + num_blanks.max(initial=0) + 1))
    gaps = np.maximum(cut(gaps, kept + num_blanks + 1, num_blanks + 1) - 1, 0)
    blanks = cut(draws.uniform(streams[1][:, None], np.arange(width)), dropped, num_blanks)
    blanks = np.pad(blanks, ((0, 0), (0, gaps.shape[1] - blanks.shape[1])))
    return number(np.stack([gaps, blanks], -1).reshape(len(kept), -1), width)
