"""DENOISING: table 3 of T5's paper, the text from source and target, and shares of tokens."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scalelab.formats import Specials, denoising
from scalelab.formats.denoising import Options, source_length, target_length, text_length
from scalelab.helpers.names import SpecialIds

EOS, MASK, SENTINEL = 1, 2, 3
IDS = {"pad": 0, "eos": EOS, "mask": MASK, "sentinel_0": SENTINEL}
WORDS = "Thank you for inviting me to your party last week . apple".split()
TOKEN = {word: 4 + k for k, word in enumerate(WORDS)} | {"<M>": MASK}
SPECIALS = Specials((), (), (EOS,), SpecialIds(IDS), vocab_size=4 + len(WORDS))
TEXT = "Thank you for inviting me to your party last week ."
STYLES = ["bert_style", "mass_style", "drop", "prefix", "deshuffle", "lm"]
TABLE = {  # Raffel et al. 2020, table 3; "(original text)" is None
    "prefix": ("Thank you for inviting", "me to your party last week ."),
    "bert_style": ("Thank you <M> <M> me to your party apple week .", None),
    "mass_style": ("Thank you <M> <M> me to your party <M> week .", None),
    "drop": ("Thank you me to your party week .", "for inviting last"),
    "lm": ("", None),  # 3.2: no input
}


def ids(text: str) -> list[int]:
    return [TOKEN[word] for word in text.split()]


def draw(style: str, epochs: int, rate: float = 0.27) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets of the table's text in many epochs, 3 of 11 tokens noised."""
    batch = {
        "tokens": np.array([ids(TEXT)] * epochs, np.int32),
        "lengths": np.full(epochs, 11, np.int32),
    }
    address = {"seed": 0, "epochs": np.arange(epochs), "examples": np.zeros(epochs, np.int64)}
    options = Options(style, rate)
    max_len = next(n for n in range(8, 13) if text_length(n, options) == 11)
    given = {"specials": SPECIALS, "options": options, "max_len": max_len}
    made = denoising.corrupt(batch, **address, **given)
    return made["source"], made["tokens"]


@pytest.mark.parametrize("style", TABLE)
def test_the_rows_of_the_table_are_drawn(style) -> None:
    source, target = draw(style, 100_000 if style == "bert_style" else 2000)
    first, second = (TEXT if text is None else text for text in TABLE[style])
    found = [
        (made == np.pad([*ids(text), EOS], (0, made.shape[1] - len(text.split()) - 1))).all(axis=1)
        for made, text in ((source, first), (target, second))
    ]
    assert (found[0] & found[1]).any() and found[1][found[0]].all()


def test_places_and_random_tokens_have_their_shares() -> None:
    source, _ = draw("mass_style", 5000)
    places = Counter(tuple(np.flatnonzero(row == MASK)) for row in source)
    assert len(places) == 165  # 3 of 11
    assert stats.chisquare([*places.values()]).pvalue > 1e-4
    source, _ = draw("bert_style", 5000)
    own = source[:, :11] == ids(TEXT)
    masks, tokens = (source == MASK).sum(), np.bincount(source[:, :11][~own], minlength=16)
    # A random token may be the token itself: one of twelve words.
    expected = 15_000 * np.array([0.9, 0.1 * 11 / 12])
    found = np.array([masks, (~own).sum() - masks])
    assert (
        stats.chisquare(
            np.append(found, 15_000 - found.sum()), np.append(expected, 15_000 - expected.sum())
        ).pvalue
        > 1e-4
    )
    assert (tokens[4:] > 50).all() and tokens[[0, 1, SENTINEL]].sum() == 0
    source, _ = draw("prefix", 5000)
    cuts = np.bincount((source > EOS).sum(axis=1), minlength=12)
    assert cuts[0] == cuts[11] == 0 and stats.chisquare(cuts[1:11]).pvalue > 1e-4
    source, _ = draw("deshuffle", 5000)
    assert stats.chisquare(np.bincount(source[:, 0])[4:]).pvalue > 1e-4


@pytest.mark.parametrize("style", STYLES)
def test_the_text_comes_back(style, documents_of, corrupted, row_of) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=1, max_size=4),
        st.sampled_from([0.15, 0.5, 0.9, 0.01]),
    )
    def check(lengths: list[list[int]], rate: float) -> None:
        given = dict(style=style, noise_rate=rate)
        stored, made = corrupted("denoising", documents_of(lengths), SPECIALS, 24, **given)
        for i in range(len(stored["lengths"])):
            text = row_of(stored, "tokens", i)
            source, target = row_of(made, "source", i), row_of(made, "tokens", i)
            assert source.pop() == target.pop() == EOS
            noised = min(max(round(len(text) * rate), 1), max(len(text) - 1, 1))
            if style == "drop":
                assert sorted(source + target) == text and len(target) == noised
                assert source == sorted(source) and target == sorted(target)
            elif style == "prefix":
                assert source + target == text and source and (target or len(text) == 1)
            else:
                assert target == text
            if style in ("bert_style", "mass_style"):
                places = [k for k, token in enumerate(text) if source[k] != token]
                assert len(places) == noised and len(source) == len(text)
                allowed = {MASK} if style == "mass_style" else {MASK, *range(4, 16)}
                assert {source[k] for k in places} <= allowed
            elif style == "deshuffle":
                assert sorted(source) == text
            elif style == "lm":
                assert not source

    check()


