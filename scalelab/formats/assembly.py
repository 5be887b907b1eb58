"""Shared parts of the formats: arrays, walk over documents, planned pieces as examples."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np

from scalelab.formats import COMMON, Array, Documents, Examples, Ragged, Specials, lengths_name

Rate = Annotated[float, ("a number in (0, 0.9]", lambda value: 0 < value <= 0.9)]
SENTENCES_PER_CHUNK = 1 << 18  # planned at once
TOKENS_PER_CHUNK = 1 << 22  # copied at once
Length = Callable[[int, Any], int]  # the type of `Array.length`


@dataclasses.dataclass(frozen=True)
class Block:
    """Some whole documents as n consecutive sentences; arrays are int64."""

    sentences: np.ndarray  # [n], index of each sentence in the split
    offsets: np.ndarray  # [n + 1], tokens before each sentence, counted within the block
    document_begins: np.ndarray  # [n], first sentence of each sentence's document
    document_ends: np.ndarray  # [n], the sentence after its last

    def __len__(self) -> int:
        return len(self.sentences)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Examples as pieces of text, ranges of tokens of the split; arrays are int64."""

    num_pieces: np.ndarray  # [num_examples], at least 1 each
    first: np.ndarray  # [sum(num_pieces)], offset of each piece's first token in the split
    length: np.ndarray  # [sum(num_pieces)], tokens in each piece, at least 1


def text_arrays(length: Length | None = None) -> tuple[Array, ...]:
    """Declares a text, on disk, and its sizes."""
    return (Array("tokens", "ragged", None, length), *COMMON[1:])


def pair_arrays(target: Length | None, source: Length | None = None) -> tuple[Array, ...]:
    """Declares a target, "tokens", and its source; the sizes are those of the text of both.

    Args:
      target: (max_len, Options) -> T of the target; None: max_len.
      source: (max_len, Options) -> T of the source; None: max_len.
    """
    tokens, *sizes = text_arrays(target)
    return (tokens, Array("source", "ragged", None, source), *sizes)


