"""SEGMENTS: each document cut into consecutive pieces, for models with a memory.

Dai et al. 2019 ("Transformer-XL", section 3.2) read text in segments of a fixed length:

- An example is `begin` text `end`. Its text has `room` tokens, all that the special tokens leave;
  the last piece of a document may be shorter. Nothing is dropped.
- `continues` is 1 for an example that continues the one before it, 0 at the start of a document.
- A document without text makes no example.
"""

from collections.abc import Iterator

import numpy as np

from scalelab.formats import COMMON, Array, Documents, Examples, Specials, assembly

VERSION = 1
ARRAYS = (*COMMON, Array("continues"))


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    seed: int = 0,
    document_ids: np.ndarray | None = None,
    options: None = None,
) -> Iterator[Examples]:
    """Yields examples as `formats.Format.build`, without random choices."""
    del seed, options
    room = assembly.room_for_text(specials, max_len, num_pieces=1, at_least=1)
    ids, sentences = assembly.select(documents, document_ids), np.asarray(documents.sentence_starts)
    starts, stops = (sentences[np.asarray(documents.document_starts)[ids + k]] for k in (0, 1))
    counts = -(-(stops - starts) // room)
    numbers = assembly.ranges(np.zeros_like(counts), counts)  # the place of a piece in its document
    first = np.repeat(starts, counts) + room * numbers
    length = np.minimum(np.repeat(stops, counts) - first, room)
    plan = assembly.Plan(np.ones(len(first), np.int64), first, length)
    flat = {"continues": (numbers > 0).astype(np.int32)}
    before = assembly.count_bytes_before(documents)
    yield from assembly.assemble(documents, plan, specials, before, 0, flat)
