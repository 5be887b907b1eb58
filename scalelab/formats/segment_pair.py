"""SEGMENT-PAIR + NSP: `[CLS] A [SEP] B [SEP]`, where B follows A or comes from another document.

The protocol (section "SEGMENT-PAIR + NSP") after Devlin et al. 2019. With `room` the tokens of text
that fit beside the special ones, and every choice below random:

- Target: of each example `room`; with probability `short_rate` an integer uniform in [2, room]
  instead.
- Span: sentences of one document, from where the last span ended, until they hold `target` tokens
  or the document ends; at least two sentences where the document has two left. Examples are made
  from a span until it is used up: later ones from what is left of it, cut at their own target in
  the same way.
- A: the first a of the span's n sentences, a uniform in [1, n - 1].
- B, label 0: the rest of the span; both are used up.
- B, label 1: sentences of another document, chosen uniformly among the others that have text, from
  a sentence chosen uniformly to where A and B hold `target` tokens (at least one sentence) or that
  document ends. A alone is used up: its continuation is kept for the next example.
- One sentence left of a span: with label 1 it is A, as above. With label 0 it is B, and A is the
  sentences before it, a uniform number of those that fit `target` with it (at least one). A
  document's only sentence has nothing around it and always gets label 1.
- Too long together: the longer segment is cut at its end until both fit `room` (not `target`).
  Devlin's code drops from either end; here every segment begins with a sentence.

What is left of a span is not filled up with what follows the span, unlike in Devlin's code. That is
how the protocol's source words it ("from the retained content"), and it is what its Table 7.1
says: with Wikipedia's articles as documents it gives 1.9 times the examples of DOC-SENTENCES at
length 512 (the table has 1.90; filling up gives 1.5).

Balance: the only sentence of a document makes label 1 more frequent, so elsewhere label 1 is drawn
with a probability of less than one half, solved on a sample of the documents so that all examples
together are balanced. If too few documents have two sentences even for that, so many documents of
one sentence are left out that it balances.

Accounting: each sentence is used up once. `dropped_tokens` counts its tokens that were cut there,
or left out. A random B, and an A that was used before, are copies; what is cut from a copy is not
counted.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from scalelab.formats import COMMON, Array, Documents, Examples, Specials, assembly, draws

VERSION = 1
ARRAYS = (
    *COMMON,
    Array("second_starts"),  # index in the example where B begins
    Array("random_second", dtype="int8"),  # label: 1 where B is random, 0 where it follows A
)
SENTENCES_FOR_BALANCE = 400_000
BALANCED = 2e-4  # share of label 1 away from one half
CHOICES = ("is_short", "target", "split", "label", "only", "other_document", "other_sentence")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    short_rate: float = 0.1  # share of examples with a random shorter target


@dataclasses.dataclass(frozen=True)
class Rates:
    """Probabilities of label 1 where there is a choice, and of keeping an only sentence."""

    random: float
    only: float


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Examples before a random B is known; all [num_examples], places are counted in the block.

    A is the sentences [first, middle), B of label 0 is [middle, end).
    """

    sentences: np.ndarray  # index in the split of the first sentence used up: addresses the choices
    first: np.ndarray
    middle: np.ndarray
    end: np.ndarray
    target: np.ndarray  # tokens
    labels: np.ndarray
    is_repeated: np.ndarray  # A was used before
    is_only: np.ndarray  # A is its document


