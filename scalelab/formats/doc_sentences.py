"""DOC-SENTENCES: contiguous sentences of one document, up to the maximum length.

Liu et al. 2019 ("RoBERTa", section 4.2) name the format; the protocol's text decides the details:

- An example is `begin` text `end`. Sentences are concatenated until the text has `room` tokens, all
  that the special tokens leave, or the document ends (then the example is shorter).
- A sentence that does not fit is cut and its rest is dropped: `dropped_tokens` counts it. So of a
  sentence longer than `room` only the first tokens are used.
- The next example starts with the next sentence. No example holds text of two documents.
- A document without text makes no example.
"""

from collections.abc import Iterator

import numpy as np

from scalelab.formats import COMMON, Documents, Examples, Specials, assembly

VERSION = 1
ARRAYS = COMMON


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
    byte_offsets = assembly.count_bytes_before(documents)
    for block, at, ends in string_together(documents, document_ids, room):
        available = block.offsets[ends] - block.offsets[at]
        length = np.minimum(available, room)
        first = np.asarray(documents.sentence_starts)[block.sentences[at]]
        plan = assembly.Plan(np.ones(len(at), np.int64), first, length)
        yield from assembly.assemble(
            documents, plan, specials, byte_offsets, int((available - length).sum())
        )


def string_together(
    documents: Documents,
    document_ids: np.ndarray | None,
    room: int,
    *,
    across_documents: bool = False,
) -> Iterator[tuple[assembly.Block, np.ndarray, np.ndarray]]:
    """Yields blocks with the sentences [at, ends) of each example; its last may have to be cut.

    Args:
      documents: a split.
      document_ids: [n] indices; None: all.
      room: text tokens of an example.
      across_documents: whether an example goes on in the next document of its block.
    """
    for ids in assembly.split_into_chunks(documents, assembly.select(documents, document_ids)):
        block = assembly.lay_out(documents, ids)
        # Planned from every sentence, then only the sentences at which an example starts are kept.
        ends = np.searchsorted(block.offsets, block.offsets[:-1] + room)
        ends = np.minimum(ends, len(block) if across_documents else block.document_ends)
        at = assembly.follow(ends)
        yield block, at, ends[at]
