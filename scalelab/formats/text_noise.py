"""TEXT-NOISE: the source is a noised text, the target is the whole text.

Lewis et al. 2020 ("BART"), 2.2. A text has sentences of one document, as in `doc_sentences`:

    text    w1 w2 w3 w4 . w5 w6 w7 .
    source  begin w5 mask w7 . w1 mask w4 mask . end
    tokens  begin w1 w2 w3 w4 . w5 w6 w7 . end

`noise` names the noises, joined by "+". They are applied in this order, and anew in each epoch:

| noise | change of the text |
|---|---|
| permutation | its sentences change places |
| masking | tokens become mask |
| deletion | tokens are removed |
| infilling | spans become one mask each; a span without tokens inserts a mask |
| rotation | it begins with a token chosen uniformly, and the tokens before this one come last |

- Masking, deletion and infilling each take `noise_rate` of the tokens, rounded.
- The lengths of spans are Poisson draws of mean `mean_span` until the tokens are used up; the last
  span is cut. Masks and kept tokens are interleaved, and all ways are equally likely. So spans may
  touch each other, which the paper leaves open.
- With `across_documents` a text goes on in the next document, behind `between`, which is noised as
  a token of the sentence before it.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated

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

VERSION = 1
NOISES = ("permutation", "masking", "deletion", "infilling", "rotation")


def _are_noises(names: str) -> bool:
    return sorted({*NOISES} & {*names.split("+")}) == sorted(names.split("+"))


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    noise: Annotated[str, (f"some of {', '.join(NOISES)}, joined by '+'", _are_noises)] = (
        "infilling+permutation"
    )
    noise_rate: assembly.Rate = 0.3
    mean_span: Annotated[float, ("from 1 to 100", lambda value: 1 <= value <= 100)] = 3.0  # tokens
    across_documents: bool = False  # True: a text goes on in the next document


def most_spans(num_tokens: np.ndarray, options: Options) -> np.ndarray:
    """Returns the largest number of spans that replace tokens: int64 [...].

    Args:
      num_tokens: [...] int, tokens that are replaced.
      options: with the mean length of spans.
    """
    most = np.ceil((num_tokens + 4 * np.sqrt(num_tokens)) / options.mean_span) + 1
    return np.minimum(most, num_tokens).astype(np.int64)


@functools.cache
def most_tokens(max_len: int, options: Options) -> np.ndarray:
    """Returns the most tokens that a text of 0, 1, ..., `max_len` has with noise: int64."""
    most = np.arange(max_len + 1)
    for name in options.noise.split("+"):
        taken = assembly.share(most, options.noise_rate)
        if name == "deletion":
            most = most - np.minimum(taken, np.maximum(most - 1, 0))
        elif name == "infilling":
            most = most - taken + most_spans(taken, options)
    return np.maximum.accumulate(most)


def source_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest source."""
    return int(most_tokens(max_len, options)[-1])


