"""Contrasts of numbers of pre-trainings, against scipy's tests."""

import math

import numpy as np
import pytest
import scipy.stats

from scalelab.lab.compare import contrasts


def test_one_block_of_two_is_welchs_test() -> None:
    a, b = [3.0, 3.2, 3.7], [5.0, 5.3]
    found = contrasts.of_numbers([[(-1.0, a), (1.0, b)]])
    theirs = scipy.stats.ttest_ind(b, a, equal_var=False)
    interval = theirs.confidence_interval()
    estimate = found.estimate
    assert found.why == contrasts.SEEDS
    assert (found.value, estimate.low, estimate.high) == pytest.approx(
        (np.mean(b) - np.mean(a), interval.low, interval.high)
    )
    assert estimate.degrees == pytest.approx(theirs.df)
    assert estimate.p_value == pytest.approx(theirs.pvalue, abs=0.002)
    assert np.quantile(estimate.resamples, 0.975) == pytest.approx(interval.high, rel=0.01)


def test_single_numbers_leave_the_blocks() -> None:
    a, b = [3.0, 4.0, 6.0], [3.5, 4.2, 7.1]
    found = contrasts.of_numbers([[(-1.0, [x]), (1.0, [y])] for x, y in zip(a, b, strict=True)])
    interval = scipy.stats.ttest_rel(b, a).confidence_interval()
    assert found.why == contrasts.BLOCKS
    assert (found.estimate.low, found.estimate.high) == pytest.approx((interval.low, interval.high))


def test_a_single_number_has_a_value_alone() -> None:
    found = contrasts.of_numbers([[(-1.0, [3.0]), (1.0, [5.0, 5.5])]])
    assert (found.value, found.estimate, found.why) == (2.25, None, contrasts.ALONE)
    alone = contrasts.student([(1.0, [3.0])])
    assert alone.value == 3.0 and math.isnan(alone.low) and alone.p_value == 1.0


def test_equal_numbers_have_no_error() -> None:
    found = contrasts.student([(1.0, [2.0, 2.0]), (1.0, [1.0, 1.0])])
    assert (found.low, found.value, found.high) == (3.0, 3.0, 3.0)
    assert found.p_value < 0.01