def unpack(made: dict[str, np.ndarray], row: int) -> list[tuple[list[int], list[int]]]:
    """Source and target of each text of a row, each without its end."""
    found, begins = [], (0, 0)
    for ends in made["text_ends"][row].tolist():
        parts = [
            made[name][row, begin:end].tolist()
            for name, begin, end in zip(("source", "tokens"), begins, ends, strict=True)
        ]
        assert all(part.pop() == EOS for part in parts)
        found.append(tuple(parts))
        begins = tuple(ends)
    assert begins == (made["source_lengths"][row], made["lengths"][row])
    return found


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=1, max_size=6),
    st.integers(5, 24), st.integers(0, 9),
)  # fmt: skip
def test_both_texts_of_a_row_come_back(
    documents_of, corrupted, row_of, lengths, most, epoch
) -> None:
    given = dict(style="prefix", across_documents=True, epoch=epoch)
    stored, made = corrupted("denoising", documents_of(lengths), SPECIALS, most, **given)
    for row, n in enumerate(stored["lengths"]):
        (first, rest), (second, last) = unpack(made, row)
        assert first + rest + second + last == row_of(stored, "tokens", row)
        assert len(first + rest) == n // 2 and len(first + second) == n // 2
        if n >= 4:
            assert first and rest and second and last
        if row < len(stored["lengths"]) - 1:  # full
            assert made["lengths"][row] == made["source_lengths"][row] == most
    empty, pad = corrupted("denoising", documents_of([[9]]), SPECIALS, 8, rows=[0], **given)
    batch = {name: np.zeros_like(x) for name, x in empty.items()}
    address = {"seed": 3, "epochs": np.zeros(1, int), "examples": np.array([-1])}
    options = Options("prefix", across_documents=True)
    found = denoising.corrupt(batch, **address, specials=SPECIALS, options=options, max_len=8)
    assert found.keys() == pad.keys() and not any(x.any() for x in found.values())


def test_cuts_of_two_texts_are_uniform(documents_of, corrupted) -> None:
    """Each by itself; together they mirror each other, and nothing is padding."""
    documents, given = documents_of([[7] * 5000]), dict(style="prefix", across_documents=True)
    _, made = corrupted("denoising", documents, SPECIALS, 13, rows=np.arange(1200), **given)
    first, second = made["text_ends"][:, 0, 0] - 1, np.diff(made["text_ends"], axis=1)[:, 0, 0] - 1
    assert (
        (first + second == 11).all() and (made["source"] > 0).all() and (made["tokens"] > 0).all()
    )
    for cuts in (first, second):
        counts = np.bincount(cuts, minlength=12)
        assert counts[0] == counts[11] == 0 and stats.chisquare(counts[1:11]).pvalue > 1e-4


def test_lengths_of_512() -> None:
    widths = {
        style: (source_length(512, Options(style)), target_length(512, Options(style)))
        for style in STYLES
    }
    assert widths.pop("drop") == (512, 91)  # 601 tokens, 90 of them noised
    assert widths.pop("lm") == (1, 512)
    assert {*widths.values()} == {(512, 512)}
    pair = Options("prefix", across_documents=True)  # two texts of 510 tokens
    assert text_length(512, pair) == 1020
    assert (source_length(512, pair), target_length(512, pair)) == (512, 512)


def test_masks(documents_of, corrupted) -> None:
    """The role "mask", else the first sentinel, else a message."""
    documents = documents_of([[9]])
    for roles, mask in (("mask sentinel_0", MASK), ("sentinel_0", SENTINEL)):
        there = SpecialIds({role: IDS[role] for role in ["eos", *roles.split()]})
        specials = Specials((), (), (EOS,), there, vocab_size=16)
        _, made = corrupted(
            "denoising", documents, specials, 16, style="mass_style", noise_rate=0.9
        )
        assert {*made["source"][0, :9].tolist()} & {*IDS.values()} == {mask}
    bare = Specials((), (), (EOS,), SpecialIds({"eos": EOS}), vocab_size=16)
    with pytest.raises(ValueError, match="no special token has the role 'sentinel_0'"):
        corrupted("denoising", documents, bare, 16)
    corrupted("denoising", documents, bare, 16, style="deshuffle")
    with pytest.raises(ValueError, match="'bert_style' or 'mass_style' or"):
        corrupted("denoising", documents, SPECIALS, 16, style="mask")
