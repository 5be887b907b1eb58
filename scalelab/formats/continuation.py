"""CONTINUATION: the source is the beginning of a fragment, the target is the rest.

Bi et al. 2020 ("PALM"), 3.2 and 4.1: fragments of at most 500 tokens, the first 80% of them are the
source. A fragment has sentences of one document, as in `doc_sentences`:

    fragment  w1 w2 w3 w4 w5 w6 w7 w8 w9 w10
    source    begin w1 w2 w3 w4 w5 w6 w7 w8 end
    tokens    w9 w10 end

- `source_rate` of the tokens, rounded, are the source. The cut may be inside a sentence.
- Source and target have at most `max_len` tokens together, special tokens included.
- Fragments follow each other. The paper's begin at every sentence, so that they overlap.
- With `across_documents` a fragment goes on in the next document, without a separator.
- A fragment of one token is left out; `dropped_tokens` counts it.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from scalelab.config.fields import Part
from scalelab.formats import (
    Documents,
    Examples,
    Ragged,
    Specials,
    assembly,
    doc_sentences,
    full_sentences,
)

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    source_rate: Part = 0.8
    across_documents: bool | None = None  # True: a fragment goes on in the next document


def source_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest source."""
    return int(assembly.share(np.array(max_len), options.source_rate))


def target_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest target."""
    return max_len - source_length(max_len, options)


ARRAYS = assembly.pair_arrays(target_length, source_length)


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    options: Options | None = None,
    **given,
) -> Iterator[Examples]:
    """Yields examples as `formats.Format.build`, without random choices.

    Raises:
      ValueError: source or target have no space for a token.
    """
    options, lengths = options or Options(), np.arange(max_len + 1)
    firsts = assembly.share(lengths, options.source_rate)
    space = source_length(max_len, options) - len(specials.begin) - len(specials.end)
    rest = target_length(max_len, options) - len(specials.end)
    longest = int(np.flatnonzero((firsts <= space) & (lengths - firsts <= rest)).max(initial=0))
    if longest < 2:
        raise ValueError(
            f"continuation: max_len = {max_len} leaves {space} tokens of text for the source and"
            f" {rest} for the target; each needs at least 1: set a larger max_len, or another"
            " --config.format_options.source_rate"
        )
    form = full_sentences if options.across_documents else doc_sentences
    chunks = form.build(documents, specials=Specials(), max_len=longest, **given)
    return (_cut(chunk, specials, options) for chunk in chunks)


def _cut(chunk: Examples, specials: Specials, options: Options) -> Examples:
    """Cuts each fragment of a chunk into source and target."""
    values, starts = chunk.ragged["tokens"]
    lengths = np.diff(starts)
    kept = lengths > 1
    dropped = chunk.dropped_tokens + int(lengths[~kept].sum())
    values, lengths = values[np.repeat(kept, lengths)], lengths[kept]
    firsts = assembly.share(lengths, options.source_rate)
    rows = np.stack([firsts, lengths - firsts], axis=1)
    is_target = np.repeat(np.tile([False, True], len(rows)), rows.reshape(-1))
    ragged = {
        "source": _frame(values[~is_target], firsts, specials.begin, specials.end),
        "tokens": _frame(values[is_target], rows[:, 1], (), specials.end),
    }
    return Examples(ragged, {name: x[kept] for name, x in chunk.flat.items()}, dropped)


def _frame(
    values: np.ndarray, lengths: np.ndarray, begin: tuple[int, ...], end: tuple[int, ...]
) -> Ragged:
    """Puts ids before and after each row of concatenated rows."""
    starts = np.append(0, np.cumsum(lengths))
    # The ids after a row come before those that begin the next one.
    at = np.concatenate([np.repeat(starts[1:], len(end)), np.repeat(starts[:-1], len(begin))])
    ids = np.concatenate([np.tile(np.array(x, values.dtype), len(lengths)) for x in (end, begin)])
    extra = (len(begin) + len(end)) * np.arange(len(starts))
    return Ragged(np.insert(values, at, ids), starts + extra)