class Choices:
    """A stream of random numbers for each choice, addressed by the example's first sentence."""

    def __init__(self, seed: int, room: int, short_rate: float) -> None:
        self.room = room  # tokens of text in an example
        self._short_rate = short_rate
        self._keys = {name: draws.key(seed, place) for place, name in enumerate(CHOICES)}

    def uniform(self, name: str, sentences: np.ndarray) -> np.ndarray:
        """Uniform in [0, 1)."""
        return draws.uniform(self._keys[name], sentences)

    def below(self, name: str, sentences: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
        """Integer in [0, limit)."""
        return draws.below(self._keys[name], sentences, limit)

    def target(self, sentences: np.ndarray) -> np.ndarray:
        """Tokens that an example aims at."""
        is_short = self.uniform("is_short", sentences) < self._short_rate
        return np.where(is_short, 2 + self.below("target", sentences, self.room - 1), self.room)


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    seed: int,
    document_ids: np.ndarray | None = None,
    options: Options | None = None,
) -> Iterator[Examples]:
    """Formats documents into labelled pairs as `formats.Format.build` says.

    The choices of an example depend on the seed and its first sentence alone. A random B comes from
    among `document_ids` too.

    Raises:
      ValueError: no room for two tokens of text; fewer than two documents have text; or no document
        has two sentences.
    """
    room = assembly.room_for_text(specials, max_len, num_pieces=2, at_least=2)
    ids = assembly.select(documents, document_ids)
    ids = ids[np.diff(documents.document_starts)[ids] > 0]
    if len(ids) < 2:
        raise ValueError(
            f"segment_pair takes a random B from another document, but only {len(ids)} of them"
            " has text; use more text, or the format doc_sentences"
        )
    choices = Choices(seed, room, (options or Options()).short_rate)
    rates = balance(documents, ids, choices)
    byte_offsets = assembly.count_bytes_before(documents)
    for chunk in assembly.split_into_chunks(documents, ids):
        block = assembly.lay_out(documents, chunk)
        pairs = choose_pairs(block, cut_spans(block, choices), choices, rates)
        plan, labels, dropped = _plan(documents, ids, block, pairs, rates, choices)
        second_starts = len(specials.begin) + plan.length[::2] + len(specials.between)
        flat = {"second_starts": second_starts, "random_second": labels}
        yield from assembly.assemble(documents, plan, specials, byte_offsets, dropped, flat)


def cut_spans(block: assembly.Block, choices: Choices) -> tuple[np.ndarray, np.ndarray]:
    """Cuts documents into spans: the first sentence of each, and the one after its last."""
    # A span is cut from every sentence; then the chain of those that follow each other is kept.
    ends = _cut(block, np.arange(len(block)), block.document_ends, choices)[0]
    first = assembly.follow(ends)
    return first, ends[first]


def choose_pairs(
    block: assembly.Block, spans: tuple[np.ndarray, np.ndarray], choices: Choices, rates: Rates
) -> Pairs:
    """Decides target, A, label, and a B that follows, of every example of a block."""
    (here, stop), rounds = spans, []
    while len(here):  # one round makes one example from each span that is not used up
        pairs, used = _choose_round(block, here, stop, choices, rates)
        rounds.append(pairs)
        here, stop = used[used < stop], stop[used < stop]
    fields = [field.name for field in dataclasses.fields(Pairs)]
    joined = Pairs(*(np.concatenate([getattr(pairs, name) for pairs in rounds]) for name in fields))
    order = np.argsort(joined.sentences)
    return Pairs(*(getattr(joined, name)[order] for name in fields))


def _cut(
    block: assembly.Block, here: np.ndarray, stop: np.ndarray, choices: Choices
) -> tuple[np.ndarray, np.ndarray]:
    """Where the sentences from `here` reach a target drawn for each, or `stop`; and the target."""
    target = choices.target(block.sentences[here])
    end = np.searchsorted(block.offsets, block.offsets[here] + target)
    return np.minimum(np.maximum(end, here + 2), stop), target


def _choose_round(
    block: assembly.Block, here: np.ndarray, stop: np.ndarray, choices: Choices, rates: Rates
) -> tuple[Pairs, np.ndarray]:
    """Makes the next example of each span [here, stop); returns also where each is used up to."""
    sentences = block.sentences[here]
    end, target = _cut(block, here, stop, choices)
    is_single = end - here == 1
    is_only = is_single & (block.document_ends[here] - block.document_begins[here] == 1)
    labels = is_only | (choices.uniform("label", sentences) < rates.random)
    is_repeated = is_single & ~labels
    # Sentences before the single one that fit the target with it, at least one.
    earliest = np.searchsorted(block.offsets, block.offsets[end] - target)
    earliest = np.clip(earliest, block.document_begins[here], np.maximum(here - 1, 0))
    num_choices = np.where(is_repeated, here - earliest, np.maximum(end - here - 1, 1))
    num_a = 1 + choices.below("split", sentences, num_choices)
    first = np.where(is_repeated, here - num_a, here)
    middle = first + num_a
    pairs = Pairs(
        sentences, first, middle, end, target, labels.astype(np.int32), is_repeated, is_only
    )
    return pairs, np.where(labels, middle, end)


