"""The Multi-Bootstrap against closed forms, scipy, a plain loop, and planted truths."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from planted import two_sided

from scalelab.lab.compare import bootstrap, claims
from scalelab.tasks import metrics

RIGHT = np.ones(40, int)  # a gold that says: predictions are whether each example is right


def outcomes(share_right, n: int = 40) -> np.ndarray:
    """Predictions [..., n] of which a share is right, always the same examples."""
    return (np.arange(n) < np.round(np.asarray(share_right)[..., None] * n)).astype(int)


def all_or_nothing(right) -> np.ndarray:
    """Predictions [P, F, 40] of runs that have every example right or none: no chance in them."""
    return outcomes(np.asarray(right, float))


def score(gold, predicted, metric="accuracy", **fields) -> bootstrap.Estimate:
    return bootstrap.mean_score([(gold, [(1.0, predicted)], metric)], **fields)


def compare(gold, a, b, metric="accuracy", **fields) -> bootstrap.Estimate:
    return bootstrap.mean_score([(gold, [(-1.0, a), (1.0, b)], metric)], **fields)


def plain(gold, predicted, metric="accuracy", **fields):
    return score(gold, predicted, metric, widen=False, **fields)


# --- Closed forms ---------------------------------------------------------------------------------


def test_examples_alone() -> None:
    """One run: the error of a share is sqrt(p (1 - p) / n)."""
    found = plain(np.ones(400, int), outcomes([[0.7]], 400), num_resamples=4000)
    error = math.sqrt(0.7 * 0.3 / 400)
    assert found.value == pytest.approx(0.7, abs=1e-12)
    assert found.standard_error == pytest.approx(error, rel=0.04)
    assert found.low == pytest.approx(0.7 - 1.96 * error, abs=0.004)
    assert found.high == pytest.approx(0.7 + 1.96 * error, abs=0.004)


def test_nested_seeds_alone() -> None:
    """Each of P draws is a pre-training seed, then F draws among its own fine-tuning seeds."""
    right = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
    variance = (right.mean(axis=1).var() + right.var(axis=1).mean() / 4) / 3
    found = plain(RIGHT, all_or_nothing(right), num_resamples=6000)
    assert found.value == pytest.approx(0.5)
    assert found.standard_error == pytest.approx(math.sqrt(variance), rel=0.04)


def test_a_proportion_of_one_run_has_wilsons_interval() -> None:
    """At every score, so that more right answers move both ends up; several runs bootstrap."""
    gold = np.ones(60, int)
    right = [np.arange(60) < k for k in range(61)]
    found = [score(gold, x[None, None].astype(int)) for x in right]
    for k, own in enumerate(found):
        theirs = scipy.stats.binomtest(k, 60).proportion_ci(method="wilson")
        assert (own.low, own.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert all(a.low < b.low and a.high < b.high for a, b in itertools.pairwise(found[1:60]))
    twice = score(gold, np.stack([right[50], right[52]])[None].astype(int))
    assert twice.high - twice.low > found[51].high - found[51].low


@pytest.mark.parametrize("axis", ["pretrain", "finetune"])
def test_one_factor_is_scipys_bootstrap(axis: str) -> None:
    right = np.random.default_rng(0).random(20) < 0.7
    shape = (20, 1) if axis == "pretrain" else (1, 20)
    found = plain(RIGHT, all_or_nothing(right.reshape(shape)), num_resamples=6000)
    theirs = scipy.stats.bootstrap(
        (right.astype(float),), np.mean, n_resamples=6000, method="percentile", rng=1
    )
    assert found.standard_error == pytest.approx(theirs.standard_error, rel=0.05)
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.051)  # a seed's worth
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.051)


def test_a_loop_over_resamples_finds_the_same() -> None:
    """F1, whose resamples are no mean of the examples', drawn one by one, examples not merged."""
    rng = np.random.default_rng(1)
    gold = rng.integers(0, 2, 60)
    predicted = np.where(rng.random((3, 2, 60)) < 0.7, gold, 1 - gold)
    looped = []
    for _ in range(2000):
        at = rng.integers(60, size=60)
        draws = []
        for seed in rng.integers(3, size=3):
            for run in rng.integers(2, size=2):
                draws.append(metrics.f1(gold[at], predicted[seed, run, at]))
        looped.append(np.mean(draws))
    found = plain(gold, predicted, "f1", num_resamples=4000)
    np.testing.assert_allclose(
        np.quantile(found.resamples, [0.05, 0.25, 0.5, 0.75, 0.95]),
        np.quantile(looped, [0.05, 0.25, 0.5, 0.75, 0.95]),
        atol=0.012,
    )


def test_metrics_of_the_same_runs_share_their_resamples() -> None:
    """All positive: accuracy is the share a of positives and F1 is 2 a / (1 + a), every time."""
    gold = np.array([0, 1, 1, 1, 0, 1, 0, 1])
    predicted = np.ones((1, 3, 8), int)
    a = plain(gold, predicted, "accuracy").resamples
    np.testing.assert_allclose(plain(gold, predicted, "f1").resamples, 2 * a / (1 + a))
    assert a.std() > 0


