"""MASKED-FRAGMENT: the fragment put back gives the text; lengths, places and shares of masks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scalelab.formats import Specials, masked_fragment
from scalelab.helpers.names import SpecialIds

BEGIN, END, MASK = 1, 2, 3
IDS = SpecialIds({"pad": 0, "bos": BEGIN, "eos": END, "mask": MASK, "last": 10})
SPECIALS = Specials((BEGIN,), (), (END,), IDS, vocab_size=14)
ORDINARY = [4, 5, 6, 7, 8, 9, 11, 12, 13]  # `documents_of` has other tokens, all different


def test_the_fragment_put_back_gives_the_text(documents_of, corrupted, row_of) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=1, max_size=4),
        st.sampled_from([0.5, 0.01, 0.3, 1.0]),
    )
    def check(lengths: list[list[int]], rate: float) -> None:
        documents = documents_of(lengths)
        stored, made = corrupted("masked_fragment", documents, SPECIALS, 32, fragment_rate=rate)
        for i, offset in enumerate(made["offset"]):
            text, source = row_of(stored, "tokens", i), row_of(made, "source", i)
            fragment = row_of(made, "tokens", i)
            assert len(fragment) == max(round((len(text) - 2) * rate), 1)
            assert 1 <= offset and offset + len(fragment) < len(text) == len(source)
            assert source[:offset] + fragment + source[offset + len(fragment) :] == text
            there = source[offset : offset + len(fragment)]
            assert all(t in (MASK, was, *ORDINARY) for t, was in zip(there, fragment, strict=True))

    check()


def draw(length: int, epochs: int, rate: float = 0.5) -> tuple[np.ndarray, dict]:
    """The text 100, 101, ... in many epochs: stored rows and the corrupted batch."""
    tokens = np.array([[BEGIN, *range(100, 100 + length), END]] * epochs, np.int32)
    rows = np.zeros(epochs, np.int64)
    batch = {"tokens": tokens, "lengths": np.full(epochs, length + 2, np.int32)}
    address = {"seed": 0, "epochs": np.arange(epochs), "examples": rows}
    options = masked_fragment.Options(rate)
    given = {"specials": SPECIALS, "options": options, "max_len": length + 2}
    return tokens, masked_fragment.corrupt(batch, **address, **given)


def test_the_example_of_the_paper() -> None:
    """Song et al. 2019, figure 1: x3 x4 x5 x6 of eight tokens are masked."""
    _, made = draw(8, 300)
    figure = [BEGIN, 100, 101, MASK, MASK, MASK, MASK, 106, 107, END]
    (rows,) = np.nonzero((made["source"] == figure).all(axis=1))
    assert len(rows) > 5  # 0.8 ** 4 / 5 of 300 is 25
    assert (made["tokens"][rows, :4] == [102, 103, 104, 105]).all() and (made["lengths"] == 4).all()
    assert (made["offset"][rows] == 3).all()


def test_places_masks_and_random_tokens_have_their_shares() -> None:
    tokens, made = draw(20, 4000)
    starts = np.bincount(made["offset"])[1:]
    assert len(starts) == 11 and stats.chisquare(starts).pvalue > 1e-4
    places = np.arange(22) - made["offset"][:, None]
    hidden, was = ((x[(places >= 0) & (places < 10)]) for x in (made["source"], tokens))
    found = np.array([(hidden == MASK).sum(), (hidden < 100).sum(), (hidden == was).sum()])
    found[1] -= found[0]
    assert found.sum() == 40_000  # 80%, 10% and 10%
    assert stats.chisquare(found, [32_000, 4000, 4000]).pvalue > 1e-4
    random = np.bincount(hidden[(hidden < 100) & (hidden != MASK)])
    assert np.flatnonzero(random).tolist() == ORDINARY
    assert stats.chisquare(random[ORDINARY]).pvalue > 1e-4


def test_the_ends_of_the_rate() -> None:
    """One token: a cloze. All tokens: the target is the whole text, in its order."""
    _, one = draw(9, 50, rate=0.01)
    _, all_ = draw(9, 50, rate=1.0)
    assert (one["lengths"] == 1).all() and (one["tokens"][:, 0] == one["offset"] + 99).all()
    assert (all_["offset"] == 1).all()
    assert (all_["tokens"][:, :9] == np.arange(100, 109)).all()


def test_a_system_without_mask_is_refused(documents_of, corrupted) -> None:
    bare = Specials((BEGIN,), (), (END,), SpecialIds({"eos": END}))
    with pytest.raises(ValueError, match="no special token has the role 'mask'"):
        corrupted("masked_fragment", documents_of([[4]]), bare, 16)
    with pytest.raises(ValueError, match="max_len = 2 .*3"):
        corrupted("masked_fragment", documents_of([[4]]), SPECIALS, 2)
