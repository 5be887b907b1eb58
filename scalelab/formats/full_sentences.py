"""FULL-SENTENCES: contiguous sentences up to the maximum length, across documents.

After Liu et al. 2019 ("RoBERTa", section 4.2). One thing differs from DOC-SENTENCES, so that the
two can be compared: after the end of a document, the example continues with `between` and the next
document.

- An example is `begin` text `end`; the text of two documents in it is separated by `between`.
- A sentence that does not fit is cut and its rest is dropped: `dropped_tokens` counts it. (Liu et
  al. move such a sentence to the next example.)
- If `between` and one token of the next document do not fit, the example ends with the document.
- The next example starts with the next sentence. Only the last example may be shorter.
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
    starts = np.asarray(documents.sentence_starts)
    chunks = list(assembly.split_into_chunks(documents, assembly.select(documents, document_ids)))
    waiting, waiting_first = np.zeros(0, np.int64), np.zeros(0, bool)
    for number, ids in enumerate(chunks):
        block = assembly.lay_out(documents, ids)
        sentences = np.concatenate([waiting, block.sentences])
        is_first = np.concatenate([waiting_first, block.document_begins == np.arange(len(block))])
        lengths = starts[sentences + 1] - starts[sentences]
        at, end, kept = _pack(lengths, is_first, room, len(specials.between))
        if number + 1 < len(chunks):  # the last example may go on in the next chunk
            begin = at[-1] if len(at) else 0
            waiting, waiting_first = sentences[begin:], is_first[begin:]
            at, end, kept = at[:-1], end[:-1], kept[:-1]
        plan, dropped = _plan(starts, sentences, lengths, is_first, at, end, kept)
        yield from assembly.assemble(documents, plan, specials, byte_offsets, dropped)


def _pack(
    lengths: np.ndarray, is_first: np.ndarray, room: int, num_between: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fills examples with sentences of `lengths` tokens, up to `room`, separators included.

    Returns for each example its first sentence, the sentence after its last, and the number of
    tokens kept of its last sentence.
    """
    separators = num_between * is_first
    offsets = np.concatenate([[0], np.cumsum(lengths + separators)])
    begins = offsets[:-1] + separators  # an example does not begin with a separator
    ends = np.minimum(np.searchsorted(offsets, begins + room), len(lengths))
    last = ends - 1
    is_single = last == np.arange(len(lengths))
    space = np.where(is_single, room, room - (offsets[last] + separators[last] - begins))
    ends = np.where(space > 0, ends, last)
    at = assembly.follow(ends)
    kept = np.where(space > 0, np.minimum(lengths[last], space), lengths[last - 1])
    return at, ends[at], kept[at]


def _plan(
    starts: np.ndarray,
    sentences: np.ndarray,
    lengths: np.ndarray,
    is_first: np.ndarray,
    at: np.ndarray,
    end: np.ndarray,
    kept: np.ndarray,
) -> tuple[assembly.Plan, int]:
    """Cuts examples into pieces of one document each; returns plan and number of dropped tokens."""
    covered = int(end[-1]) if len(end) else 0
    opens = is_first[:covered].copy()
    opens[at] = True
    pieces = np.flatnonzero(opens)
    offsets = np.concatenate([[0], np.cumsum(lengths[:covered])])
    length = np.diff(offsets[np.append(pieces, covered)])
    example = np.searchsorted(at, pieces, side="right") - 1
    num_pieces = np.bincount(example, minlength=len(at))
    cut = lengths[end - 1] - kept
    length[np.cumsum(num_pieces) - 1] -= cut
    return assembly.Plan(num_pieces, starts[sentences[pieces]], length), int(cut.sum())
