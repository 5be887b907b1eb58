"""The Multi-Bootstrap against closed forms, scipy, a plain loop, and planted truths."""

import math
import time

import numpy as np
import pytest
import scipy.stats

from scalelab.lab import scores
from scalelab.lab.compare import bootstrap, claims

RIGHT = np.ones(40, int)  # a gold that says: predictions are whether each example is right


def outcomes(share_right, n: int = 40) -> np.ndarray:
    """Predictions [..., n] of which a share is right, always the same examples."""
    return (np.arange(n) < np.round(np.asarray(share_right)[..., None] * n)).astype(int)


def all_or_nothing(right) -> np.ndarray:
    """Predictions [P, F, 40] of runs that have every example right or none: no chance in them."""
    return outcomes(np.asarray(right, float))


def plain(gold, predicted, metric="accuracy", **fields):
    return bootstrap.multi_bootstrap(gold, predicted, metric, widen=False, **fields)


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


def test_crossed_seeds_alone() -> None:
    """Rows and columns are drawn apart: their variances and that of their interaction add up."""
    right = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1]])
    rows, columns = right.mean(axis=1), right.mean(axis=0)
    rest = right - rows[:, None] - columns + right.mean()
    variance = rows.var() / 3 + columns.var() / 4 + rest.var() / 12
    found = plain(RIGHT, all_or_nothing(right), design="crossed", num_resamples=6000)
    assert found.standard_error == pytest.approx(math.sqrt(variance), rel=0.04)
    nested = plain(RIGHT, all_or_nothing(right), num_resamples=6000)
    assert nested.standard_error < 0.85 * found.standard_error


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
                draws.append(scores.f1(gold[at], predicted[seed, run, at]))
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


@pytest.mark.parametrize(("num_seeds", "seed_sd"), [(5, 0.1), (5, 0.01), (20, 0.1)])
def test_the_interval_holds_in_95_of_100(num_seeds: int, seed_sd: float) -> None:
    rng = np.random.default_rng(2)
    gold, held = np.ones(200, int), 0
    for trial in range(300):
        found = bootstrap.multi_bootstrap(
            gold, planted(rng, num_seeds, seed_sd), "accuracy", num_resamples=300, seed=trial
        )
        held += found.low <= 0.6 <= found.high
    assert 0.91 <= held / 300 <= 0.985


def equal_systems(rng, num_seeds: int, seed_sd: float) -> float:
    """The p-value of two systems that are equally good, on the same examples."""
    hard = rng.random(200)
    a, b = (
        (hard < np.clip(rng.normal(0.6, seed_sd, num_seeds), 0, 1)[:, None]).astype(int)[None]
        for _ in range(2)
    )
    found = bootstrap.compare(
        np.ones(200, int), a, b, "accuracy", paired=False, num_resamples=300, widen=num_seeds < 20
    )
    return found.p_value


@pytest.mark.parametrize(("num_seeds", "seed_sd"), [(5, 0.1), (20, 0.1)])
def test_equal_systems_are_told_apart_in_5_of_100(num_seeds: int, seed_sd: float) -> None:
    rng = np.random.default_rng(3)
    wrong = np.mean([equal_systems(rng, num_seeds, seed_sd) < 0.05 for _ in range(300)])
    assert 0.015 <= wrong <= 0.085


def test_the_detectable_difference_is_found_in_80_of_100() -> None:
    rng = np.random.default_rng(4)
    gold, found, sd = np.ones(2000, int), 0, 0.03
    # What a first pair of systems says can be told apart is planted in the others.
    difference = math.sqrt(2 / 8) * sd * (2.145 + 0.868)  # Student's table, 14 degrees
    said = []
    for _ in range(200):
        a, b = (outcomes(rng.normal(m, sd, (1, 8)), 2000) for m in (0.5, 0.5 + difference))
        both = bootstrap.compare(gold, a, b, "accuracy", paired=False, num_resamples=300)
        found += both.p_value < 0.05 and both.value > 0
        said.append(both.detectable)
    assert 0.7 <= found / 200 <= 0.9
    assert np.median(said) == pytest.approx(difference, rel=0.15)