# --- Planted truths -------------------------------------------------------------------------------


def planted(rng, num_seeds: int, seed_sd: float, n: int = 200) -> np.ndarray:
    """Runs [1, F, n] whose true accuracy is 0.6 on average: seeds vary, and so do examples."""
    hard = rng.random(n)
    level = np.clip(rng.normal(0.6, seed_sd, num_seeds), 0, 1)
    return (hard < level[:, None]).astype(int)[None]


@pytest.mark.slow
@pytest.mark.parametrize(("num_seeds", "seed_sd"), [(5, 0.1), (20, 0.1)])
def test_the_interval_holds_in_95_of_100(num_seeds: int, seed_sd: float) -> None:
    rng = np.random.default_rng(2)
    gold, covered = np.ones(200, int), 0
    for trial in range(300):
        found = score(
            gold, planted(rng, num_seeds, seed_sd), "accuracy", num_resamples=300, seed=trial
        )
        covered += found.low <= 0.6 <= found.high
    assert 0.91 <= covered / 300 <= 0.985


@pytest.mark.slow
@pytest.mark.parametrize(("num_seeds", "seed_sd"), [(5, 0.1), (20, 0.1)])
def test_equal_systems_are_told_apart_in_5_of_100(num_seeds: int, seed_sd: float) -> None:
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(300):
        hard = rng.random(200)
        levels = np.clip(rng.normal(0.6, seed_sd, (2, num_seeds)), 0, 1)
        a, b = ((hard < level[:, None]).astype(int)[None] for level in levels)
        found = compare(
            np.ones(200, int), a, b, "accuracy", paired=False, num_resamples=300,
            widen=num_seeds < 20,
        )  # fmt: skip
        wrong += two_sided(found) < 0.05
    assert 0.015 <= wrong / 300 <= 0.085


@pytest.mark.slow
def test_the_detectable_difference_is_found_in_80_of_100() -> None:
    rng = np.random.default_rng(4)
    gold, found, sd = np.ones(2000, int), 0, 0.03
    # What a first pair of systems says can be told apart is planted in the others.
    difference = math.sqrt(2 / 8) * sd * (2.145 + 0.868)  # Student's table, 14 degrees
    detectable = []
    for _ in range(200):
        a, b = (outcomes(rng.normal(m, sd, (1, 8)), 2000) for m in (0.5, 0.5 + difference))
        both = compare(gold, a, b, "accuracy", paired=False, num_resamples=300)
        found += two_sided(both) < 0.05 and both.value > 0
        detectable.append(both.detectable)
    assert 0.7 <= found / 200 <= 0.9
    assert np.median(detectable) == pytest.approx(difference, rel=0.15)


def test_what_paired_seeds_share_cancels() -> None:
    """B is A with 4 of 100 examples more right, whatever the seed: certain only if paired."""
    rng = np.random.default_rng(5)
    level = rng.normal(0.6, 0.1, (1, 6)).round(2)
    gold, a, b = np.ones(100, int), outcomes(level, 100), outcomes(level + 0.04, 100)
    paired = compare(gold, a, b, "accuracy", paired=True)
    apart = compare(gold, a, b, "accuracy", paired=False)
    assert paired.value == pytest.approx(apart.value) == pytest.approx(0.04)
    assert paired.standard_error < 0.5 * apart.standard_error
    assert two_sided(paired) < 0.05 < two_sided(apart)


def test_equal_constant_predictions_differ_by_nothing() -> None:
    """Drawn apart their means differ by rounding, which is no sign of anything."""
    gold = (np.arange(408) < 279).astype(int)  # as MRPC has them
    ones = np.ones((1, 3, 408), int)
    found = compare(gold, ones, ones, "accuracy", paired=False)
    assert two_sided(found) == 1 and abs(found.resamples).max() < 1e-12
    assert claims.ABOVE.p_values(found.resamples) == (1, 1)


# --- Few seeds ------------------------------------------------------------------------------------


def test_few_seeds_widen_the_interval_to_students() -> None:
    """Five seeds that are all that varies: t_0.975 with 4 degrees, 2.776, times s / sqrt(5)."""
    level = np.array([0.5, 0.55, 0.6, 0.65, 0.7])
    gold = np.ones(100_000, int)
    wide = score(gold, outcomes(level[None], 100_000), "accuracy")
    error = level.std(ddof=1) / math.sqrt(5)
    assert wide.standard_error == pytest.approx(error, rel=0.02)
    assert wide.degrees == pytest.approx(4, rel=0.03)
    assert wide.high - wide.low == pytest.approx(2 * 2.776 * error, rel=0.06)
    narrow = plain(gold, outcomes(level[None], 100_000))
    assert narrow.standard_error == pytest.approx(error * math.sqrt(4 / 5), rel=0.06)


