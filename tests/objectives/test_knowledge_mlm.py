"""Knowledge masking: whole units, the budget, one action a unit, levels; MLM as a special case."""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake import restored
from scipy import stats
from test_mlm import SPECIAL, SPECIAL_IDS, V
from test_span_mlm import BATCH, RATE, SIZE, T

from scalelab import objectives
from scalelab.formats import ENTITY, PHRASE, WORD
from scalelab.objectives import Setting, knowledge_mlm, mlm

SETTING = Setting(V, SPECIAL_IDS, RATE)
UNITS = np.random.default_rng(1).choice([0, 0, 0, 0, WORD, PHRASE, ENTITY, 7], (SIZE, T))
LEVELS = {WORD: (0.0, 0.0), WORD | PHRASE: (1.0, 0.0), WORD | ENTITY: (0.0, 1.0)}
Prepared = dict[str, np.ndarray]


@functools.cache
def prepare(phrase: float, entity: float) -> Prepared:
    objective = knowledge_mlm.make(SETTING, knowledge_mlm.Options(phrase, entity))
    given = BATCH | {"units": UNITS}
    return jax.device_get(jax.jit(objective.prepare)(given, jax.random.key(0)))


@functools.cache
def independent() -> Prepared:
    """The wrong variant: it masks tokens one by one."""
    return jax.device_get(jax.jit(mlm.make(SETTING).prepare)(BATCH, jax.random.key(0)))


def units_of(row: int, bits: int) -> list[list[int]]:
    """The units of a text as lists of places; a special token parts them and is none."""
    tokens, found = BATCH["tokens"][row, : BATCH["lengths"][row]].tolist(), []
    for place, token in enumerate(tokens):
        if token in SPECIAL:
            continue
        if UNITS[row, place] & bits and found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def hidden(prepared: Prepared, row: int) -> list[int]:
    return prepared["mlm_positions"][row][prepared["mlm_weights"][row] > 0].tolist()


def num_partly_masked(prepared: Prepared, bits: int) -> int:
    found = 0
    for row in range(SIZE):
        places, masked = {*hidden(prepared, row)}, prepared["tokens"][row] == SPECIAL_IDS["mask"]
        for unit in units_of(row, bits):
            found += 0 < len(places & {*unit}) < len(unit) or len({*masked[unit]}) > 1
    return found


@pytest.mark.parametrize("bits", LEVELS)
def test_no_unit_is_partly_masked_and_the_budget_is_used(bits: int) -> None:
    prepared, used, budgets = prepare(*LEVELS[bits]), 0, 0
    assert num_partly_masked(prepared, bits) == 0
    assert num_partly_masked(independent(), bits) > SIZE
    for row in range(SIZE):
        units, places = units_of(row, bits), hidden(prepared, row)
        budget = math.ceil(Fraction(str(RATE)) * sum(map(len, units)))
        left = budget - len(places)
        assert left >= 0 and len({*places}) == len(places)
        assert not any(len(u) <= left and u[0] not in places for u in units)
        used, budgets = used + len(places), budgets + budget
    assert used > 0.98 * budgets


@pytest.mark.parametrize("bits", LEVELS)
def test_the_rest_of_the_text_is_untouched(bits: int) -> None:
    np.testing.assert_array_equal(restored(prepare(*LEVELS[bits])), BATCH["tokens"])


def test_units_of_one_token_are_masked_as_by_mlm() -> None:
    """The same draws: positions, targets and tokens are those of `mlm`, bit for bit."""
    objective = knowledge_mlm.make(SETTING, knowledge_mlm.Options())
    made = jax.device_get(
        jax.jit(objective.prepare)(BATCH | {"units": 0 * UNITS}, jax.random.key(0))
    )
    for name in knowledge_mlm.ARRAYS:
        np.testing.assert_array_equal(made[name], independent()[name])


def test_units_are_drawn_alike_and_replaced_as_tokens_are_by_mlm() -> None:
    """The first of 60 units of one to three tokens."""
    sizes = np.tile([1, 2, 3], 20)
    joined = np.ones(120, bool)
    joined[np.cumsum(sizes) - sizes] = False
    objective = knowledge_mlm.make(SETTING, knowledge_mlm.Options())
    mask: Callable[..., Any] = functools.partial(
        objective._mask_example, jnp.full(120, 10), jnp.asarray(joined), jnp.int32(120)
    )
    made = jax.jit(jax.vmap(mask))(jax.random.split(jax.random.key(1), 20_000))
    tokens, positions = np.asarray(made[0]), np.asarray(made[1])
    first = (np.cumsum(~joined) - 1)[positions[:, 0]]
    assert stats.chisquare(np.bincount(first, minlength=60)).pvalue > 1e-3
    own = np.take_along_axis(tokens, positions[:, :1], 1)[:, 0]
    counts = np.array([(own == SPECIAL_IDS["mask"]).sum(), (own == 10).sum()])
    counts = np.append(counts, len(own) - counts.sum())
    kept = 0.1 + 0.1 / (V - len(SPECIAL))  # a random token may be the same
    assert stats.chisquare(counts, len(own) * np.array([0.8, kept, 0.2 - kept])).pvalue > 1e-3


def test_examples_draw_their_level() -> None:
    """Each row is that of one level; rows that are alike at two levels tell nothing."""
    mixed, pure = prepare(0.5, 0.2), [prepare(*rates)["mlm_positions"] for rates in LEVELS.values()]
    same = np.stack([(mixed["mlm_positions"] == rows).all(1) for rows in pure])
    assert same.any(0).all()
    differ = [
        (a != b).any(1) for a, b in ((pure[0], pure[1]), (pure[1], pure[2]), (pure[0], pure[2]))
    ]
    counts = same[:, np.all(differ, axis=0)].sum(1)
    assert counts.sum() > 0.5 * SIZE
    assert stats.chisquare(counts, counts.sum() * np.array([0.3, 0.5, 0.2])).pvalue > 1e-3


def test_what_does_not_go_together() -> None:
    with pytest.raises(ValueError, match="phrase_rate"):
        knowledge_mlm.make(SETTING, knowledge_mlm.Options(0.7, 0.7))
    terms = objectives.make({"mlm": 1.0, "knowledge_mlm": 1.0}, SETTING)
    given = {k: jnp.array(x) for k, x in (BATCH | {"units": UNITS}).items()}
    with pytest.raises(ValueError, match="knowledge_mlm and mlm"):
        objectives.prepare(given, terms, jax.random.key(0))
