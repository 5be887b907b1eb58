"""SEGMENT-PAIR + NSP: `[CLS] A [SEP] B [SEP]`, where B follows A or comes from another document.

The protocol (section "SEGMENT-PAIR + NSP") after Devlin et al. 2019. `room` is the number of text
tokens that fit next to the special tokens. Every choice below is random:

- Target: the target length of an example is `room`; with probability `short_rate` it is an integer
  uniform in [2, room].
- Span: consecutive sentences of one document, from the end of the last span, until they hold
  `target` tokens or the document ends. A span has at least two sentences if the document has two
  left. Examples are made from a span until it is used up. Each later example has its own target
  and is cut in the same way from the rest of the span.
- A: the first a of the span's n sentences, a uniform in [1, n - 1].
- B, label 0: the rest of the span; both are used up.
- B, label 1: sentences of another document. The document is uniform over the others with text, and
  the first sentence is uniform over the document. B ends when A and B hold `target` tokens or the
  document ends; it has at least one sentence. Only A is used up: the rest of the span is kept for
  the next example.
- One sentence is left of a span: with label 1 it is A, as above. With label 0 it is B, and A is a
  uniform number of the sentences before it that fit `target` with it (at least one). A document's
  only sentence always gets label 1.
- A and B are too long: the longer segment is cut at its end until both fit `room` (not `target`).
  Devlin's code cuts at both ends; here every segment begins with a sentence.

Unlike in Devlin's code, the rest of a span is not filled up with the sentences after the span. The
protocol's source says so ("from the retained content"), and its Table 7.1 agrees: with Wikipedia's
articles as documents, this rule makes 1.9 times the examples of DOC-SENTENCES at length 512 (table:
1.90); filling up makes 1.5 times.

Balance: documents with one sentence make label 1 more frequent. So for other examples the
probability of label 1 is less than one half; it is solved on a sample of the documents so that half
of all examples have label 1. If single-sentence documents alone exceed half of the examples, enough
of them are dropped to balance the labels.

Accounting: each sentence is used up once. `dropped_tokens` counts its tokens that are cut or left
out. A random B, and an A that was used before, are copies; tokens cut from a copy do not count.
"""

from collections.abc import Iterator

import numpy as np

from scalelab.formats import COMMON, Array, Documents, Examples, Specials, assembly
from scalelab.formats.pairs import (
    Choices,
    Options,
    Pairs,
    Rates,
    choose_pairs,
    cut_spans,
    fit,
    segments,
)

VERSION = 1
ARRAYS = (
    *COMMON,
    Array("second_starts"),  # index in the example where B begins
    Array("random_second", dtype="int8"),  # label: 1 if B is random, 0 if it follows A
)
SENTENCES_FOR_BALANCE = 400_000
BALANCED = 2e-4  # accepted distance of the share of label 1 from one half


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    seed: int,
    document_ids: np.ndarray | None = None,
    options: Options | None = None,
) -> Iterator[Examples]:
    """Yields labeled pairs as `formats.Format.build`.

    The choices of an example depend on the seed and its first sentence alone. A random B also comes
    from `document_ids`.

    Raises:
      ValueError: no space for two tokens of text; fewer than two documents have text; or no
        document has two sentences.
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


def balance(documents: Documents, ids: np.ndarray, choices: Choices) -> Rates:
    """Solves for the rates at which half of the examples have label 1, on every k-th document.

    Args:
      documents: a split.
      ids: [n] int64, the documents in use.
      choices: streams of random numbers.

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
        return Rates(0.0, float(np.append(only, 1.0)[num_following]))  # keep the number of label 0
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
    """Chooses random Bs and cuts long pairs; returns pieces, labels, number of dropped tokens."""
    pairs, left_out = pairs.select(
        block, ~pairs.is_only | (choices.uniform("only", pairs.sentences) < rates.only)
    )
    is_random = pairs.labels == 1
    first_a, length_a, first_b, length_b = segments(documents, block, pairs)
    first_b[is_random], length_b[is_random] = _random_segments(
        documents,
        ids,
        pairs.sentences[is_random],
        np.maximum(pairs.target - length_a, 1)[is_random],
        choices,
    )
    kept_a, kept_b = fit(length_a, length_b, choices.room)
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
    """Chooses sentences with about `wanted` tokens from another document than `sentences`.

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
