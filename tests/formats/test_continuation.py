"""CONTINUATION: source and target together are the fragments of the documents, cut at the rate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.formats import Specials, continuation, doc_sentences, full_sentences
from scalelab.formats.continuation import Options, source_length, target_length

BEGIN, END = 1, 2
SPECIALS = Specials((BEGIN,), (), (END,))
BARE = Specials((), (), (BEGIN, END))  # two tokens after a text, none before it


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 12), max_size=9), min_size=1, max_size=6),
    st.sampled_from([0.8, 0.5, 0.2]),
    st.sampled_from([SPECIALS, BARE]),
    st.sampled_from([None, True]),
)
def test_source_and_target_are_the_fragments(
    documents_of, row_of, lengths, rate, specials, across
) -> None:
    documents, max_len, options = documents_of(lengths), 24, Options(rate, across)
    widths = source_length(max_len, options), target_length(max_len, options)
    assert sum(widths) == max_len
    given = dict(specials=specials, max_len=max_len, options=options)
    (chunk,) = continuation.build(documents, **given)
    rows = [
        [values[a:b].tolist() for a, b in zip(starts, starts[1:], strict=False)]
        for values, starts in (chunk.ragged[name] for name in ("source", "tokens"))
    ]
    begin, end = [*specials.begin], [*specials.end]
    space = widths[0] - len(begin + end), widths[1] - len(end)
    longest = max(
        n for n in range(100) if round(n * rate) <= space[0] and n - round(n * rate) <= space[1]
    )
    form = full_sentences if across else doc_sentences
    (plain,) = form.build(documents, specials=Specials(), max_len=longest)
    fragments = np.split(plain.ragged["tokens"].values, plain.ragged["tokens"].starts[1:-1])
    fragments = [fragment.tolist() for fragment in fragments if len(fragment) > 1]
    for fragment, source, target in zip(fragments, *rows, strict=True):
        first = min(max(round(len(fragment) * rate), 1), len(fragment) - 1)
        assert source == [*begin, *fragment[:first], *end]
        assert target == [*fragment[first:], *end]
        assert (len(source) <= widths[0]) and (len(target) <= widths[1])
    assert chunk.flat["num_text_tokens"].tolist() == [len(fragment) for fragment in fragments]
    assert chunk.dropped_tokens + chunk.flat["num_text_tokens"].sum() == len(documents.tokens)


def test_the_lengths_of_the_paper() -> None:
    """Bi et al. 2020, 4.1: 400 tokens of source and 100 of target."""
    assert (source_length(500, Options()), target_length(500, Options())) == (400, 100)


def test_an_example_by_hand(documents_of, corrupted, row_of) -> None:
    """Two sentences of 6 and 4 tokens; the next fragment is cut: 13 = 10 + 3 of its 16 tokens."""
    documents = documents_of([[6, 4], [16]])
    for max_len, first, second, stop in ((64, 8, 13, 126), (16, 8, 10, 122)):
        _, made = corrupted("continuation", documents, SPECIALS, max_len)
        assert row_of(made, "source", 0) == [BEGIN, *range(100, 100 + first), END]
        assert row_of(made, "tokens", 0) == [108, 109, END]
        assert row_of(made, "source", 1) == [BEGIN, *range(110, 110 + second), END]
        assert row_of(made, "tokens", 1) == [*range(110 + second, stop), END]


def test_a_fragment_goes_on_in_the_next_document(documents_of, corrupted, row_of) -> None:
    documents = documents_of([[6, 4], [5]])
    _, made = corrupted("continuation", documents, SPECIALS, 64, across_documents=True)
    assert row_of(made, "source", 0) == [BEGIN, *range(100, 112), END]
    assert row_of(made, "tokens", 0) == [112, 113, 114, END] and len(made["lengths"]) == 1


@pytest.mark.parametrize(("max_len", "rate"), [(4, 0.8), (6, 0.8), (9, 0.95), (16, 0.1)])
def test_no_space_is_refused(max_len, rate, documents_of, corrupted) -> None:
    with pytest.raises(ValueError, match=f"max_len = {max_len} .*needs at least 1.*source_rate"):
        corrupted("continuation", documents_of([[9]]), SPECIALS, max_len, source_rate=rate)
