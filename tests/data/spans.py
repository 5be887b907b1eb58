"""A scratch format: random spans of the text are replaced by sentinels, anew in each epoch.

Raffel et al. 2020, 3.1.4, in its simplest form: each token is dropped with one probability.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from scalelab.formats import COMMON, Array, Examples, Ragged, Specials, doc_sentences, draws

VERSION = 1
# The first tokens of each example, a second text on disk.
STORED = (*COMMON, Array("summary", "ragged", None, lambda max_len: max_len // 2))
# Each sentinel, and what it stands for.
ARRAYS = (*STORED, Array("targets", "ragged", None, lambda max_len: 2 * max_len))


@dataclasses.dataclass(frozen=True)
class Options:
    rate: float = 0.15  # share of dropped tokens


def build(documents: Any, *, max_len: int, options: Any = None, **given: Any) -> Iterator[Examples]:
    del options
    for chunk in doc_sentences.build(documents, max_len=max_len, **given):
        values, starts = chunk.ragged["tokens"]
        rows = [values[a:b][: max_len // 2] for a, b in zip(starts[:-1], starts[1:], strict=True)]
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        chunk.ragged["summary"] = Ragged(np.concatenate([values[:0], *rows]), ends)
        yield chunk


def corrupt(
    batch: dict[str, np.ndarray],
    *,
    seed: int,
    epochs: np.ndarray,
    examples: np.ndarray,
    specials: Specials,
    options: Options,
    max_len: int,
) -> dict[str, np.ndarray]:
    tokens, places = batch["tokens"], np.arange(max_len)
    # A stream for each row; an address in it for each place.
    rows = draws.bits(draws.key(seed, 0), examples) ^ draws.bits(draws.key(seed, 1), epochs)
    chances = draws.uniform(rows[:, None], places)
    is_text = places < batch["lengths"][:, None]
    dropped = is_text & (chances < options.rate)
    opens = dropped.copy()
    opens[:, 1:] &= ~dropped[:, :-1]
    span = np.cumsum(opens, axis=1, dtype=np.int32)
    sentinels = np.asarray(specials.sentinels, np.int32)
    dropped &= span <= len(sentinels)  # what has no sentinel stays
    opens &= dropped
    marks = sentinels[np.clip(span, 1, len(sentinels)) - 1]
    kept = opens | (is_text & ~dropped)
    pairs = np.stack([marks, tokens], -1), np.stack([opens, dropped], -1)
    made = dict(batch)
    made["tokens"], made["lengths"] = _pack(np.where(opens, marks, tokens), kept, max_len)
    wide = (x.reshape(len(tokens), -1) for x in pairs)
    made["targets"], made["targets_lengths"] = _pack(*wide, 2 * max_len)
    return made


def _pack(values: np.ndarray, taken: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Moves the values that are taken to the left: [B, width], and their number [B]."""
    lengths = taken.sum(1, dtype=np.int32)
    rows = np.zeros((len(values), width), np.int32)
    rows[np.arange(width) < lengths[:, None]] = values[taken]
    return rows, lengths
