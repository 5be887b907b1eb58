"""Estimates over seeds against scipy's tests, and the correction of several claims."""

import math

import numpy as np
import pytest
import scipy.stats
from planted import two_sided

from scalelab.lab.compare import estimates


def contrast(parts, others=(), groups=()) -> estimates.Estimate:
    """A contrast over the seeds that its rows share; without groups, each row is one."""
    rows = [*(numbers for _, numbers in parts), *others]
    names = groups or [str(place) for place in range(len(rows))]
    seeds = sorted(set.intersection(*(set(numbers) for _, numbers in parts)))
    table = list(zip(names, rows, strict=True))
    return estimates.contrast_numbers([weight for weight, _ in parts], table, seeds)


def test_a_contrast_is_a_paired_t_test_over_seeds() -> None:
    a, b = {0: 3.0, 1: 3.2, 2: 3.7}, {2: 5.8, 1: 5.3, 0: 5.0, 7: 9.0}
    found = contrast([(-1.0, a), (1.0, b)])
    theirs = scipy.stats.ttest_rel([5.0, 5.3, 5.8], [3.0, 3.2, 3.7])
    interval = theirs.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.degrees == theirs.df
    assert two_sided(found) == pytest.approx(theirs.pvalue, abs=0.002)
    assert np.quantile(found.resamples, 0.975) == pytest.approx(interval.high, rel=0.01)


def test_what_a_seed_does_to_all_rows_stays_in_the_interval() -> None:
    """Four rows that share three seeds' shifts vary as one row does, not half as much."""
    shifts = {0: -0.3, 1: 0.1, 2: 0.2}
    rows = [{s: level + x for s, x in shifts.items()} for level in (1.0, 2.0, 3.0, 4.0)]
    found = contrast([(0.25, row) for row in rows])
    error = scipy.stats.sem(list(shifts.values()))
    assert found.standard_error == pytest.approx(error)


def test_a_single_seed_has_a_value_alone() -> None:
    found = contrast([(-1.0, {0: 3.0}), (1.0, {0: 5.0, 1: 5.5})])
    assert found.value == 2.0 and math.isnan(found.low)
    single = estimates.student([3.0])
    assert single.value == 3.0 and math.isnan(single.low) and two_sided(single) == 1.0


def test_equal_numbers_have_no_error() -> None:
    found = estimates.student([2.0, 2.0])
    assert found.value == 2.0 and np.isnan([found.low, found.high]).all()
    assert two_sided(found) < 0.01


def test_the_smallest_detectable_difference() -> None:
    """z_0.975 + z_0.8 = 1.95996 + 0.84162; the power of a t-test of five against five seeds."""
    normal = estimates.Estimate(0.0, 0.0, 0.0, 2.0, math.inf, np.zeros(1))
    assert normal.detectable == pytest.approx(2 * 2.80158, abs=1e-4)
    error = math.sqrt(2 / 5)
    difference = estimates.Estimate(0.0, 0.0, 0.0, error, 8, np.zeros(1)).detectable
    power = scipy.stats.nct.sf(scipy.stats.t.ppf(0.975, 8), 8, difference / error)
    assert power == pytest.approx(0.8, abs=0.02)


def test_holm() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; none below the one before it."""
    np.testing.assert_allclose(
        estimates.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02], atol=1e-12
    )
    assert estimates.holm([0.6, 0.7]) == [1.0, 1.0] and estimates.holm([]) == []
    p = np.random.default_rng(0).random((2000, 9))  # nine claims, all wrong
    assert (p.min(axis=1) < 0.05).mean() > 0.3
    assert 0.03 < np.mean([min(estimates.holm(row)) < 0.05 for row in p]) < 0.065


# --- Seeds of all rows ----------------------------------------------------------------------------


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer quantiles: simulations need many intervals."""
    monkeypatch.setattr(estimates, "GRID", 500)
    monkeypatch.setattr(estimates, "NUM_QUANTILES", 20)


