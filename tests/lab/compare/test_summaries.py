"""Summaries, the smallest detectable difference, Holm's correction."""

import math

import numpy as np
import pytest
import scipy.stats

from scalelab.lab.compare import summaries


def test_a_summary_by_hand() -> None:
    """1, 2, 6: median 2, mean 3, squared deviations 4 + 1 + 9 over 3 - 1."""
    found = summaries.summarise([1.0, 6.0, 2.0], num_failed=2, num_degenerate=1)
    assert found == summaries.Summary(3, 2.0, 3.0, math.sqrt(7), 2, 1)


def test_one_seed_has_no_spread_and_none_no_mean() -> None:
    one, none = summaries.summarise([0.5]), summaries.summarise([], num_failed=3)
    assert (one.num, one.mean, one.median) == (1, 0.5, 0.5)
    assert math.isnan(one.sd)
    assert none.num == 0 and none.num_failed == 3
    assert math.isnan(none.mean) and math.isnan(none.median)


def test_detectable_is_2_80_standard_errors() -> None:
    """z_0.975 + z_0.8 = 1.95996 + 0.84162."""
    assert summaries.smallest_detectable(2.0) == pytest.approx(2 * 2.80158, abs=1e-4)
    assert summaries.smallest_detectable(0.0) == 0
    few = summaries.smallest_detectable(1.0, 4)
    assert few == pytest.approx(2.77645 + 0.94096, abs=1e-4)  # Student's table, 4 degrees


def test_detectable_has_the_power_of_a_t_test() -> None:
    """Five against five seeds with sd 1: the t-test's power at that difference, from noncentral t.

    The sum of two quantiles of the central t is an approximation, good to some percent.
    """
    error = math.sqrt(2 / 5)
    difference = summaries.smallest_detectable(error, 8)
    beyond = scipy.stats.t.ppf(0.975, 8)
    power = scipy.stats.nct.sf(beyond, 8, difference / error)
    assert power == pytest.approx(0.8, abs=0.02)


def test_holm_by_hand() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; none below the one before it."""
    np.testing.assert_allclose(
        summaries.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02], atol=1e-12
    )
    assert summaries.holm([0.6, 0.7]) == [1.0, 1.0]
    assert summaries.holm([0.2]) == [0.2]
    assert summaries.holm([]) == []


def test_holm_keeps_the_familywise_error() -> None:
    """Nine claims, all wrong: uncorrected some stand in 37% of cases, corrected in 5% at most."""
    p = np.random.default_rng(0).random((2000, 9))
    assert (p.min(axis=1) < 0.05).mean() > 0.3
    wrong = np.mean([min(summaries.holm(row)) < 0.05 for row in p])
    assert 0.03 < wrong < 0.065
