"""TEXT-NOISE: each noise undone, the figure of the paper, and the distributions of the draws."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scalelab.formats import Specials, assembly, text_noise
from scalelab.helpers.names import SpecialIds

BEGIN, END, MASK = 1, 2, 3
SPECIALS = Specials((BEGIN,), (9,), (END,), SpecialIds({"mask": MASK}))
FIRST = 100  # id of the first token of `documents_of`; all tokens differ
NOISES = text_noise.NOISES


def sentences_of(text: list[int], opens: np.ndarray) -> list[list[int]]:
    """Cuts a text where `opens` is 1."""
    edges = [*np.flatnonzero(opens[: len(text)]), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def fill(source: list[int], text: list[int]) -> list[int]:
    """Undoes infilling: the tokens that lack before a kept token stand where masks are."""
    made = []
    for token in [*source, None]:
        here = text.index(token) if token in text else len(text)
        if token == MASK:
            masked = True
        elif made != text[:here]:
            assert masked and made == text[: len(made)]
            made = text[:here]
        if token != MASK:
            made, masked = [*made, token][: len(text)], False
    return made


@pytest.mark.parametrize("noise", [*NOISES, "infilling+permutation", "+".join(NOISES)])
def test_the_text_comes_back(noise, documents_of, corrupted, row_of) -> None:
    names = noise.split("+")

    @settings(max_examples=15, deadline=None)
    @given(
        st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=1, max_size=4),
        st.sampled_from([(0.3, 3.0), (0.05, 1.0), (0.9, 1.0), (0.6, 20.0)]),
    )
    def check(lengths: list[list[int]], rates: tuple[float, float]) -> None:
        options = {"noise": noise, "noise_rate": rates[0], "mean_span": rates[1]}
        documents = documents_of(lengths)
        stored, made = corrupted("text_noise", documents, SPECIALS, 32, **options)
        for i in range(len(stored["lengths"])):
            text, source = row_of(made, "tokens", i), row_of(made, "source", i)
            assert [text[0], text[-1], source[0], source[-1]] == [BEGIN, END] * 2
            text, source = text[1:-1], source[1:-1]
            assert text == [*range(text[0], text[0] + len(text))]  # sentences that follow
            taken = assembly.share(np.array(len(text)), rates[0])
            if noise == "deletion" and len(text) == 1:
                taken = 0
            kept = [token for token in source if token != MASK]
            assert len({*kept}) == len(kept) and {*kept} <= {*text}
            if noise == "masking":
                assert [token for token, was in zip(source, text, strict=True) if token != was] == (
                    [MASK] * taken
                )
            elif noise in ("deletion", "infilling"):
                assert kept == sorted(kept) and len(kept) == len(text) - taken
                if noise == "infilling":
                    assert fill(source, text) == text
                    assert 0 < len(source) - len(kept) <= taken
            elif noise == "permutation":
                parts = sentences_of(text, stored["opens"][i, 1:])
                assert {*map(tuple, parts)} == {
                    tuple(source[(a := source.index(part[0])) : a + len(part)]) for part in parts
                }
            elif noise == "rotation":
                at = source.index(text[0])
                assert source[at:] + source[:at] == text
            else:
                assert len(source) <= len(text) and ("deletion" in names or len(kept) < len(text))

    check()


FIGURE = {  # Lewis et al. 2020, figure 2: "A B C . D E ." is 0 to 6, and 9 a mask
    "masking": [0, 9, 2, 3, 9, 5, 6],
    "deletion": [0, 2, 3, 5, 6],
    "infilling": [0, 9, 3, 4, 9, 5, 6],
    "permutation": [4, 5, 6, 0, 1, 2, 3],
    "rotation": [2, 3, 4, 5, 6, 0, 1],
}


@pytest.mark.parametrize("noise", NOISES)
def test_the_rows_of_the_figure_are_drawn(noise, documents_of, corrupted, row_of) -> None:
    rows = np.zeros(3000, np.int64)  # one text, in as many epochs
    documents, options = documents_of([[4, 3]]), text_noise.Options(noise=noise)
    stored, _ = corrupted("text_noise", documents, SPECIALS, 12, rows=rows, noise=noise)
    address = {"seed": 0, "epochs": np.arange(len(rows)), "examples": rows}
    given = {"specials": SPECIALS, "options": options, "max_len": 12}
    made = text_noise.corrupt(stored, **address, **given)
    found = Counter(tuple(row_of(made, "source", i)) for i in range(len(rows)))
    figure = [MASK if token == 9 else FIRST + token for token in FIGURE[noise]]
    assert found[BEGIN, *figure, END] > 0
    ways = {"masking": 21, "deletion": 21, "permutation": 2, "rotation": 7}
    if noise in ways:
        assert len(found) == ways[noise]
        assert stats.chisquare([*found.values()]).pvalue > 1e-4


def test_lengths_of_spans_are_poisson_draws() -> None:
    """A mean that is a little off is told apart; the cut last spans do not matter here."""
    options = text_noise.Options()
    streams, dropped = np.arange(200).astype(np.uint64) << np.uint64(32), np.full(200, 3000)
    sizes, num_spans = text_noise.cut_spans(dropped, streams, options)
    assert (sizes.sum(axis=1) == dropped).all()
    spans = sizes[np.arange(sizes.shape[1]) < num_spans[:, None]]
    found = np.bincount(np.minimum(spans, 9), minlength=10)

    def pvalue(mean: float) -> float:
        chances = stats.poisson.pmf(np.arange(9), mean)
        return stats.chisquare(found, len(spans) * np.append(chances, 1 - chances.sum())).pvalue

    assert pvalue(3.0) > 1e-3 and pvalue(2.95) < 1e-6
    assert abs(num_spans.mean() - (3000 / 3 + 2 / 3)) < 5 * (3000 / 9 / 200) ** 0.5


def test_a_single_token_is_not_deleted(documents_of, corrupted, row_of) -> None:
    """So that no source is empty."""
    for noise in ("deletion", "+".join(NOISES)):
        _, made = corrupted("text_noise", documents_of([[1], [2]]), SPECIALS, 8, noise=noise)
        assert [len(row_of(made, "source", i)) for i in range(2)] == [3, 3]


def test_widths_fit_the_rates() -> None:
    """A source of 512 tokens loses 154 and gets 51 masks on average, 4 sd of 4.1 above it."""
    length = {noise: text_noise.source_length(512, text_noise.Options(noise)) for noise in NOISES}
    assert (length["masking"], length["permutation"], length["rotation"]) == (512, 512, 512)
    assert length["deletion"] == 358 and 358 + 51 + 16 <= length["infilling"] <= 358 + 51 + 20
    short = text_noise.Options("infilling", 0.3, 1.0)
    assert text_noise.source_length(512, short) == 512  # inserted masks never lengthen a text


def test_bad_options_are_refused(documents_of, corrupted) -> None:
    documents, bare = documents_of([[3, 4]]), Specials((BEGIN,), (), (END,), SpecialIds({"pad": 0}))
    for noise in ("masking", "infilling+permutation"):
        with pytest.raises(ValueError, match="no special token has the role 'mask'"):
            corrupted("text_noise", documents, bare, 16, noise=noise)
    corrupted("text_noise", documents, bare, 16, noise="deletion+rotation")
    for noise in ("infilling", "deletion"):
        with pytest.raises(ValueError, match="max_len = 2 .*3"):
            corrupted("text_noise", documents, SPECIALS, 2, noise=noise)
    with pytest.raises(ValueError, match=r"max_len = 16 .* noise_rate = 0\.9"):
        corrupted("text_noise", documents, SPECIALS, 16, noise="deletion", noise_rate=0.9)
    for noise in ("infill", "", "masking+masking"):
        with pytest.raises(ValueError, match="some of permutation, masking.* joined by"):
            corrupted("text_noise", documents, SPECIALS, 16, noise=noise)