@pytest.mark.parametrize("names", ["abcde", "aabbbb", "aaaa"])
def test_the_pooled_variance_is_that_of_a_least_squares_fit(names: str) -> None:
    """A linear model with a column for each row and each group's seed, whose residuals are the
    rest; each row is a group of its own, or the groups are two systems, or one."""
    num_seeds = 3
    table = np.random.default_rng(0).normal(size=(len(names), num_seeds))
    cells = [(r, s) for r in range(len(names)) for s in range(num_seeds)]
    columns = sorted({(name, s) for name in names for s in range(num_seeds)})
    if len(set(names)) == len(names):
        columns = [("", s) for s in range(num_seeds)]
    design = [[r == x for x in range(len(names))]
              + [names[r] in (name or names) and s == y for name, y in columns]
              for r, s in cells]  # fmt: skip
    design = np.array(design, float)
    solution, _, rank, _ = np.linalg.lstsq(design, table.ravel())
    degrees = len(cells) - rank
    rest = ((table.ravel() - design @ solution) ** 2).sum() / degrees
    rows = list(zip(names, table, strict=True))
    terms = estimates.pooled_variances(rows, [(names[-2], 1.0), (names[-1], -1.0)])
    assert sum(x for x, _ in terms) == pytest.approx(rest * 2 / num_seeds)
    assert terms[-1][1] == degrees
    # A row alone: its variance within the rows of all groups, over the number of seeds.
    within = table.var(axis=1, ddof=1)
    within = np.mean([np.mean(within[[n == name for n in names]]) for name in set(names)])
    found = sum(x for x, _ in estimates.pooled_variances(rows, [(names[0], 1.0)]))
    if len(set(names)) != 2:  # groups of two sizes share the variance of the rest
        assert found == pytest.approx(within / num_seeds)


def test_what_is_not_pooled() -> None:
    """Means over shapes, and rows beside which no other row varies, have their own seeds alone."""
    rows = [dict(enumerate(x)) for x in np.random.default_rng(1).normal(size=(5, 3))]
    constant = dict.fromkeys(range(3), 0.5)
    for weights, others in [([0.5, 0.5, -0.5, -0.5], rows[4:]), ([1.0, -1.0], [constant])]:
        parts = list(zip(weights, rows, strict=False))
        alone = contrast(parts)
        assert contrast(parts, others=others).degrees == alone.degrees == 2
    pooled = contrast([(1.0, rows[0]), (-1.0, rows[1])], others=rows[2:])
    assert pooled.degrees == 8
    # Seeds that are equal by chance still vary.
    equal = contrast([(1.0, constant)], others=rows)
    assert equal.high - equal.low > 0.5


@pytest.mark.parametrize(("spread", "least"), [(1, 0.94), (5, 0.8)])
@pytest.mark.usefixtures("coarse")
def test_two_seeds_of_five_rows_hold_the_truth(spread: float, least: float) -> None:
    """Five rows, of which one may vary more than the model says: docs/statistics.md has both."""
    rng, covered, widths = np.random.default_rng(2), [], []
    for _ in range(600):
        table = rng.normal(size=(5, 2)) * [[spread], [1], [1], [1], [1]] + rng.normal(size=2)
        a, b, *others = [dict(enumerate(row)) for row in table]
        parts = [(1.0, a), (-1.0, b)]
        found = contrast(parts, others=others)
        covered.append(found.low <= 0 <= found.high)
        widths.append((found.high - found.low) / np.ptp(np.subtract(*table[:2])))
    assert least <= np.mean(covered) <= 0.99
    # The rows alone: Student's t with one degree, 12.7, instead of four, 2.8.
    alone = contrast(parts)
    assert np.median(widths) < (alone.high - alone.low) / np.ptp(np.subtract(*table[:2]))


@pytest.mark.parametrize("effect", [1, 3])
@pytest.mark.parametrize("names", ["aaaaabbbbb", "aaaaabbc", "aabcdefg"])
@pytest.mark.usefixtures("coarse")
def test_a_seed_may_move_all_shapes_of_a_system_alike(effect: float, names: str) -> None:
    """Differences of two shapes and of two systems hold the truth: docs/statistics.md."""
    rng, hits = np.random.default_rng(3), list[list[bool]]()
    for _ in range(300):
        draws = {name: effect * rng.normal(size=2) for name in sorted(set(names))}
        table = [dict(enumerate(draws[name] + rng.normal(size=2))) for name in names]
        hits.append([])
        for other in (1, 5):
            order = [0, other, *(i for i in range(1, len(names)) if i != other)]
            a, b, *others = [table[i] for i in order]
            found = contrast([(1.0, a), (-1.0, b)], others=others, groups=[names[i] for i in order])
            hits[-1].append(found.low <= 0 <= found.high)
    shapes, systems = np.mean(hits, axis=0)
    assert shapes >= 0.93 and systems >= 0.93
