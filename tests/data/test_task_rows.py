"""Task inputs against a loop that removes one token at a time, and by hand."""

import numpy as np
import pytest

from scalelab.formats.documents import Frame
from scalelab.tasks import rows


def slowly(first: int, second: int, room: int) -> tuple[int, int]:
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_longest_first_truncation() -> None:
    lengths = np.array([(a, b) for a in range(12) for b in range(12)])
    for room in range(1, 24):
        made = rows.kept_lengths(lengths[:, 0], lengths[:, 1], room)
        expected = [slowly(a, b, room) for a, b in lengths]
        np.testing.assert_array_equal(np.stack(made, axis=1), expected)


def ids(*lengths: int) -> list[np.ndarray]:
    return [np.arange(10, 10 + n, dtype=np.int32) for n in lengths]


def rows(made: rows.Rows) -> list[list[int]]:
    return [list(map(int, r)) for r in np.split(made.tokens, made.starts[1:-1])]


def test_pairs_by_hand() -> None:
    made = rows.assemble(ids(2, 5, 0), ids(1, 2, 1), Frame((1,), (2, 3), (4,)), 9)
    assert rows(made) == [
        [1, 10, 11, 2, 3, 10, 4],
        [1, 10, 11, 12, 2, 3, 10, 11, 4],
        [1, 2, 3, 10, 4],
    ]
    assert made.boundaries.tolist() == [5, 6, 3]
    assert made.truncated.tolist() == [False, True, False]


def test_single_texts_by_hand() -> None:
    made = rows.assemble(ids(2, 5, 0), None, Frame((1,), (2, 3), (4,)), 6)
    assert rows(made) == [[1, 10, 11, 4], [1, 10, 11, 12, 13, 4], [1, 4]]
    assert made.boundaries.tolist() == [4, 6, 2]
    assert made.truncated.tolist() == [False, True, False]


def test_no_room() -> None:
    with pytest.raises(ValueError, match="max_len = 4 leaves no room .* 4 special tokens"):
        rows.assemble(ids(1), ids(1), Frame((1,), (2, 3), (4,)), 4)