# --- The rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("metric", "least"), [("pearson", -1), ("accuracy", 0)])
def test_no_interval_leaves_the_range_of_the_metric(metric: str, least: float) -> None:
    """Three examples: widened to Student's, the ends would lie far outside."""
    gold = np.array([0.0, 1.0, 0.5]) if metric == "pearson" else np.array([0, 1, 1])
    runs = np.array([[[0.1, 0.9, 0.2], [0.4, 0.1, 0.3]]])
    runs = runs if metric == "pearson" else (runs > 0.25).astype(int)
    found = score(gold, runs, metric)
    free = np.quantile(found.resamples, [0.025, 0.975])
    assert free[0] < least and free[1] > 1
    assert (found.low, found.high) == (least, 1)
    difference = compare(gold, runs, runs[:, ::-1], metric, paired=False)
    assert least - 1 <= difference.low < 0 < difference.high <= 1 - least
    whole = bootstrap.mean([found, found], same_runs=True)
    assert (whole.low, whole.high) == (least, 1)


def test_the_mean_of_tasks_is_less_uncertain() -> None:
    """Four times the same, drawn apart: half the standard error, four times the degrees."""
    gold, predicted = np.ones(100_000, int), outcomes([[0.5, 0.6, 0.7, 0.8]], 100_000)
    each = [score(gold, predicted, "accuracy", seed=k, num_resamples=2000) for k in range(4)]
    found, first = bootstrap.mean(each), each[0]
    assert found.value == pytest.approx(0.65)
    assert found.standard_error == pytest.approx(first.standard_error / 2, rel=0.06)
    assert found.degrees == pytest.approx(4 * first.degrees, rel=0.01)
    t = scipy.stats.t.ppf(0.975, found.degrees)
    assert found.high - found.low == pytest.approx(2 * t * found.standard_error, rel=0.05)


def test_the_mean_of_metrics_of_the_same_runs_is_not() -> None:
    rng = np.random.default_rng(7)
    gold = rng.integers(0, 2, 100)
    predicted = np.where(rng.random((1, 4, 100)) < 0.7, gold, 1 - gold)
    single = score(gold, predicted, "accuracy")
    found = bootstrap.mean([single, single], same_runs=True)
    assert found.value == single.value and found.degrees == pytest.approx(single.degrees)
    assert found.standard_error == pytest.approx(single.standard_error, rel=0.01)
    assert found.low == pytest.approx(single.low, abs=0.02)


# --- Contrasts of several rows that share their seeds ---------------------------------------------


def test_a_contrast_of_seeds_alone_is_a_t_test_of_each_seeds_sum() -> None:
    """Weights 1/2, -1, 1/2 over three rows of four seeds, without any chance in examples."""
    right = np.array([[1, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]])
    weights = np.array([0.5, -1.0, 0.5])
    rows = [(w, all_or_nothing(x[:, None])) for w, x in zip(weights, right, strict=True)]
    found = bootstrap.mean_score([(RIGHT, rows, "accuracy")], num_resamples=4000)
    sums = weights @ right
    theirs = scipy.stats.ttest_1samp(sums, 0)
    interval = theirs.confidence_interval()
    assert found.value == pytest.approx(sums.mean())
    assert found.degrees == pytest.approx(3)
    assert found.standard_error == pytest.approx(scipy.stats.sem(sums), rel=0.03)
    ends = np.quantile(found.resamples, [0.025, 0.975])  # the interval is cut to the range
    np.testing.assert_allclose(ends, [interval.low, interval.high], rtol=0.1, atol=0.05)


def test_a_contrast_shares_examples_between_rows() -> None:
    """Two pairs that differ on the same examples have the error of one, not less by sqrt(2)."""
    gold = np.ones(400, int)
    a, b = (np.repeat(outcomes([[p]], 400), 2, axis=0) for p in (0.5, 0.7))
    pair = bootstrap.mean_score([(gold, [(-1.0, a), (1.0, b)], "accuracy")])
    pairs = bootstrap.mean_score([(gold, [(-0.5, a), (0.5, b)] * 2, "accuracy")])
    assert pair.standard_error > 0.02
    assert pairs.standard_error == pytest.approx(pair.standard_error, rel=1e-6)


def shared_seeds(rng, num_seeds: int, num_shapes: int = 5, n: int = 400) -> list[np.ndarray]:
    """Predictions [P, 1, n] of equal shapes: what a seed does, it does to every shape."""
    hard, shift = rng.random(n), rng.normal(0, 0.05, num_seeds)
    levels = 0.6 + shift + rng.normal(0, 0.005, (num_shapes, num_seeds))
    return [(hard < level[:, None]).astype(int)[:, None] for level in levels]


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_a_null_study_of_shared_seeds_is_covered(num_seeds: int) -> None:
    """Two equal systems, mean over five shapes: 95% intervals hold 0 in nine of ten cases or more.

    Where seeds are drawn for each shape anew the interval holds 0 in half of the cases.
    """
    rng, gold, covered = np.random.default_rng(7), np.ones(400, int), 0
    for trial in range(200):
        a, b = (shared_seeds(rng, num_seeds) for _ in range(2))
        rows = [(w / 5, x) for w, side in ((-1, a), (1, b)) for x in side]
        found = bootstrap.mean_score([(gold, rows, "accuracy")], num_resamples=300, seed=trial)
        covered += found.low <= 0 <= found.high
    assert covered / 200 >= 0.9
