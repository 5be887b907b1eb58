"""The addressed random numbers against published values and their own definitions."""

import numpy as np
from scipy import stats

from scalelab.formats import draws


def test_bits_are_splitmix64():
    # The sequence from seed 0 of Vigna's splitmix64.c, as quoted in many ports' test suites.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert draws.bits(0, np.arange(4)).tolist() == expected


def test_bits_follow_the_definition_in_python_integers():
    mask = 2**64 - 1

    def slow(stream, index):
        z = (stream + (index + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    index = np.array([0, 1, 77, 2**40 + 3])
    for stream in (0, 5, 2**64 - 1):
        assert draws.bits(stream, index).tolist() == [slow(stream, int(i)) for i in index]
        assert int(draws.bits(stream, 77)) == slow(stream, 77)


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


def test_streams_are_independent():
    a, b = (draws.uniform(draws.key(0, k), np.arange(50_000)) for k in (0, 1))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.02
