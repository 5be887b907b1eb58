"""FULL-SENTENCES against a loop over tokens, and by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.formats import Specials, full_sentences

CORPORA = st.lists(st.lists(st.integers(1, 12), max_size=6), max_size=10)


def slow_build(lengths, specials, max_len):
    """Reads token after token; ([tokens of each example], dropped tokens)."""
    rows, dropped, token = [], 0, 100
    room = max_len - len(specials.begin) - len(specials.end)
    content = []

    def close():
        nonlocal content
        if content:
            rows.append([*specials.begin, *content, *specials.end])
        content = []

    for document in lengths:
        is_first = True
        for length in document:
            if length == 0:
                continue
            between = list(specials.between) if is_first and content else []
            if len(content) + len(between) >= room:
                close()
                between = []
            content += between
            taken = min(length, room - len(content))
            content += range(token, token + taken)
            dropped += length - taken
            token += length
            is_first = False
    close()
    return rows, dropped


def test_by_hand(documents_of, listed):
    # Room for 7: 3 + between + 2 + 1 of 4, cut; then 1, between, 5 of the last document's 8.
    specials = Specials(begin=(1,), between=(2,), end=(3,))
    rows, dropped = listed(
        full_sentences.build(documents_of([[3], [2, 4, 1], [8]]), specials=specials, max_len=9)
    )
    assert [row[0] for row in rows] == [
        [1, 100, 101, 102, 2, 103, 104, 105, 3],
        [1, 109, 2, 110, 111, 112, 113, 114, 3],
    ]
    assert [row[3] for row in rows] == [6, 6]
    assert dropped == 3 + 3
    # 3 bytes a token and 1 a sentence: 10 + 7 + 13/4; 4 + 25 * 5/8.
    assert [row[2] for row in rows] == [20, 20]


@settings(max_examples=300, deadline=None)
@given(CORPORA, st.integers(3, 25), st.integers(0, 3), st.booleans())
def test_equals_the_loop(documents_of, listed, lengths, max_len, num_between, framed):
    begin, end = ((1,), (3,)) if framed else ((), ())
    specials = Specials(begin, (2,) * num_between, end)
    rows, dropped = listed(
        full_sentences.build(documents_of(lengths), specials=specials, max_len=max_len)
    )
    assert ([row[0] for row in rows], dropped) == slow_build(lengths, specials, max_len)
    special = {1, 2, 3}
    assert [row[3] for row in rows] == [len([t for t in r[0] if t not in special]) for r in rows]
