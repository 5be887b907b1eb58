"""MASKED-FRAGMENT: the source is a text with a masked fragment, the target is this fragment.

Song et al. 2019 ("MASS"), 3.2 and 4.1. A text has sentences of one document, as in `doc_sentences`:

    text    w1 w2 w3 w4 w5 w6
    source  begin w1 w2 mask mask mask w6 end
    tokens  w3 w4 w5
    offset  3, place of w3 in the source: the decoder keeps the positions of the source

- The fragment has `fragment_rate` of the tokens, rounded; it begins at a place chosen uniformly.
- Of its tokens in the source 80% become mask, 10% a random token, 10% stay (4.1, as BERT).
- The fragment changes with the epoch.
- With `across_documents` a text goes on in the next document, behind `between`.
- The published code masks one fragment of every 64 tokens; here, as in the paper, there is one.
"""

import dataclasses
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
MASKED, RANDOM = 0.8, 0.1  # shares of the fragment's tokens


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    fragment_rate: Annotated[float, ("a number in (0, 1]", lambda value: 0 < value <= 1)] = 0.5
    across_documents: bool = False  # True: a text goes on in the next document


def fragment_length(num_tokens: np.ndarray, options: Options) -> np.ndarray:
    """Returns the tokens of the fragment of each text, at least one of one or more: int64 [...].

    Args:
      num_tokens: [...] int, tokens of texts.
      options: with the share.
    """
    length = np.maximum(np.rint(num_tokens * options.fragment_rate), 1)
    return np.minimum(length, num_tokens).astype(np.int64)


def target_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest fragment."""
    return int(fragment_length(np.array(max_len), options))


STORED = assembly.text_arrays()
# `offset` is the place of the fragment's first token in the source.
TARGET, SOURCE, *SIZES = assembly.pair_arrays(target_length)
ARRAYS = (TARGET, SOURCE, Array("offset"), *SIZES)


def build(
    documents: Documents, *, specials: Specials, options: Options | None = None, **given
) -> Iterator[Examples]:
    """Cuts documents into texts.

    Raises:
      ValueError: `max_len` leaves no space, or the system has no mask.
    """
    _, options = specials.ids["mask"], options or Options()
    form = full_sentences if options.across_documents else doc_sentences
    return form.build(documents, specials=specials, **given)


def corrupt(
    batch: dict[str, np.ndarray], *, specials: Specials, options: Options, max_len: int, **address
) -> dict[str, np.ndarray]:
    """Masks a fragment of each text [B, T]."""
    text, filled = batch["tokens"], batch["lengths"] > 0
    frame = len(specials.begin) + len(specials.end)
    lengths = (batch["lengths"].astype(np.int64) - frame) * filled
    sizes = fragment_length(lengths, options)
    starts, actions, tokens = draws.streams(3, **address)
    offset = draws.below(starts, np.array(0), lengths - sizes + 1) + len(specials.begin)
    places = np.arange(text.shape[1])
    is_hidden = (places >= offset[:, None]) & (places < (offset + sizes)[:, None])
    rows, columns = np.nonzero(is_hidden)
    action = draws.uniform(actions[rows], columns)
    new = draws.ordinary(tokens[rows], columns, specials.vocab_size, specials.ids.values())
    new = np.where(action < MASKED + RANDOM, new, text[rows, columns])
    source = text.copy()
    source[rows, columns] = np.where(action < MASKED, specials.ids["mask"], new)
    made = {"source": source, "source_lengths": batch["lengths"]}
    made["offset"] = (offset * filled).astype(np.int32)
    width = target_length(max_len, options)
    return batch | made | assembly.pack("tokens", text, is_hidden, filled, width)
