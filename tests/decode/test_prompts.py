"""Prompts in one array."""

import numpy as np
import pytest

from scalelab.decode.prompts import pad


def rows(*lengths: int) -> list[np.ndarray]:
    return [np.arange(1, n + 1, dtype=np.int32) for n in lengths]


@pytest.mark.parametrize(
    ("longest", "max_len", "expected"),
    [(1, 99, 16), (16, 99, 16), (17, 99, 32), (33, 99, 64), (65, 99, 99), (90, 99, 99), (5, 9, 9)],
)
def test_few_lengths(longest: int, max_len: int, expected: int) -> None:
    tokens, lengths = pad(rows(1, longest), 4, max_len)
    assert tokens.shape == (2, expected) and lengths.tolist() == [1, longest]
    assert tokens[1, :longest].tolist() == list(range(1, longest + 1))
    assert not tokens[1, longest:].any() and tokens.dtype == lengths.dtype == np.int32


def test_up_to_the_last_position() -> None:
    assert pad(rows(10), 6, 16)[0].shape == (1, 16)


@pytest.mark.parametrize(
    ("lengths", "max_new_tokens", "message"),
    [
        ((3, 10), 7, "a prompt of 10 tokens and 7 new ones make 17, but the net has 16 positions"),
        ((20,), 1, "a prompt of 20 tokens"),
        ((3, 0), 7, "an empty prompt"),
        ((), 7, "no prompts"),
        ((3,), 0, "max_new_tokens = 0: expected at least 1"),
    ],
)
def test_refused(lengths: tuple[int, ...], max_new_tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pad(rows(*lengths), max_new_tokens, 16)