def test_what_paired_seeds_share_cancels() -> None:
    """B is A with 4 of 100 examples more right, whatever the seed: certain only if paired."""
    rng = np.random.default_rng(5)
    level = rng.normal(0.6, 0.1, (1, 6)).round(2)
    gold, a, b = np.ones(100, int), outcomes(level, 100), outcomes(level + 0.04, 100)
    paired = bootstrap.compare(gold, a, b, "accuracy", paired=True)
    apart = bootstrap.compare(gold, a, b, "accuracy", paired=False)
    assert paired.value == pytest.approx(apart.value) == pytest.approx(0.04)
    assert paired.standard_error < 0.5 * apart.standard_error
    assert paired.p_value < 0.05 < apart.p_value


def test_shared_examples_cancel_in_a_comparison() -> None:
    """Two systems that are right on the same examples do not differ, however few these are."""
    same = outcomes([[0.5, 0.5]], 20)
    found = bootstrap.compare(np.ones(20, int), same, same, "accuracy", paired=False)
    assert (found.value, found.low, found.high, found.p_value) == (0, 0, 0, 1)
    assert found.detectable is None  # nothing varies, so nothing is known of what could be found


def test_equal_constant_predictions_differ_by_nothing() -> None:
    """Drawn apart their means differ by rounding, which is no sign of anything."""
    gold = (np.arange(408) < 279).astype(int)  # as MRPC has them
    ones = np.ones((1, 3, 408), int)
    found = bootstrap.compare(gold, ones, ones, "accuracy", design="crossed", paired=False)
    assert found.p_value == 1 and abs(found.resamples).max() < 1e-12
    assert claims.ABOVE.p_values(found.resamples) == (1, 1)


def test_the_difference_is_b_minus_a() -> None:
    worse, better = outcomes([[0.2, 0.3, 0.25]]), outcomes([[0.8, 0.9]])
    found = bootstrap.compare(RIGHT, worse, better, "accuracy", paired=False)
    assert found.value == pytest.approx(0.6)
    assert 0 < found.low < 0.6 < found.high
    back = bootstrap.compare(RIGHT, better, worse, "accuracy", paired=False)
    assert back.value == pytest.approx(-0.6)
    assert found.p_value == pytest.approx(2 / 1001)


# --- Few seeds ------------------------------------------------------------------------------------


def test_few_seeds_widen_the_interval_to_students() -> None:
    """Five seeds that are all that varies: t_0.975 with 4 degrees, 2.776, times s / sqrt(5)."""
    level = np.array([0.5, 0.55, 0.6, 0.65, 0.7])
    gold = np.ones(100_000, int)
    wide = bootstrap.multi_bootstrap(gold, outcomes(level[None], 100_000), "accuracy")
    error = level.std(ddof=1) / math.sqrt(5)
    assert wide.standard_error == pytest.approx(error, rel=0.02)
    assert wide.degrees == pytest.approx(4, rel=0.03)
    assert wide.high - wide.low == pytest.approx(2 * 2.776 * error, rel=0.06)
    narrow = plain(gold, outcomes(level[None], 100_000))
    assert narrow.standard_error == pytest.approx(error * math.sqrt(4 / 5), rel=0.06)


def test_the_interval_is_never_narrower_than_the_papers() -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        predicted = rng.integers(0, 2, (1, 3, 50))
        gold = np.ones(50, int)
        wide, narrow = (
            bootstrap.multi_bootstrap(gold, predicted, "accuracy"),
            plain(gold, predicted),
        )
        assert wide.low <= narrow.low + 1e-12 and wide.high >= narrow.high - 1e-12


# --- The rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("metric", "least"), [("pearson", -1), ("accuracy", 0)])
def test_no_interval_leaves_the_range_of_the_metric(metric: str, least: float) -> None:
    """Three examples: widened to Student's, the ends would lie far outside."""
    gold = np.array([0.0, 1.0, 0.5]) if metric == "pearson" else np.array([0, 1, 1])
    runs = np.array([[[0.1, 0.9, 0.2], [0.4, 0.1, 0.3]]])
    runs = runs if metric == "pearson" else (runs > 0.25).astype(int)
    found = bootstrap.multi_bootstrap(gold, runs, metric)
    free = np.quantile(found.resamples, [0.025, 0.975])
    assert free[0] < least and free[1] > 1
    assert (found.low, found.high) == (least, 1)
    difference = bootstrap.compare(gold, runs, runs[:, ::-1], metric, paired=False)
    assert least - 1 <= difference.low < 0 < difference.high <= 1 - least
    whole = bootstrap.mean([found, found], same_runs=True)
    assert (whole.low, whole.high) == (least, 1)


