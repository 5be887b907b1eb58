"""SPAN-CORRUPTION: a text with spans replaced by sentinels, and a target of these spans.

Raffel et al. 2020, 3.1.4 and 3.3.4; google-research/text-to-text-transfer-transformer,
`random_spans_noise_mask`. A text has sentences of one document, as in `doc_sentences`:

    text    w1 w2 w3 w4 w5 w6 w7 w8
    source  w1 w2 sentinel_0 w4 w5 w6 sentinel_1 eos
    tokens  sentinel_0 w3 sentinel_1 w7 w8 eos

- `noise_rate` of the tokens is dropped, rounded, in spans of `mean_span` tokens on average.
- Kept and dropped spans alternate, and the text ends with a dropped span. All ways to cut are
  equally likely. They change with the epoch.
- The length of a text is chosen so that its source has at most `max_len` tokens.
- With `across_documents` a text goes on in the next document, without a separator, so that no text
  but the last is short. The published code does so (`reduce_concat_tokens`).
- The paper's figure 2 ends the target with one more sentinel; the published code does not.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from scalelab.formats import (
    Documents,
    Examples,
    Specials,
    assembly,
    doc_sentences,
    draws,
    full_sentences,
)

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    noise_rate: assembly.Rate = 0.15
    mean_span: Annotated[float, ("at least 1", lambda value: value >= 1)] = 3.0  # tokens
    across_documents: bool = False  # True: a text goes on in the next document


def counts(num_tokens: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of dropped tokens and of spans of texts: int64 [...] each.

    Raffel et al. 2020, 3.3.4. Both are 0 for an empty text.

    Args:
      num_tokens: [...] int, tokens of texts.
      options: rate of noise and mean length of spans.
    """
    dropped = assembly.share(num_tokens, options.noise_rate)
    spans = np.clip(np.rint(dropped / options.mean_span), 1, np.maximum(num_tokens - dropped, 1))
    return dropped, (spans * (num_tokens > 0)).astype(np.int64)


@functools.cache
def text_length(max_len: int, options: Options) -> int:
    """Returns the length of the longest text with a source, `eos` included, of `max_len` tokens."""
    lengths = np.arange(2 + int(max_len / (1 - options.noise_rate)))
    dropped, spans = counts(lengths, options)
    return int(np.flatnonzero(lengths - dropped + spans + 1 <= max_len).max(initial=0))


def target_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest target, `eos` included."""
    dropped, spans = counts(np.array(text_length(max_len, options)), options)
    return int(dropped + spans + 1)


STORED, ARRAYS = assembly.text_arrays(text_length), assembly.pair_arrays(target_length)


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
      ValueError: `max_len` leaves no space, or the system has too few sentinels.
    """
    options = options or Options()
    longest = text_length(max_len, options)
    num_spans = int(counts(np.array(longest), options)[1])
    if num_spans > (there := len(specials.sentinels)):
        how = "set a larger --config.format_options.mean_span, a smaller noise_rate or max_len"
        if not there:
            how = (
                "choose a system whose tokenizer has sentinels, as t5's; that of --init replaces it"
            )
        raise ValueError(
            f"span_corruption drops {num_spans} spans of a text of {longest} tokens, but the"
            f" tokenizer has {there} sentinels: {how}"
        )
    form = full_sentences if options.across_documents else doc_sentences
    return form.build(documents, specials=Specials(), max_len=longest, **given)


def corrupt(
    batch: dict[str, np.ndarray], *, specials: Specials, options: Options, max_len: int, **address
) -> dict[str, np.ndarray]:
    """Drops spans of each text [B, T]."""
    text, lengths = batch["tokens"], batch["lengths"].astype(np.int64)
    dropped, num_spans = counts(lengths, options)
    streams = draws.streams(2, **address)
    kept_parts, dropped_parts = (
        cut(draws.uniform(stream[:, None], np.arange(text.shape[1])), count, num_spans)
        for stream, count in zip(streams, (lengths - dropped, dropped), strict=True)
    )
    lengths_of_parts = np.stack([kept_parts, dropped_parts], -1).reshape(len(text), -1)
    part = number(lengths_of_parts, text.shape[1])  # 0: kept, 1: dropped, 2: kept, ...
    places = np.arange(text.shape[1])
    is_text, is_dropped = places < lengths[:, None], part % 2 == 1
    opens = is_text & is_dropped & np.diff(part, axis=1, prepend=0).astype(bool)
    sentinels = np.asarray(specials.sentinels, np.int64)
    pairs = np.stack([sentinels[np.minimum(part // 2, len(sentinels) - 1)], text], -1)
    pairs, made, end = pairs.reshape(len(text), -1), dict(batch), (specials.ids["eos"],)
    for name, here, width in (
        ("tokens", is_dropped, target_length(max_len, options)),
        ("source", ~is_dropped, max_len),
    ):
        taken = np.stack([opens, is_text & here], -1).reshape(pairs.shape)
        made |= assembly.pack(name, pairs, taken, lengths > 0, width, end=end)
    return made


def cut(chances: np.ndarray, num_tokens: np.ndarray, num_parts: np.ndarray) -> np.ndarray:
    """Cuts rows of tokens into parts that are not empty; all ways are equally likely.

    Args:
      chances: uniform draws [B, T].
      num_tokens: length of each row [B], at most T.
      num_parts: number of parts of each row [B], at most its length.

    Returns:
      The length of each part, int64 [B, most parts].
    """
    places = np.arange(chances.shape[1])
    inner = (places > 0) & (places < num_tokens[:, None])
    chances = np.where(inner, chances, 2.0)
    order = np.sort(np.pad(chances, ((0, 0), (1, 0)), constant_values=-1.0), axis=1)
    last = np.take_along_axis(order, np.maximum(num_parts - 1, 0)[:, None], axis=1)
    part = np.cumsum(inner & (chances <= last), axis=1)
    most = max(int(num_parts.max(initial=1)), 1)
    at = (most * np.arange(len(part))[:, None] + part)[places < num_tokens[:, None]]
    return np.bincount(at, minlength=most * len(part)).reshape(-1, most)


def number(lengths: np.ndarray, width: int) -> np.ndarray:
    """Numbers the parts of rows: the part of each place, int64 [B, width].

    A place behind all parts has their number.

    Args:
      lengths: [B, most parts] int64, tokens of each part.
      width: places of a row.
    """
    ends = np.cumsum(lengths, axis=1) + (width + 1) * np.arange(len(lengths))[:, None]
    begins = np.bincount(ends.reshape(-1), minlength=(width + 1) * len(lengths))
    return np.cumsum(begins.reshape(-1, width + 1)[:, :width], axis=1)
