"""DIALOGUE: up to three turns of a dialogue; segment ids are the roles of the speakers.

Sun et al. 2019, "ERNIE: Enhanced Representation through Knowledge Integration", 4.2.2: "QRQ, QRR,
QQR", Q for query and R for response. With the objective `mlm` this is the paper's dialogue model,
without its task of detecting replaced turns.

- An example is `begin` turn `between` turn `between` turn `end`: a dialogue is cut into groups of
  three turns, and the last group may be shorter. A turn is cut after a third of `room`.
- The first speaker of an example has the role 0, the second 1, all others 2.
- A special token has the role of the turn before it, `begin` the role of the first turn. So a
  single turn has the segment ids of a plain text.
- With `closed` an example ends with `between`, so that all turns end alike (DialoGPT).

The corpus must have turns (`data.corpora.jsonl`).
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from scalelab.formats import (
    COMMON,
    SPEAKER,
    TURN,
    Array,
    Documents,
    Examples,
    Pieces,
    Ragged,
    Specials,
    assembly,
)

VERSION = 1
ARRAYS = (*COMMON, Array("segments", "ragged", "uint8"))
NUM_TURNS = 3


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    closed: bool = False  # True: the last turn ends as the others, with `between`


def annotate(
    documents: Mapping[str, Documents], tokenizer: Pieces, options: Options | None
) -> Mapping[str, Documents]:
    """Returns the documents unchanged.

    Raises:
      ValueError: the corpus has no turns.
    """
    del tokenizer, options
    units = documents["train"].units
    if units is None or not np.any(units & TURN):
        raise ValueError(
            "the format dialogue needs a corpus with turns: jsonl files with the field 'turns'"
        )
    return documents


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    seed: int = 0,
    document_ids: np.ndarray | None = None,
    options: Options | None = None,
) -> Iterator[Examples]:
    """Yields examples as `formats.Format.build`, without random choices.

    A document without turns is one turn.
    """
    del seed
    if options and options.closed:
        specials = dataclasses.replace(specials, end=specials.between)
    room = assembly.room_for_text(specials, max_len, NUM_TURNS, at_least=NUM_TURNS) // NUM_TURNS
    byte_offsets = assembly.count_bytes_before(documents)
    plain = dataclasses.replace(documents, units=None)
    for ids in assembly.split_into_chunks(documents, assembly.select(documents, document_ids)):
        first, length, speakers, places = _find_turns(documents, assembly.lay_out(documents, ids))
        opens, kept = places % NUM_TURNS == 0, np.minimum(length, room)
        closes = np.append(opens[1:], True)
        num_turns = np.diff(np.append(np.flatnonzero(opens), len(first)))
        roles = _find_roles(speakers, opens, num_turns)
        sizes = kept + np.where(closes, len(specials.end), len(specials.between))
        segments = np.repeat(roles, sizes + opens * len(specials.begin))
        plan, dropped = assembly.Plan(num_turns, first, kept), int((length - kept).sum())
        for chunk in assembly.assemble(plain, plan, specials, byte_offsets, dropped):
            tokens, starts = chunk.ragged["tokens"]
            own, segments = np.split(segments, [len(tokens)])
            chunk.ragged["segments"] = Ragged(own, starts)
            yield chunk


def _find_turns(
    documents: Documents, block: assembly.Block
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns each turn's first token in the split, length, speaker and place in its document."""
    starts = np.asarray(documents.sentence_starts)[block.sentences]
    opens = block.document_begins == np.arange(len(block))
    speakers = np.zeros(len(block), np.int64)
    if documents.units is not None:
        opens |= np.asarray(documents.units)[starts] & TURN == 0
        # A first token may be a blank before the turn.
        speakers += documents.units[starts + np.diff(block.offsets) - 1] // SPEAKER
    at = np.flatnonzero(opens)
    first_turns = np.searchsorted(at, block.document_begins[at])
    length = np.diff(block.offsets[np.append(at, len(block))])
    return starts[at], length, speakers[at], np.arange(len(at)) - first_turns


def _find_roles(speakers: np.ndarray, opens: np.ndarray, num_turns: np.ndarray) -> np.ndarray:
    """Returns the role of each turn: 0 for the example's first speaker, 1, 2; uint8."""
    first = np.repeat(speakers[opens], num_turns)
    is_other = speakers != first
    # Only the third of three turns can have a third speaker.
    before = np.roll(speakers, 1)
    is_third = is_other & np.roll(is_other, 1) & ~opens & (speakers != before)
    return is_other.astype(np.uint8) + is_third
