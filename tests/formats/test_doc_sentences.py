"""DOC-SENTENCES against a loop over tokens, and by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.formats import Specials, doc_sentences

ROBERTA = Specials(begin=(1,), between=(2,), end=(2,))
CORPORA = st.lists(st.lists(st.integers(1, 12), max_size=8), max_size=8)


def slow_build(lengths, specials, max_len, bytes_per_token=3):
    """Reads token after token; rows as `listed` has them, but bytes not rounded; dropped tokens."""
    rows, dropped, token = [], 0, 100
    room = max_len - len(specials.begin) - len(specials.end)

    def close(text, num_bytes):
        if text:
            tokens = [*specials.begin, *text, *specials.end]
            rows.append((tokens, None, num_bytes, len(text), None))

    for document in lengths:
        text, exact = [], 0.0
        for length in document:
            if length == 0:
                continue
            if len(text) == room:
                close(text, exact)
                text, exact = [], 0.0
            taken = min(length, room - len(text))
            text += range(token, token + taken)
            exact += (bytes_per_token * length + 1) * taken / length
            dropped += length - taken
            token += length
        close(text, exact)
    return rows, dropped


def test_by_hand(documents_of, listed):
    # Room for 5: 3 + 4 are cut after 2 of the 4; 2 + 2 end with the document; 9 is cut to 5.
    rows, dropped = listed(
        doc_sentences.build(documents_of([[3, 4, 2, 2], [9]]), specials=ROBERTA, max_len=7)
    )
    assert [row[0] for row in rows] == [
        [1, 100, 101, 102, 103, 104, 2],
        [1, 107, 108, 109, 110, 2],
        [1, 111, 112, 113, 114, 115, 2],
    ]
    assert [row[2] for row in rows] == [10 + 6, 14, 16]  # 13 bytes * 2/4 = 6.5; 28 * 5/9 = 15.6
    assert [row[3] for row in rows] == [5, 4, 5]
    assert dropped == 2 + 4


@settings(max_examples=200, deadline=None)
@given(CORPORA, st.integers(3, 20), st.booleans())
def test_equals_the_loop(documents_of, listed, lengths, max_len, framed):
    specials = ROBERTA if framed else Specials((), (9,), ())
    rows, dropped = listed(
        doc_sentences.build(documents_of(lengths), specials=specials, max_len=max_len, seed=3)
    )
    slow_rows, slow_dropped = slow_build(lengths, specials, max_len)
    assert [(r[0], r[1], r[3]) for r in rows] == [(r[0], r[1], r[3]) for r in slow_rows]
    assert all(
        abs(row[2] - slow_row[2]) < 0.5 + 1e-6
        for row, slow_row in zip(rows, slow_rows, strict=True)
    )
    assert dropped == slow_dropped


def test_only_the_documents_asked_for(documents_of, listed):
    documents = documents_of([[2, 2], [3], [4, 1], [5]])
    ids = np.array([3, 1])
    build = doc_sentences.build(documents, specials=ROBERTA, max_len=30, document_ids=ids)
    rows, dropped = listed(build)
    assert [row[0][1:-1] for row in rows] == [[104, 105, 106], [112, 113, 114, 115, 116]]
    assert dropped == 0 and [row[2] for row in rows] == documents.sentence_bytes[[2, 5]].tolist()
