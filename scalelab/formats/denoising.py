"""DENOISING: the objectives that T5's study compares with span corruption.

Raffel et al. 2020, table 3 and 3.3.1. A text has sentences of one document, as in `doc_sentences`.
`style` chooses source and target, each ended by `eos`:

| style | source | target |
|---|---|---|
| bert_style | text; of the noised tokens 90% are mask, 10% are random | text |
| mass_style | text; all noised tokens are mask | text |
| drop | text without the noised tokens | the noised tokens |
| prefix | the first tokens, from one to all but one | the other tokens |
| deshuffle | text in random order | text |
| lm | nothing | text |

- `noise_rate` of the tokens is noised, rounded. In the paper each token is with this probability.
- The mask is the role "mask", or the first sentinel if the system has none.
- The length of a text is chosen so that source and target have at most `max_len` tokens.
- `across_documents` is the option of `span_corruption`.
- All random choices change with the epoch.
- With `prefix` each side has space for the whole text. Across documents a row has two texts of
  equal length, whose cuts mirror each other, so that no position is padding:

      source  a1 a2 eos b1 b2 b3 b4 eos
      tokens  a3 a4 a5 a6 eos b5 b6 eos

  `text_ends` [2, 2] is the end of each text in source and target. A model keeps the texts apart.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from scalelab.config.fields import choice
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

VERSION = 2
STYLES = ("bert_style", "mass_style", "drop", "prefix", "deshuffle", "lm")
RANDOM = 0.1  # share of the noised tokens in the style "bert_style"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    style: Annotated[str, choice(*STYLES)] = "bert_style"
    noise_rate: assembly.Rate = 0.15
    across_documents: bool = False  # True: a text goes on in the next document

    @property
    def pairs_texts(self) -> bool:
        """True if a row has two texts."""
        return self.style == "prefix" and self.across_documents


def most_tokens(num_tokens: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Returns the most tokens of source and target, without the last `eos`, int64 [...] each.

    Args:
      num_tokens: [...] int, tokens of the text of a row.
      options: the noise.
    """
    if options.pairs_texts:
        return num_tokens // 2 + 1, (num_tokens + 1) // 2 + 1
    noised = assembly.share(num_tokens, options.noise_rate)
    sizes = {
        "drop": (num_tokens - noised, noised),
        "prefix": (np.maximum(num_tokens - 1, 1),) * 2,
        "lm": (0 * num_tokens, num_tokens),
    }
    return sizes.get(options.style, (num_tokens, num_tokens))


@functools.cache
def text_length(max_len: int, options: Options) -> int:
    """Returns the length of the longest text with source and target of `max_len` tokens each."""
    lengths = np.arange(2 + int(max_len * max(2, 1 / (1 - options.noise_rate))))
    most = np.maximum(*most_tokens(lengths, options))
    return int(np.flatnonzero(most < max_len).max(initial=0))


def source_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest source, `eos` included."""
    return 1 + int(most_tokens(np.array(text_length(max_len, options)), options)[0])


def target_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest target, `eos` included."""
    return 1 + int(most_tokens(np.array(text_length(max_len, options)), options)[1])


STORED = assembly.text_arrays(text_length)
TEXT_ENDS = Array("text_ends", item=(2, 2), present=lambda options: options.pairs_texts)
ARRAYS = (*assembly.pair_arrays(target_length, source_length), TEXT_ENDS)


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
      ValueError: `max_len` leaves no space, or the system has neither a mask nor a sentinel.
    """
    options = options or Options()
    if options.style in ("bert_style", "mass_style"):
        _mask(specials)
    longest = text_length(max_len, options)
    form = full_sentences if options.across_documents else doc_sentences
    return form.build(documents, specials=Specials(), max_len=longest, **given)


def _mask(specials: Specials) -> int:
    """Returns the id that stands for a masked token."""
    return specials.ids["mask"] if "mask" in specials.ids else specials.ids["sentinel_0"]


def corrupt(
    batch: dict[str, np.ndarray], *, specials: Specials, options: Options, max_len: int, **address
) -> dict[str, np.ndarray]:
    """Makes source and target of each text [B, T]."""
    text, lengths, style = batch["tokens"], batch["lengths"].astype(np.int64), options.style
    first, second, third = draws.streams(3, **address)
    places = np.arange(text.shape[1])
    is_text = places < lengths[:, None]
    source, in_source, in_target = text.copy(), is_text, is_text
    if style in ("bert_style", "mass_style", "drop"):
        count = assembly.share(lengths, options.noise_rate)
        is_noised = draws.subset(first, lengths, count, text.shape[1])
        if style == "drop":
            in_source, in_target = is_text & ~is_noised, is_noised
        else:
            source[is_noised] = _mask(specials)
        if style == "bert_style":
            is_random = is_noised & (draws.uniform(second[:, None], places) < RANDOM)
            rows, columns = np.nonzero(is_random)
            given = specials.vocab_size, specials.ids.values()
            source[is_random] = draws.ordinary(third[rows], columns, *given)
    elif style == "prefix":
        # Tokens of the first text.
        size = (lengths // 2 if options.pairs_texts else lengths)[:, None]
        cut = 1 + draws.below(first[:, None], np.array(0), np.maximum(size - 1, 1))
        is_first = places < size
        in_source = is_text & (places < np.where(is_first, cut, 2 * size - cut))
        in_target = is_text & ~in_source
        if options.pairs_texts:  # `eos` of the first text stands before the second
            sides = in_source, in_target
            ends = np.array([[(x & is_first).sum(1) + 1, x.sum(1) + 2] for x in sides])
            ends = (ends * (lengths > 0)).transpose(2, 1, 0).astype(np.int32)
            batch = batch | {"text_ends": ends}
            opens, eos = is_text & (places == size), np.full_like(text, specials.ids["eos"])
            source = text = np.stack([eos, text], -1).reshape(len(text), -1)
            in_source, in_target = (np.stack([opens, x], -1).reshape(text.shape) for x in sides)
    elif style == "deshuffle":
        source = np.take_along_axis(text, draws.shuffle(first, places, lengths), axis=1)
    else:
        in_source = np.zeros_like(is_text)
    filled, end = lengths > 0, (specials.ids["eos"],)
    width, target_width = source_length(max_len, options), target_length(max_len, options)
    made = batch | assembly.pack("source", source, in_source, filled, width, end=end)
    return made | assembly.pack("tokens", text, in_target, filled, target_width, end=end)
