"""The addressed random numbers against published values and their own definitions."""

import numpy as np
from scipy import stats

from scalelab.formats import draws


def test_bits_are_splitmix64():
    # The sequence from seed 0 of Vigna's splitmix64.c, as quoted in many ports' test suites.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert draws.bits(0, np.arange(4)).tolist() == expected


def test_key_tells_parts_and_order_apart():
    parts = [(), (0,), (0, 0), (1,), (1, 0), (0, 1), (-1,), (2**64 - 1,), (2**64,), (1 << 70,)]
    assert len({draws.key(*p) for p in parts}) == len(parts)
    assert draws.key(3, 4) == draws.key(3, 4)


def test_uniform_and_below_are_uniform():
    values = draws.uniform(draws.key(1), np.arange(50_000))
    assert 0 <= values.min() and values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    counts = np.bincount(draws.below(draws.key(2), np.arange(50_000), 7), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-3