def test_the_mean_of_tasks_is_less_uncertain() -> None:
    """Four times the same, drawn apart: half the standard error, four times the degrees."""
    gold, predicted = np.ones(100_000, int), outcomes([[0.5, 0.6, 0.7, 0.8]], 100_000)
    each = [
        bootstrap.multi_bootstrap(gold, predicted, "accuracy", seed=k, num_resamples=2000)
        for k in range(4)
    ]
    found, one = bootstrap.mean(each), each[0]
    assert found.value == pytest.approx(0.65)
    assert found.standard_error == pytest.approx(one.standard_error / 2, rel=0.06)
    assert found.degrees == pytest.approx(4 * one.degrees, rel=0.01)
    t = scipy.stats.t.ppf(0.975, found.degrees)
    assert found.high - found.low == pytest.approx(2 * t * found.standard_error, rel=0.05)


def test_the_mean_of_metrics_of_the_same_runs_is_not() -> None:
    rng = np.random.default_rng(7)
    gold = rng.integers(0, 2, 100)
    predicted = np.where(rng.random((1, 4, 100)) < 0.7, gold, 1 - gold)
    one = bootstrap.multi_bootstrap(gold, predicted, "accuracy")
    found = bootstrap.mean([one, one], same_runs=True)
    assert found.value == one.value and found.degrees == one.degrees
    assert found.standard_error == pytest.approx(one.standard_error)
    assert found.low == pytest.approx(one.low, abs=0.01)


def test_a_constant_has_no_uncertainty() -> None:
    found = bootstrap.multi_bootstrap(RIGHT, np.zeros((1, 5, 40), int), "matthews")
    assert (found.value, found.low, found.high, found.standard_error) == (0, 0, 0, 0)


def test_the_same_seed_gives_the_same_interval() -> None:
    predicted = outcomes([[0.3, 0.6, 0.5]])
    again = [bootstrap.multi_bootstrap(RIGHT, predicted, "accuracy", seed=k) for k in (1, 1, 2)]
    assert (again[0].resamples == again[1].resamples).all()
    assert (again[0].resamples != again[2].resamples).any()


def test_nine_tasks_take_seconds() -> None:
    rng = np.random.default_rng(8)
    begun = time.process_time()
    for n in (1043, 872, 408, 40_430, 9815, 5463, 277, 71):
        gold = rng.integers(0, 2, n)
        predicted = np.where(rng.random((1, 5, n)) < 0.7, gold, 1 - gold)
        bootstrap.multi_bootstrap(gold, predicted, "matthews")
    gold = rng.integers(0, 26, 1500) / 5
    predicted = gold + rng.normal(size=(1, 5, 1500))
    bootstrap.multi_bootstrap(gold, predicted, "spearman")
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    ("predicted", "fields", "words"),
    [
        (np.zeros((5, 40)), {}, "pre-training seeds, fine-tuning seeds, n"),
        (np.zeros((1, 5, 39)), {}, "pre-training seeds, fine-tuning seeds, n"),
        (np.zeros((1, 0, 40)), {}, "pre-training seeds, fine-tuning seeds, n"),
        (np.zeros((1, 5, 40)), {"metric": "bleu"}, "unknown metric 'bleu'"),
        (np.zeros((1, 5, 40)), {"design": "mixed"}, "unknown design 'mixed'"),
    ],
)
def test_what_does_not_fit_is_refused(predicted, fields: dict, words: str) -> None:
    fields = {"metric": "accuracy"} | fields
    with pytest.raises(ValueError, match=words):
        bootstrap.multi_bootstrap(RIGHT, predicted, **fields)
    with pytest.raises(ValueError, match=words):
        bootstrap.compare(RIGHT, np.zeros((1, 5, 40)), predicted, paired=False, **fields)


