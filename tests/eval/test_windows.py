"""Windows over a document: worked out by hand, and what must hold of any."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.eval import likelihood


def as_lists(made: likelihood.Windows) -> list[tuple[int, ...]]:
    columns = made.starts, made.stops, made.firsts, made.lasts
    return [tuple(map(int, row)) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize(
    ("num_tokens", "context", "stride", "ahead", "expected"),
    [
        (3, 4, 2, 0, [(0, 3, 0, 3)]),
        (4, 4, 2, 0, [(0, 4, 0, 4)]),
        (5, 4, 2, 0, [(0, 4, 0, 4), (2, 5, 4, 5)]),
        (9, 4, 2, 0, [(0, 4, 0, 4), (2, 6, 4, 6), (4, 8, 6, 8), (6, 9, 8, 9)]),
        # Two tokens on either side of those that are scored, but at the document's ends.
        (11, 6, 2, 2, [(0, 6, 0, 4), (2, 8, 4, 6), (4, 10, 6, 8), (6, 11, 8, 11)]),
        (5, 2, 2, 0, [(0, 2, 0, 2), (2, 4, 2, 4), (4, 5, 4, 5)]),
    ],
)
def test_by_hand(num_tokens, context, stride, ahead, expected) -> None:
    assert as_lists(likelihood.slide(num_tokens, context, stride, ahead)) == expected


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_each_token_once_with_enough_around_it(data) -> None:
    num_tokens, context = (data.draw(st.integers(1, most)) for most in (200, 40))
    stride = data.draw(st.integers(1, context))
    ahead = data.draw(st.integers(0, context - stride))
    made = likelihood.slide(num_tokens, context, stride, ahead)
    scored = []
    for start, stop, first, last in as_lists(made):
        assert 0 <= start <= first < last <= stop <= num_tokens and stop - start <= context
        scored += range(first, last)
        assert start == 0 or first - start >= context - stride - ahead
        assert stop == num_tokens or stop - last >= ahead
    assert scored == list(range(num_tokens))
    assert len(made) == 1 or np.all(np.diff(made.starts) == stride)
