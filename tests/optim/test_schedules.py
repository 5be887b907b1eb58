"""Schedules, by values worked out by hand."""

import math

import pytest

from scalelab.optim import adamw


@pytest.mark.parametrize(("name", "values"), [
    # warm-up to 10, end at 50
    ("linear", {0: 0, 5: 0.5, 10: 1, 20: 0.75, 30: 0.5, 49: 0.025, 50: 0, 60: 0}),
    ("cosine", {0: 0, 5: 0.5, 10: 1, 20: (2 + math.sqrt(2)) / 4, 30: 0.5, 50: 0, 60: 0}),
    ("constant", {0: 0, 5: 0.5, 10: 1, 30: 1, 50: 1, 60: 1}),
])  # fmt: skip
def test_by_hand(name: str, values: dict[int, float]) -> None:
    schedule = adamw.SCHEDULES[name]
    for elapsed, factor in values.items():
        assert schedule(elapsed, 10, 50) == pytest.approx(factor, abs=1e-12), elapsed


@pytest.mark.parametrize("name", sorted(adamw.SCHEDULES))
@pytest.mark.parametrize("unit", [1, 8192, 3.7e12, 0.04], ids=["steps", "tokens", "flops", "secs"])
def test_a_schedule_cannot_tell_its_clock(name: str, unit: float) -> None:
    """At the same share of the budget the factor is the same, whatever is counted."""
    schedule = adamw.SCHEDULES[name]
    for t in range(0, 120, 7):
        ours = schedule(t * unit, 10 * unit, 100 * unit)
        assert ours == pytest.approx(schedule(t, 10, 100), abs=1e-12)


@pytest.mark.parametrize("name", sorted(adamw.SCHEDULES))
def test_factors_lie_between_0_and_1_and_never_jump(name: str) -> None:
    schedule = adamw.SCHEDULES[name]
    assert schedule(0, 0, 100) == 1.0  # without warm-up it starts at the top
    factors = [schedule(t, 100, 1000) for t in range(1200)]
    assert all(0 <= f <= 1 for f in factors)
    assert max(abs(a - b) for a, b in zip(factors, factors[1:], strict=False)) <= 0.0101
