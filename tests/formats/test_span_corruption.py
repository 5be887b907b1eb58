"""SPAN-CORRUPTION: sources and targets give the text back, and have the published lengths."""

import collections
from typing import Any

import numpy as np
import pytest

from scalelab.formats import Documents, Specials, draws, span_corruption
from scalelab.formats.span_corruption import Options, counts, target_length, text_length

EOS, SENTINELS = 1, tuple(range(3, 67))
ROLES = {"pad": 0, "eos": EOS} | {f"sentinel_{i}": s for i, s in enumerate(SENTINELS)}
SPECIALS = Specials(end=(EOS,), ids=ROLES)
OPTIONS = [Options(), Options(0.5, 2.0), Options(0.9, 3.0), Options(0.05, 10.0), Options(0.3, 1.0)]


def corrupt(lengths: Any, options: Options, max_len: int, epoch: int = 0) -> tuple[Any, Any]:
    """Texts of these lengths, without equal tokens, and their corruption."""
    lengths, width = np.asarray(lengths, np.int32), text_length(max_len, options)
    tokens = np.where(np.arange(width) < lengths[:, None], 100 + np.arange(width), 0)
    batch = {"tokens": tokens.astype(np.int32), "lengths": lengths, "num_bytes": 4 * lengths}
    rows = np.arange(len(lengths))
    given: Any = dict(seed=3, epochs=np.full_like(rows, epoch), examples=rows, specials=SPECIALS)
    return batch, span_corruption.corrupt(batch, options=options, max_len=max_len, **given)


def row(batch: Any, name: str, i: int) -> list[int]:
    lengths = batch["lengths" if name == "tokens" else f"{name}_lengths"]
    assert not batch[name][i, lengths[i] :].any()
    return batch[name][i, : lengths[i]].tolist()


def spans(target: list[int]) -> list[list[int]]:
    """The tokens behind each sentinel of a target, whose sentinels are in order."""
    found: list[list[int]] = []
    for token in target:
        if token in SENTINELS:
            assert token == SENTINELS[len(found)]
            found.append([])
        else:
            found[-1].append(token)
    return found


def test_a_text_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight tokens three are dropped, in spans of one and two; the smallest draw cuts."""
    kept = [0.0, 0.9, 0.1, 0.8, 0.7, 0.0, 0.0, 0.0]  # five tokens: 2 + 3
    dropped = [0.0, 0.2, 0.6, 0.0, 0.0, 0.0, 0.0, 0.0]  # three tokens: 1 + 2
    chances = iter([np.array([kept]), np.array([dropped])])
    monkeypatch.setattr(draws, "uniform", lambda stream, places: next(chances))
    monkeypatch.setattr(span_corruption, "text_length", lambda max_len, options: 8)
    _, made = corrupt([8], Options(0.375, 1.5), 8)
    first, second = SENTINELS[:2]
    assert row(made, "source", 0) == [100, 101, first, 103, 104, 105, second, EOS]
    assert row(made, "tokens", 0) == [first, 102, second, 106, 107, EOS]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_source_and_target_give_the_text_back(options: Options) -> None:
    max_len = 40
    most = text_length(max_len, options)
    lengths = [most, most, *range(1, most), 0]
    before, made = corrupt(lengths, options, max_len)
    for i, length in enumerate(lengths[:-1]):
        source, target = row(made, "source", i), row(made, "tokens", i)
        assert source.pop() == target.pop() == EOS
        dropped = spans(target)
        num_dropped, num_spans = (int(x) for x in counts(np.array(length), options))
        assert len(dropped) == num_spans and sum(map(len, dropped)) == num_dropped
        assert all(dropped) and (source[0] == 100 or length == 1)
        text = []
        for token in source:
            text += dropped.pop(0) if token in SENTINELS else [token]
        assert not dropped and text == row(before, "tokens", i)
    assert len(row(made, "source", 0)) <= max_len
    assert row(made, "source", len(lengths) - 1) == row(made, "tokens", len(lengths) - 1) == []
    assert made["tokens"].shape[1] == made["lengths"][0] == target_length(max_len, options)
    assert (made["num_bytes"] == before["num_bytes"]).all()


def test_lengths_are_the_published_ones() -> None:
    """Of the published pre-training, and by the formula of `compute_input_and_target_lengths`."""
    assert (text_length(512, Options()), target_length(512, Options())) == (568, 114)
    for options in OPTIONS:

        def published(num_tokens: int, options: Options = options) -> tuple[int, int]:
            noise = max(round(num_tokens * options.noise_rate), 1)
            num_spans = max(round(noise / options.mean_span), 1)
            return num_tokens - noise + num_spans + 1, noise + num_spans + 1

        for max_len in (64, 128, 512):
            length = max_len
            while published(length + 1)[0] <= max_len:
                length += 1
            if published(length)[0] <= max_len and options.noise_rate < 0.6:
                found = text_length(max_len, options), target_length(max_len, options)
                assert found == (length, published(length)[1])


def test_all_ways_to_cut_are_equally_likely() -> None:
    """Three parts of six tokens: ten ways."""
    chances = draws.uniform(7, np.arange(6 * 20_000).reshape(-1, 6))
    parts = span_corruption.cut(chances, np.full(20_000, 6), np.full(20_000, 3))
    found = collections.Counter(map(tuple, parts.tolist()))
    assert len(found) == 10 and all(sum(way) == 6 and min(way) > 0 for way in found)
    assert all(abs(count - 2000) < 5 * 2000**0.5 for count in found.values())


def test_spans_change_with_the_epoch() -> None:
    lengths = [60] * 8
    first, again, later = (corrupt(lengths, Options(), 64, n)[1]["source"] for n in (0, 0, 1))
    assert (first == again).all() and (first != later).any(axis=1).all()
    assert len({tuple(x) for x in first.tolist()}) == 8


def test_too_few_sentinels_are_refused() -> None:
    none = np.zeros(0, np.int32)
    documents = Documents(none, np.zeros(1, np.int64), none, np.zeros(2, np.int64))
    few = Specials(end=(EOS,), ids={"eos": EOS, "sentinel_0": 3})
    none_there = Specials(end=(EOS,), ids={"eos": EOS})
    for specials, how in ((few, "mean_span"), (none_there, "--init")):
        with pytest.raises(ValueError, match=f"7 spans of a text of 141 .*{how}"):
            span_corruption.build(documents, specials=specials, max_len=128, seed=0)
    span_corruption.build(documents, specials=SPECIALS, max_len=128, seed=0)
