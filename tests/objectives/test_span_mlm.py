"""Spans: their lengths and places, whole words, the budget, one action a span."""

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake import restored
from scipy import stats
from test_mlm import ORDINARY, SPECIAL, SPECIAL_IDS, V

from scalelab import objectives
from scalelab.config.fields import fill
from scalelab.objectives import Setting, span_mlm

T, SIZE, RATE = 120, 400, 0.15
# Two of five pieces go on with a word; one more joins the next piece, as bpe's do.
JOINS = np.where(np.arange(V) % 5 < 2, 1, 2 * (np.arange(V) == 13)).astype(np.uint8)


def make(**options: Any) -> span_mlm.SpanMLM:
    setting = Setting(V, SPECIAL_IDS, RATE, joins=JOINS.tobytes())
    return span_mlm.make(setting, span_mlm.Options(**options))


def make_batch() -> dict[str, np.ndarray]:
    """Texts of any length with special tokens inside, framed by special tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, T + 1, SIZE).astype(np.int32)
    tokens = rng.choice(ORDINARY, (SIZE, T)).astype(np.int32)
    tokens = np.where(rng.uniform(size=(SIZE, T)) < 0.02, SPECIAL_IDS["sep"], tokens)
    tokens[:, 0] = SPECIAL_IDS["cls"]
    tokens[np.arange(T) == lengths[:, None] - 1] = SPECIAL_IDS["sep"]
    tokens[np.arange(T) >= lengths[:, None]] = SPECIAL_IDS["pad"]
    return {"tokens": tokens, "lengths": lengths, "examples": np.arange(SIZE, dtype=np.int32)}


BATCH = make_batch()


@functools.cache
def prepare(**options: Any) -> dict[str, np.ndarray]:
    return jax.device_get(jax.jit(make(**options).prepare)(BATCH, jax.random.key(0)))


def words_of(row: int) -> list[range]:
    """The words of a text, of whole words; a special token parts them and is none."""
    tokens, found = BATCH["tokens"][row, : BATCH["lengths"][row]].tolist(), []
    for place, token in enumerate(tokens):
        if token in SPECIAL:
            continue
        joined = JOINS[token] == 1 or JOINS[tokens[place - 1]] == 2
        if joined and tokens[place - 1] not in SPECIAL:
            found[-1] = range(found[-1].start, place + 1)
        else:
            found.append(range(place, place + 1))
    return found


def spans_of(prepared: dict[str, np.ndarray], row: int) -> list[range]:
    """The runs of hidden places of a text."""
    chosen = prepared["mlm_weights"][row] > 0
    lefts, rights = prepared["span_lefts"][row], prepared["span_rights"][row]
    found = sorted({(a + 1, b) for a, b in zip(lefts[chosen], rights[chosen], strict=True)})
    assert [p for a, b in found for p in range(a, b)] == prepared["mlm_positions"][row][
        chosen
    ].tolist()
    for name in span_mlm.ARRAYS[1:]:
        assert not prepared[name][row][~chosen].any()
    return [range(a, b) for a, b in found]


@pytest.mark.parametrize("whole", [True, False])
def test_spans_are_whole_words_apart_and_fill_the_budget(whole: bool) -> None:
    prepared, cuts, hidden, budgets = prepare(whole_words=whole), 0, 0, 0
    for row in range(SIZE):
        spans, words = spans_of(prepared, row), words_of(row)
        edges = {s.start for s in words} | {s.stop for s in words}
        cuts += sum(not {span.start, span.stop} <= edges for span in spans)
        places = {place for span in spans for place in span}
        tokens = BATCH["tokens"][row]
        assert not SPECIAL & set(tokens[[*places]].tolist())
        assert all({s.start - 1, s.stop}.isdisjoint(places) for s in spans)  # what sbo reads
        units = words if whole else [range(p, p + 1) for word in words for p in word]
        budget = math.ceil(Fraction(str(RATE)) * sum(map(len, words)))
        near = places | {p + 1 for p in places} | {p - 1 for p in places}
        fitting = [u for u in units if near.isdisjoint(u) and len(u) <= budget - len(places)]
        assert len(places) <= budget and (not fitting or len(places) == budget)
        assert whole or len(places) == budget or len(words) < 3
        hidden, budgets = hidden + len(places), budgets + budget
    assert cuts == 0 if whole else cuts > SIZE  # the check finds words that are cut
    assert hidden > 0.97 * budgets


def test_the_rest_of_the_text_is_untouched() -> None:
    np.testing.assert_array_equal(restored(prepare()), BATCH["tokens"])


def first_spans(objective: span_mlm.SpanMLM, budget: int = 10) -> np.ndarray:
    """Begin and end of the first span of 20,000 rows of 60 words of a token: no budget cuts it."""
    free = jnp.ones(60, bool).at[jnp.array([0, 59])].set(False)
    keys = jax.random.split(jax.random.key(3), 20_000)
    place = jax.jit(jax.vmap(lambda key: objective._place(key, free, jnp.arange(61), budget, 10)))
    return np.asarray(place(keys)[1])[:, 0] + [1, 0]


def clipped(p: float) -> np.ndarray:
    shares = stats.geom.pmf(np.arange(1, 11), p)
    return shares / shares.sum()


def test_lengths_are_geometric_and_begins_uniform() -> None:
    begins, ends = first_spans(make()).T
    counts = np.bincount(ends - begins, minlength=11)[1:]
    assert stats.chisquare(counts, counts.sum() * clipped(0.2)).pvalue > 1e-3
    piled = np.append(stats.geom.pmf(np.arange(1, 10), 0.2), stats.geom.sf(9, 0.2))
    for wrong in (clipped(0.25), np.full(10, 0.1), piled):
        assert stats.chisquare(counts, counts.sum() * wrong).pvalue < 1e-9
    assert (ends - begins).mean() == pytest.approx(3.8, abs=0.06)  # Joshi et al. 2020, 3.1
    for length in (1, 4):
        found = np.bincount(begins[ends - begins == length], minlength=60)[1 : 60 - length]
        assert stats.chisquare(found).pvalue > 1e-3
    ones = first_spans(make(span_p=1.0))
    assert (ones[:, 1] - ones[:, 0] == 1).all()
    assert (np.diff(first_spans(make(max_span=3))) <= 3).all()


def test_a_span_has_one_action() -> None:
    prepared, counts, shuffled = prepare(), np.zeros(3), 0
    for row in range(SIZE):
        new, old, spans = prepared["tokens"][row], BATCH["tokens"][row], spans_of(prepared, row)
        masked, same = new == SPECIAL_IDS["mask"], new == old
        other, places = masked.copy(), [place for span in spans for place in span]
        other[places] = np.random.default_rng(row).permutation(masked[places])
        for span in spans:
            assert masked[span].all() or not masked[span].any()
            shuffled += 0 < other[span].sum() < len(span)
            if len(span) > 2:  # no random span of three equals the text
                counts += [masked[span].all(), same[span].all(), not (masked | same)[span].all()]
    assert stats.chisquare(counts, counts.sum() * np.array([0.8, 0.1, 0.1])).pvalue > 1e-3
    assert shuffled > 100  # the check finds spans of two actions


def test_what_does_not_go_together() -> None:
    setting = Setting(V, SPECIAL_IDS, RATE)
    terms = objectives.make({"mlm": 1.0, "span_mlm": 1.0}, setting)
    with pytest.raises(ValueError, match="span_mlm and mlm"):
        objectives.prepare({k: jnp.array(x) for k, x in BATCH.items()}, terms, jax.random.key(0))
    with pytest.raises(ValueError, match="sbo.* needs 'span_mlm'"):
        objectives.make({"mlm": 1.0, "sbo": 1.0}, setting)
    for wrong in ({"span_p": 0.0}, {"max_span": 0}):
        with pytest.raises(ValueError, match=[*wrong][0]):
            fill(span_mlm.Options, dataclasses.asdict(span_mlm.Options()) | wrong)