# `opens` is 1 at the first token of a sentence.
STORED = (*assembly.text_arrays(), Array("opens", "ragged", "uint8"))
ARRAYS = (*assembly.text_arrays(), Array("source", "ragged", None, source_length))


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
      ValueError: `max_len` leaves no space, or the system has no mask.
    """
    options, frame = options or Options(), len(specials.begin) + len(specials.end)
    if {"masking", "infilling"} & {*options.noise.split("+")}:
        _ = specials.ids["mask"]
    most = most_tokens(max_len, options)
    room = int(np.searchsorted(most, most[-1] - frame, "right")) - 1
    if room < 1:
        raise ValueError(
            f"max_len = {max_len} leaves no token for a source beside {frame} special ones at"
            f" noise_rate = {options.noise_rate}: set it to more, at least to {frame + 1}"
        )
    units = np.zeros(len(documents.tokens), np.uint8)
    units[documents.sentence_starts[:-1]] = 1
    documents = dataclasses.replace(documents, units=units)
    longest = min(room + frame, max_len)
    form = full_sentences if options.across_documents else doc_sentences
    for chunk in form.build(documents, specials=specials, max_len=longest, **given):
        chunk.ragged["opens"] = chunk.ragged.pop("units")
        yield chunk


def corrupt(
    batch: dict[str, np.ndarray], *, specials: Specials, options: Options, max_len: int, **address
) -> dict[str, np.ndarray]:
    """Adds noise to each text [B, T]."""
    begin, end, filled = specials.begin, specials.end, batch["lengths"] > 0
    text, opens = (batch[name][:, len(begin) :] for name in ("tokens", "opens"))
    lengths = (batch["lengths"].astype(np.int64) - len(begin) - len(end)) * filled
    streams = dict(zip(NOISES, draws.streams(len(NOISES), **address), strict=True))
    places = np.arange(text.shape[1])
    for name in (noise for noise in NOISES if noise in options.noise.split("+")):
        stream, order = streams[name], places[None]
        if name == "permutation":
            order = draws.shuffle(stream, np.cumsum(opens, axis=1), lengths)
        elif name == "rotation":
            size = np.maximum(lengths, 1)[:, None]
            order = (places + draws.below(stream[:, None], np.array(0), size)) % size
        elif name == "infilling":
            text, lengths = infill(text, lengths, stream, specials.ids["mask"], options)
        else:
            count = assembly.share(lengths, options.noise_rate)
            if name == "deletion":  # a single token stays, so that no source is empty
                count = np.minimum(count, np.maximum(lengths - 1, 0))
            taken = draws.subset(stream, lengths, count, text.shape[1])
            if name == "masking":
                text = np.where(taken, specials.ids["mask"], text)
            else:
                order, lengths = np.argsort(taken, axis=1, kind="stable"), lengths - count
        text = np.take_along_axis(text, order, axis=1)
    made = {name: values for name, values in batch.items() if not name.startswith("opens")}
    width, is_text = source_length(max_len, options), places < lengths[:, None]
    return made | assembly.pack("source", text, is_text, filled, width, begin, end)


def infill(
    text: np.ndarray, lengths: np.ndarray, stream: np.ndarray, mask: int, options: Options
) -> tuple[np.ndarray, np.ndarray]:
    """Replaces spans of each text by one mask each.

    Args:
      text: [B, T].
      lengths: tokens of each text [B].
      stream: keys of the rows, uint64 [B].
      mask: id of the mask.
      options: rate and mean length of spans.

    Returns:
      The texts, [B, T], and their lengths, int64 [B].
    """
    dropped = assembly.share(lengths, options.noise_rate)
    sizes, num_spans = cut_spans(dropped, stream, options)
    lengths = lengths - dropped + num_spans
    is_mask = draws.subset(draws.mix(stream), lengths, num_spans, text.shape[1])
    before = np.cumsum(is_mask, axis=1)  # masks up to each place
    skipped = np.pad(np.cumsum(sizes, axis=1), ((0, 0), (1, 0)))  # tokens of 0, 1, ... spans
    at = np.arange(text.shape[1]) - before + np.take_along_axis(skipped, before, axis=1)
    at = np.minimum(at, text.shape[1] - 1)
    return np.where(is_mask, mask, np.take_along_axis(text, at, axis=1)), lengths


def cut_spans(
    dropped: np.ndarray, stream: np.ndarray, options: Options
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts tokens into spans of Poisson lengths, in random order (Lewis et al. 2020, BART, 2.2).

    Args:
      dropped: [B] int64, tokens of all spans of a text.
      stream: [B] uint64 keys.
      options: with the mean length of spans.

    Returns:
      The tokens of each span, int64 [B, most spans], and the number of spans, int64 [B].
    """
    mean = options.mean_span
    terms = mean / np.arange(1, int(mean + 20 * mean**0.5 + 20))
    # The probabilities that a span has at most 0, 1, ... tokens.
    chances = np.cumsum(np.exp(-mean) * np.cumprod(np.append(1.0, terms)))
    most = most_spans(dropped, options)
    numbers = np.arange(most.max(initial=0))
    drawn = np.searchsorted(chances, draws.uniform(stream[:, None], numbers), side="right")
    ends = np.minimum(np.cumsum(drawn, axis=1), dropped[:, None])
    begins = np.pad(ends, ((0, 0), (1, 0)))[:, :-1]
    is_span = (begins < dropped[:, None]) & (numbers < most[:, None])
    num_spans = is_span.sum(axis=1)
    is_last = numbers == num_spans[:, None] - 1
    sizes = np.where(is_last, dropped[:, None], ends) - begins
    # Only the last span is cut and none without tokens follows it, so the order is drawn again.
    order = draws.shuffle(draws.mix(~stream), numbers, num_spans)
    return np.take_along_axis(sizes * is_span, order, axis=1), num_spans