def ranges(first: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Concatenates the ranges [first, first + length): int64 [sum(length)].

    Args:
      first: [n] int64, first number of each range.
      length: [n] int64, 0 or more.
    """
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(first - (ends - length), length)


def follow(following: np.ndarray) -> np.ndarray:
    """Collects 0, following[0], following[following[0]], ... below n; following[i] > i, [n]."""
    steps, reached, at = following.tolist(), [], 0
    while at < len(steps):
        reached.append(at)
        at = steps[at]
    return np.array(reached, np.int64)


def select(documents: Documents, document_ids: np.ndarray | None) -> np.ndarray:
    """Returns the indices of the documents to format, int64, ascending.

    Args:
      documents: a split.
      document_ids: [n] indices in any order; None: all.
    """
    if document_ids is None:
        return np.arange(documents.num_documents, dtype=np.int64)
    return np.unique(np.asarray(document_ids, np.int64))


def lay_out(documents: Documents, document_ids: np.ndarray) -> Block:
    """Concatenates the sentences of documents to a block.

    Args:
      documents: a split.
      document_ids: [n] int64 indices.
    """
    first = np.asarray(documents.document_starts)[document_ids]
    count = np.asarray(documents.document_starts)[document_ids + 1] - first
    sentences = ranges(first, count)
    starts = documents.sentence_starts
    lengths = np.asarray(starts)[sentences + 1] - np.asarray(starts)[sentences]
    ends = np.cumsum(count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Block(sentences, offsets, np.repeat(ends - count, count), np.repeat(ends, count))


def split_into_chunks(documents: Documents, document_ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yields runs of documents of about SENTENCES_PER_CHUNK sentences.

    Args:
      documents: a split.
      document_ids: [n] int64 indices.
    """
    starts = np.asarray(documents.document_starts)
    ends = np.cumsum(starts[document_ids + 1] - starts[document_ids])
    cuts = np.flatnonzero(np.diff(ends // SENTENCES_PER_CHUNK)) + 1
    yield from (ids for ids in np.split(document_ids, cuts) if len(ids))


def share(num_items: np.ndarray, rate: float) -> np.ndarray:
    """Returns a share of numbers of items, rounded: int64.

    At least one item is taken and at least one is left. A single item is taken.

    Args:
      num_items: [...] int, 0 or more.
      rate: the share, in [0, 1].
    """
    taken = np.clip(np.rint(num_items * rate), 1, np.maximum(num_items - 1, 1))
    return (taken * (num_items > 0)).astype(np.int64)


def room_for_text(specials: Specials, max_len: int, num_pieces: int, at_least: int) -> int:
    """Returns the number of text tokens that fit into an example.

    Args:
      specials: special ids around and between the pieces.
      max_len: tokens of the longest example.
      num_pieces: pieces of text in an example.
      at_least: smallest number of text tokens that is of use.

    Raises:
      ValueError: fewer than `at_least` fit.
    """
    special = len(specials.begin) + (num_pieces - 1) * len(specials.between) + len(specials.end)
    if max_len - special < at_least:
        raise ValueError(
            f"max_len = {max_len} leaves {max_len - special} tokens for text beside {special}"
            f" special ones; at least {at_least} must fit: set it to {special + at_least} or more"
        )
    return max_len - special


def assemble(
    documents: Documents,
    plan: Plan,
    specials: Specials,
    byte_offsets: np.ndarray,
    dropped_tokens: int,
    flat: Mapping[str, np.ndarray] | None = None,
) -> Iterator[Examples]:
    """Copies planned pieces: begin, piece, between, piece, ..., end.

    Yields at least one chunk, each of about TOKENS_PER_CHUNK tokens, with the arrays of
    `formats.COMMON` and of `flat`.

    Args:
      documents: a split.
      plan: the pieces of each example.
      specials: ids around and between the pieces.
      byte_offsets: from `count_bytes_before`.
      dropped_tokens: text tokens that the plan leaves out; the first chunk counts them.
      flat: name -> [num_examples, ...], more arrays; None: none.
    """
    piece_ends = np.cumsum(plan.num_pieces)
    text_ends = np.cumsum(plan.length)
    example_ends = text_ends[piece_ends - 1]
    cuts = np.flatnonzero(np.diff(example_ends // TOKENS_PER_CHUNK)) + 1
    edges = [0, *cuts.tolist(), len(piece_ends)]
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        lo = int(piece_ends[begin - 1]) if begin else 0
        hi = int(piece_ends[end - 1]) if end else 0
        part = Plan(plan.num_pieces[begin:end], plan.first[lo:hi], plan.length[lo:hi])
        made = _copy(documents, part, specials, byte_offsets, dropped_tokens if begin == 0 else 0)
        made.flat.update((name, values[begin:end]) for name, values in (flat or {}).items())
        yield made


def _copy(
    documents: Documents, plan: Plan, specials: Specials, byte_offsets: np.ndarray, dropped: int
) -> Examples:
    num_begin, num_between, num_end = map(len, (specials.begin, specials.between, specials.end))
    opens = np.cumsum(plan.num_pieces) - plan.num_pieces  # first piece of each example
    is_open = np.zeros(len(plan.first), bool)
    is_open[opens] = True
    is_close = np.roll(is_open, -1)
    # Each piece is copied with the special ids before it, the last one also with the ids after it.
    before = np.where(is_open, num_begin, num_between)
    ends = np.cumsum(before + plan.length + num_end * is_close)
    text_at = ends - num_end * is_close - plan.length
    places, source = ranges(text_at, plan.length), ranges(plan.first, plan.length)

    def copy(values: np.ndarray) -> np.ndarray:
        made = np.zeros(ends[-1] if len(ends) else 0, values.dtype)
        made[places] = np.asarray(values)[source]
        return made

    tokens = copy(documents.tokens)
    starts = np.concatenate([[0], ends[is_close]]).astype(np.int64)
    for at, ids in (
        (starts[:-1], specials.begin),
        (text_at[~is_open] - num_between, specials.between),
        (starts[1:] - num_end, specials.end),
    ):
        for offset, token in enumerate(ids):
            tokens[at + offset] = token
    num_bytes = _bytes(documents, plan, opens, byte_offsets)
    flat = {"num_bytes": num_bytes, "num_text_tokens": _sums(plan.length, opens)}
    ragged = {"tokens": Ragged(tokens, starts)}
    if documents.units is not None:
        ragged["units"] = Ragged(copy(documents.units), starts)
    return Examples(ragged, flat, dropped)


def _bytes(
    documents: Documents, plan: Plan, opens: np.ndarray, byte_offsets: np.ndarray
) -> np.ndarray:
    """Counts source bytes of each example; inside a sentence, all tokens have equal shares."""
    starts = np.asarray(documents.sentence_starts)

    def bytes_before(token: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(starts, token, side="right") - 1, len(starts) - 2)
        share = (token - starts[at]) / (starts[at + 1] - starts[at])
        return byte_offsets[at] + share * (byte_offsets[at + 1] - byte_offsets[at])

    covered = bytes_before(plan.first + plan.length) - bytes_before(plan.first)
    return _sums(np.rint(covered), opens)


def _sums(values: np.ndarray, opens: np.ndarray) -> np.ndarray:
    """Sums over the pieces of each example, int32."""
    return np.add.reduceat(values, opens).astype(np.int32) if len(opens) else np.zeros(0, np.int32)


def count_bytes_before(documents: Documents) -> np.ndarray:
    """Returns the source bytes before each sentence, [num_sentences + 1] int64."""
    return np.concatenate([[0], np.cumsum(documents.sentence_bytes, dtype=np.int64)])


def pack(
    name: str,
    values: np.ndarray,
    taken: np.ndarray,
    filled: np.ndarray,
    width: int,
    begin: tuple[int, ...] = (),
    end: tuple[int, ...] = (),
) -> dict[str, np.ndarray]:
    """Makes a ragged array of a batch: the `taken` items of each row, between two frames of ids.

    Args:
      name: name of the array.
      values: [B, T].
      taken: bool [B, T].
      filled: bool [B]; the other rows are padding and stay empty.
      width: W, at least the longest row that is made.
      begin: ids before the items.
      end: ids after the items.

    Returns:
      The rows, int32 [B, W], padded with 0, and their lengths, int32 [B], by their names.
    """
    taken, rows = taken & filled[:, None], np.flatnonzero(filled)
    made, places = np.zeros((len(values), width), np.int32), np.arange(width)
    ends = len(begin) + taken.sum(1)
    made[(places >= len(begin)) & (places < ends[:, None])] = values[taken]
    for place, token in enumerate(begin):
        made[rows, place] = token
    for place, token in enumerate(end):
        made[rows, ends[rows] + place] = token
    return {name: made, lengths_name(name): ((ends + len(end)) * filled).astype(np.int32)}