def test_unequal_numbers_of_runs_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="paired seeds need as many runs"):
        bootstrap.compare(
            RIGHT, np.zeros((1, 5, 40)), np.zeros((1, 4, 40)), "accuracy", paired=True
        )


# --- Contrasts of several systems -----------------------------------------------------------------


def test_a_contrast_of_two_is_the_comparison() -> None:
    """One block, weights -1 and 1: the same draws in the same order, so the same numbers."""
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 2, 50)
    a, b = (np.where(rng.random((3, 2, 50)) < p, gold, 1 - gold) for p in (0.7, 0.8))
    ours = bootstrap.contrast(gold, [[(-1.0, a), (1.0, b)]], "f1", seed=5)
    theirs = bootstrap.compare(gold, a, b, "f1", paired=False, seed=5)
    np.testing.assert_allclose(ours.resamples, theirs.resamples, atol=1e-12)
    assert ours.degrees == pytest.approx(theirs.degrees)


def test_a_contrast_of_seeds_alone_is_welchs() -> None:
    """Weights 1, -2 over two blocks: variance (s1^2 / 3 + 4 s2^2 / 4 + ...) / 4, no examples."""
    right = [[1, 0, 1], [1, 1, 0, 0], [0, 0, 1], [1, 1, 0, 1]]
    arrays = [all_or_nothing(np.array(x)[:, None]) for x in right]
    found = bootstrap.contrast(
        RIGHT, [[(1.0, arrays[0]), (-2.0, arrays[1])], [(1.0, arrays[2]), (-2.0, arrays[3])]],
        "accuracy", num_resamples=4000,
    )  # fmt: skip
    weights = np.array([0.5, -1.0, 0.5, -1.0])
    terms = weights**2 * [np.var(x, ddof=1) / len(x) for x in right]
    assert found.value == pytest.approx(np.dot(weights, [np.mean(x) for x in right]))
    assert found.standard_error == pytest.approx(math.sqrt(terms.sum()), rel=0.03)
    degrees = terms.sum() ** 2 / sum(t**2 / (len(x) - 1) for t, x in zip(terms, right, strict=True))
    assert found.degrees == pytest.approx(degrees)
    reach = scipy.stats.t.ppf(0.975, degrees) * math.sqrt(terms.sum())
    assert found.high - found.low == pytest.approx(2 * reach, rel=0.06)


def test_blocks_of_single_seeds_are_a_paired_t_test() -> None:
    """Four shapes with one run of each system: the interval is over the four differences."""
    a, b = np.array([10, 12, 20, 21]), np.array([14, 15, 26, 30])
    blocks = [[(-1.0, outcomes([[x / 40]])), (1.0, outcomes([[y / 40]]))]
              for x, y in zip(a, b, strict=True)]  # fmt: skip
    blocks = [[(w, np.repeat(x, 2000, axis=-1)) for w, x in block] for block in blocks]
    gold = np.ones(80_000, int)  # so many examples that they leave no chance
    found = bootstrap.contrast(gold, blocks, "accuracy", num_resamples=4000)
    theirs = scipy.stats.ttest_rel(b, a)
    interval = theirs.confidence_interval()
    assert found.value == pytest.approx((b - a).mean() / 40)
    assert found.degrees == pytest.approx(3, rel=0.01)
    assert found.standard_error == pytest.approx(scipy.stats.sem(b - a) / 40, rel=0.03)
    width = (interval.high - interval.low) / 40
    assert found.high - found.low == pytest.approx(width, rel=0.1)  # of few blocks: skewed
    with pytest.raises(ValueError, match="two pre-training seeds of each system, or several"):
        bootstrap.contrast(gold, blocks[:1], "accuracy")


def test_a_contrast_shares_examples_between_blocks() -> None:
    """Two blocks that differ on the same examples have the error of one, not less by sqrt(2)."""
    gold = np.ones(400, int)
    a, b = (np.repeat(outcomes([[p]], 400), 2, axis=0) for p in (0.5, 0.7))
    one = bootstrap.contrast(gold, [[(-1.0, a), (1.0, b)]], "accuracy")
    two = bootstrap.contrast(gold, [[(-1.0, a), (1.0, b)]] * 2, "accuracy")
    assert one.standard_error > 0.02
    assert two.standard_error == pytest.approx(one.standard_error, rel=1e-6)
