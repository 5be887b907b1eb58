"""SEGMENT-PAIR against loops that follow its description, and its properties on larger corpora."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from scalelab.formats import Specials, segment_pair

BERT = Specials(begin=(1,), between=(2,), end=(3,))
CORPORA = st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=2, max_size=8)


def slow_build(documents, max_len, seed, short_rate, rates):
    """Sentence after sentence, token after token; ([(A, B, label)], dropped tokens)."""
    room = max_len - 3
    choices = segment_pair.Choices(seed, room, short_rate)
    starts = documents.sentence_starts
    sentences = [documents.tokens[a:b].tolist() for a, b in zip(starts, starts[1:], strict=False)]
    bounds = documents.document_starts.tolist()
    spans = [range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    filled = [number for number, span in enumerate(spans) if span]
    rows, dropped = [], 0

    def uniform(name, at):
        return choices.uniform(name, np.array([at]))[0]

    def below(name, at, limit):
        return int(choices.below(name, np.array([at]), limit)[0])

    def joined(some):
        return [token for sentence in some for token in sentences[sentence]]

    def target_of(at):
        short = uniform("is_short", at) < short_rate
        return 2 + below("target", at, room - 1) if short else room

    def cut(at, stop):
        end, count = at, 0
        while end < stop and (count < target_of(at) or end - at < 2):
            count += len(sentences[end])
            end += 1
        return end

    def random_b(at, own, wanted):
        others = [number for number in filled if number != own]
        span = spans[others[below("other_document", at, len(others))]]
        sentence = span.start + below("other_sentence", at, len(span))
        text = list(sentences[sentence])
        while len(text) < wanted and sentence + 1 < span.stop:
            sentence += 1
            text += sentences[sentence]
        return text

    def emit(a, b, label, a_counts, b_counts):
        nonlocal dropped
        a, b = list(a), list(b)
        while len(a) + len(b) > room:
            dropped += a_counts if len(a) > len(b) else b_counts
            (a if len(a) > len(b) else b).pop()
        rows.append((a, b, label))

    for own in filled:
        document, at = spans[own], spans[own].start
        while at < document.stop:
            stop = cut(at, document.stop)
            while at < stop:
                end = cut(at, stop)
                label = uniform("label", at) < rates.random
                if len(document) == 1:
                    if uniform("only", at) >= rates.only:
                        dropped += len(sentences[at])
                        at += 1
                        continue
                    label = True
                if end - at == 1 and not label:
                    fitting = 1
                    while at - fitting > document.start and (
                        len(joined(range(at - fitting - 1, at + 1))) <= target_of(at)
                    ):
                        fitting += 1
                    num_a = 1 + below("split", at, fitting)
                    emit(joined(range(at - num_a, at)), sentences[at], 0, 0, 1)
                    at += 1
                    continue
                num_a = 1 + below("split", at, end - at - 1) if end - at > 1 else 1
                a = joined(range(at, at + num_a))
                if label:
                    b = random_b(at, own, target_of(at) - len(a))
                    emit(a, b, 1, 1, 0)
                    at += num_a
                else:
                    emit(a, joined(range(at + num_a, end)), 0, 1, 1)
                    at = end
    return rows, dropped


def split_rows(rows):
    """Rows of `listed` -> (A, B, label), checking the specials."""
    pairs = []
    for tokens, second, _, num_text, label in rows:
        assert (tokens[0], tokens[second - 1], tokens[-1]) == (1, 2, 3)
        a, b = tokens[1 : second - 1], tokens[second:-1]
        assert len(a) + len(b) == num_text
        pairs.append((a, b, label))
    return pairs


@settings(max_examples=200, deadline=None)
@given(CORPORA, st.integers(5, 25), st.integers(0, 2**70), st.sampled_from([0.0, 0.1, 0.9]))
def test_equals_the_loops(documents_of, listed, lengths, max_len, seed, short_rate):
    lengths = [[n for n in document if n] for document in lengths]
    assume(sum(map(bool, lengths)) > 1 and max(map(len, lengths)) > 1)
    documents = documents_of(lengths)
    options = segment_pair.Options(short_rate)
    build = segment_pair.build(
        documents, specials=BERT, max_len=max_len, seed=seed, options=options
    )
    rows, dropped = listed(build)
    ids = np.flatnonzero(np.diff(documents.document_starts))
    choices = segment_pair.Choices(seed, max_len - 3, short_rate)
    rates = segment_pair.balance(documents, ids, choices)
    assert (split_rows(rows), dropped) == slow_build(documents, max_len, seed, short_rate, rates)


def test_documents_of_one_sentence_are_left_out_only_where_balance_needs_it(documents_of, listed):
    def share_kept(num_alone):
        lengths = [[5]] * num_alone + [[5] * 4] * 1000
        documents = documents_of(lengths)
        rows, _ = listed(segment_pair.build(documents, specials=BERT, max_len=128, seed=0))
        last = 100 + 5 * num_alone
        return sum(a[0] < last for a, _, _ in split_rows(rows)) / num_alone

    assert share_kept(500) == 1
    assert share_kept(4000) == pytest.approx(1000 / 4000, abs=0.03)  # all others make label 0


def test_a_tenth_is_short_with_a_uniform_target(documents_of, listed):
    # With sentences of one token, label 1 fills its target exactly, unless B's document ends.
    room = 30
    documents = documents_of([[1] * 60_000] * 4)
    rows, _ = listed(segment_pair.build(documents, specials=BERT, max_len=room + 3, seed=5))
    edges = set(range(100 + 60_000 - 1, 100 + 4 * 60_000, 60_000))
    lengths = np.array([row[3] for row in rows if row[4] == 1 and row[0][-2] not in edges])
    short = lengths[lengths < room]
    # One short target in room - 1 is the room itself.
    expected = 0.1 * (room - 2) / (room - 1)
    assert stats.binomtest(len(short), len(lengths), expected).pvalue > 1e-3
    assert short.min() == 2
    assert stats.chisquare(np.bincount(short, minlength=room)[2:]).pvalue > 1e-3


def test_random_segments_stay_among_the_documents_asked_for(documents_of, listed):
    documents = documents_of([[3] * 4] * 10)
    ids = np.array([1, 4, 5])
    rows, _ = listed(
        segment_pair.build(documents, specials=BERT, max_len=15, seed=0, document_ids=ids)
    )
    homes = {(token - 100) // 12 for a, b, _ in split_rows(rows) for token in a + b}
    assert homes == {1, 4, 5}
