"""BLANK-INFILLING: the blanks put back give the text; all ways to cut, place and order them."""

import collections
import math
import re

import numpy as np
import pytest
from scipy import stats

from scalelab.formats import Specials, blank_infilling
from scalelab.formats.span_corruption import Options, counts
from scalelab.helpers.names import SpecialIds

CLS, SEP, MASK, END = 1, 2, 3, 4
IDS = SpecialIds({"pad": 0, "cls": CLS, "sep": SEP, "mask": MASK, "eos": END})
SPECIALS = Specials((CLS,), (SEP,), (SEP,), IDS, vocab_size=60)
OPTIONS = [Options(), Options(0.5, 2.0), Options(0.9, 3.0), Options(0.3, 1.0)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_blanks_put_back_give_the_text(options, documents_of, corrupted, row_of) -> None:
    documents = documents_of([[n] for n in (*range(1, 40), 200)])
    given = vars(options)
    stored, made = corrupted("blank_infilling", documents, SPECIALS, 40, **given)
    longest, orders = 0, set()
    for i in range(len(made["lengths"])):
        text, source = row_of(stored, "tokens", i), row_of(made, "source", i)
        tokens, places = row_of(made, "tokens", i), row_of(made, "blanks", i)
        longest = max(longest, len(source) + len(tokens))
        dropped, num_blanks = (int(x) for x in counts(np.array(len(text)), options))
        assert source[0] == CLS and source[-1] == SEP and tokens[-1] == END
        blanks = collections.defaultdict(list)
        for token, place in zip(tokens, places, strict=True):
            blanks[place].append(token)
        assert sorted(blanks) == [p for p, token in enumerate(source) if token == MASK]
        assert len(blanks) == num_blanks == tokens.count(END)
        assert len(tokens) == dropped + num_blanks
        assert all(x.index(END) == len(x) - 1 > 0 for x in blanks.values())
        orders.add(tuple(np.argsort([*blanks])))
        whole = [x for p, t in enumerate(source) for x in (blanks[p][:-1] if t == MASK else [t])]
        assert whole[1:-1] == text
    # A frame of two tokens is taken from Part A; Part B keeps its room.
    assert 28 <= longest <= 40 and len(orders) >= 3
    assert made["source"].shape[1] + made["tokens"].shape[1] == 40


def test_all_ways_to_cut_place_and_order_are_equally_likely() -> None:
    """Six tokens, of which three are in two blanks: 2 ways to cut, 10 to place, 2 to order."""
    n = 12_000
    batch = {"tokens": np.tile(np.arange(10, 16, dtype=np.int32), (n, 1))}
    batch["lengths"] = np.full(n, 6, np.int32)
    address = {"seed": 5, "epochs": np.arange(n), "examples": np.zeros(n, np.int64)}
    given = {"specials": SPECIALS, "options": Options(0.5, 2.0), "max_len": 16}
    made = blank_infilling.corrupt(batch, **address, **given)
    assert (made["lengths"] == 5).all()  # three tokens and two ends
    found = np.concatenate([made["source"], made["tokens"], made["blanks"]], axis=1)
    times = collections.Counter(map(tuple, found.tolist())).values()
    assert len(times) == 2 * math.comb(5, 2) * 2
    assert stats.chisquare(list(times)).pvalue > 1e-4


def test_lengths_of_the_tables_and_refusals(documents_of, corrupted) -> None:
    """The longest text with a mask and an end for each blank, within `max_len`."""
    dropped, num_blanks = counts(np.arange(600), Options())
    for max_len in (64, 128, 512):
        n = blank_infilling.text_length(max_len, Options())
        assert n + 2 * num_blanks[n] <= max_len < n + 1 + 2 * num_blanks[n + 1]
        target = blank_infilling.target_length(max_len, Options())
        assert target == dropped[n] + num_blanks[n]
    documents = documents_of([[4]])
    with pytest.raises(ValueError, match="max_len = 4 leaves no token of text"):
        corrupted("blank_infilling", documents, SPECIALS, 4)
    with pytest.raises(ValueError, match="no special token has the role 'mask'"):
        corrupted("blank_infilling", documents, Specials(ids=SpecialIds({"eos": END})), 16)


@pytest.mark.parametrize(("max_len", "rate"), [(32, 0.15), (40, 0.5), (64, 0.3)])
def test_a_mean_span_beyond_the_noise_is_refused(max_len, rate, documents_of, corrupted) -> None:
    """The largest that is accepted gives the longest text one blank of that length."""

    def make(**more: float) -> dict[str, np.ndarray]:
        documents = documents_of([[200]])
        given = {"noise_rate": rate} | more
        return corrupted("blank_infilling", documents, SPECIALS, max_len, **given)[1]

    with pytest.raises(ValueError, match="format_options.mean_span = 100:") as refused:
        make(mean_span=100.0)
    most = int(re.findall(r"set it to (\d+) or less", str(refused.value))[0])
    assert make(mean_span=float(most))["lengths"].max() == most + 1
    with pytest.raises(ValueError, match="mean_span"):
        make(mean_span=most + 0.5)


def test_the_default_suits_every_length(documents_of, corrupted) -> None:
    for max_len in range(6, 40):
        made = corrupted("blank_infilling", documents_of([[60]]), SPECIALS, max_len)[1]
        assert made["lengths"].all()