def balance(documents: Documents, ids: np.ndarray, choices: Choices) -> Rates:
    """Solves for the rates at which half of the examples have label 1, on every k-th document.

    Raises:
      ValueError: no document has two sentences.
    """
    counts = np.diff(documents.document_starts)[ids]
    if counts.max() < 2:
        raise ValueError(
            "segment_pair needs documents of at least two sentences, and every document has one;"
            " use another corpus, or the format doc_sentences"
        )
    stride = -(-int(counts.sum()) // SENTENCES_FOR_BALANCE)
    block = assembly.lay_out(documents, ids[::stride])
    spans = cut_spans(block, choices)

    def excess(rate: float) -> float:
        return choose_pairs(block, spans, choices, Rates(rate, 1.0)).labels.mean() - 0.5

    low, high = 0.0, 1.0
    below, above = excess(low), excess(high)
    if below >= 0:
        pairs = choose_pairs(block, spans, choices, Rates(0.0, 1.0))
        only = np.sort(choices.uniform("only", pairs.sentences[pairs.is_only]))
        num_following = int((pairs.labels == 0).sum())
        return Rates(0.0, float(np.append(only, 1.0)[num_following]))  # keeps as many as follow
    for _ in range(20):  # the excess is nearly linear in the rate
        rate = low + (high - low) * below / (below - above)
        found = excess(rate)
        if abs(found) < BALANCED:
            break
        if found < 0:
            low, below = rate, found
        else:
            high, above = rate, found
    return Rates(rate, 1.0)


def _plan(
    documents: Documents,
    ids: np.ndarray,
    block: assembly.Block,
    pairs: Pairs,
    rates: Rates,
    choices: Choices,
) -> tuple[assembly.Plan, np.ndarray, int]:
    """Chooses the random B and cuts what is too long: pieces, labels, dropped tokens."""
    starts = np.asarray(documents.sentence_starts)
    keep = ~pairs.is_only | (choices.uniform("only", pairs.sentences) < rates.only)
    left_out = int((block.offsets[pairs.middle] - block.offsets[pairs.first])[~keep].sum())
    pairs = Pairs(*(getattr(pairs, field.name)[keep] for field in dataclasses.fields(Pairs)))
    is_random = pairs.labels == 1
    first_a = starts[block.sentences[pairs.first]]
    length_a = block.offsets[pairs.middle] - block.offsets[pairs.first]
    first_b, length_b = first_a + length_a, block.offsets[pairs.end] - block.offsets[pairs.middle]
    first_b[is_random], length_b[is_random] = _random_segments(
        documents,
        ids,
        pairs.sentences[is_random],
        np.maximum(pairs.target - length_a, 1)[is_random],
        choices,
    )
    room = choices.room
    kept_a = np.minimum(length_a, np.maximum(room - length_b, room - room // 2))
    kept_b = np.minimum(length_b, room - kept_a)
    cut = (length_a - kept_a)[~pairs.is_repeated].sum() + (length_b - kept_b)[~is_random].sum()
    plan = assembly.Plan(
        num_pieces=np.full(len(kept_a), 2),
        first=np.stack([first_a, first_b], 1).reshape(-1),
        length=np.stack([kept_a, kept_b], 1).reshape(-1),
    )
    return plan, pairs.labels, left_out + int(cut)


def _random_segments(
    documents: Documents,
    ids: np.ndarray,
    sentences: np.ndarray,
    wanted: np.ndarray,
    choices: Choices,
) -> tuple[np.ndarray, np.ndarray]:
    """Takes whole sentences of about `wanted` tokens out of another document than `sentences`.

    Returns the offset of the first token, and the number of tokens.
    """
    document_starts = np.asarray(documents.document_starts)
    starts = np.asarray(documents.sentence_starts)
    own = np.searchsorted(document_starts, sentences, side="right") - 1
    place = choices.below("other_document", sentences, len(ids) - 1)
    other = ids[place + (place >= np.searchsorted(ids, own))]
    first, end = document_starts[other], document_starts[other + 1]
    sentence = first + choices.below("other_sentence", sentences, end - first)
    stop = np.minimum(np.searchsorted(starts, starts[sentence] + wanted), end)
    return starts[sentence], starts[stop] - starts[sentence]
