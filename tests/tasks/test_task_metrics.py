"""Metrics against scikit-learn and scipy, identities, undefined cases; degenerate runs."""

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from scalelab.tasks import metrics

CLASSES = {"matthews": 2, "accuracy": 2, "hits": 2, "f1": 2, "macro_f1": 3}
REFERENCE = {
    "matthews": sklearn.metrics.matthews_corrcoef,
    "accuracy": sklearn.metrics.accuracy_score,
    "hits": lambda gold, predicted: sklearn.metrics.accuracy_score(np.ones_like(gold), predicted),
    "f1": lambda gold, predicted: sklearn.metrics.f1_score(gold, predicted, zero_division=0.0),
    # A class that is neither there nor predicted, as in some draws, counts nothing.
    "macro_f1": lambda gold, predicted: sklearn.metrics.f1_score(
        gold, predicted, average="macro", zero_division=0.0
    ),
    "pearson": lambda gold, predicted: scipy.stats.pearsonr(gold, predicted).statistic,
    "spearman": lambda gold, predicted: scipy.stats.spearmanr(gold, predicted).statistic,
}


def drawn(metric: str, rng: np.random.Generator, n: int, num_runs: int):
    """Gold [n] and predictions [num_runs, n] with ties, related to gold."""
    if metric in CLASSES:
        num = CLASSES[metric]
        gold = rng.integers(0, num, n)
        return gold, np.where(rng.random((num_runs, n)) < 0.6, gold, rng.integers(0, num, n))
    gold = rng.integers(0, 26, n) / 5
    return gold, (gold + rng.normal(0, 1, (num_runs, n))).round(1).astype(np.float32)


@pytest.mark.parametrize("metric", REFERENCE)
@pytest.mark.parametrize("n", [5, 80])
def test_every_metric_is_the_librarys(metric: str, n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        gold, (predicted,) = drawn(metric, rng, n, 1)
        value = metrics.METRICS[metric](gold, predicted)
        assert type(value) is float
        assert value == pytest.approx(REFERENCE[metric](gold, predicted), abs=1e-12)


@pytest.mark.parametrize("metric", REFERENCE)
def test_a_weight_is_a_multiplicity(metric: str) -> None:
    """Weights [R, n] on predictions [S, n] give [R, S]: the score of repeated examples."""
    rng = np.random.default_rng(1)
    gold, predicted = drawn(metric, rng, 60, 3)
    weights = rng.multinomial(60, np.full(60, 1 / 60), 4)
    values = metrics.METRICS[metric](gold, predicted, weights)
    assert values.shape == (4, 3)
    for w, row in zip(weights, values, strict=True):
        for p, value in zip(predicted, row, strict=True):
            again = REFERENCE[metric](np.repeat(gold, w), np.repeat(p, w))
            assert value == pytest.approx(again, abs=1e-12)


def test_matthews_of_three_classes_is_the_librarys() -> None:
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 3, 50)
    predicted = np.where(rng.random(50) < 0.5, gold, rng.integers(0, 3, 50))
    reference = sklearn.metrics.matthews_corrcoef(gold, predicted)
    assert metrics.matthews(gold, predicted) == pytest.approx(reference, abs=1e-12)


def test_where_a_definition_divides_by_zero_the_score_is_0() -> None:
    gold, ones = np.array([0, 1, 1, 0]), np.ones(4)
    assert metrics.matthews(gold, ones) == metrics.matthews(ones, gold) == 0
    assert metrics.matthews(gold, 0 * ones) == metrics.matthews(ones, ones) == 0
    assert metrics.f1(0 * ones, 0 * ones) == metrics.f1(gold, 0 * ones) == 0
    # 0.1 is none of the binary fractions: its variance over 4 examples is rounding error, not 0.
    for metric in (metrics.pearson, metrics.spearman):
        assert metric(gold, 0.1 * ones) == metric(0.1 * ones, gold) == metric(ones, ones) == 0
    # A resample may be constant though the set is not; there scipy says nan, with a warning.
    with warnings.catch_warnings(action="ignore"):
        assert math.isnan(scipy.stats.pearsonr(gold[1:3], [2.0, 3.0]).statistic)
    assert metrics.pearson(gold, [1.0, 2.0, 3.0, 4.0], [0, 1, 1, 0]) == 0
    assert metrics.matthews(gold, [0, 0, 1, 1], [0, 2, 1, 0]) == 0


def test_correlations_keep_their_digits_far_from_zero() -> None:
    rng = np.random.default_rng(5)
    gold = rng.normal(size=100)
    predicted = gold + rng.normal(size=100)
    near = metrics.pearson(gold, predicted)
    assert metrics.pearson(gold + 1e6, predicted + 1e6) == pytest.approx(near, abs=1e-9)
    assert metrics.pearson(gold, 3 * gold + 2) == pytest.approx(1, abs=1e-12)
    assert metrics.spearman(gold, np.exp(gold)) == pytest.approx(1, abs=1e-12)
    assert metrics.spearman(gold, -(gold**3)) == pytest.approx(-1, abs=1e-12)


@pytest.mark.parametrize(("arguments", "words"), [
    (([0, 1], [0, 1, 1]), r"\(2,\), \(3,\)"),
    (([0, 1], [0, np.nan]), "finite"),
    (([], []), "no example"),
    (([0, 1], [0, 1], [0, 0]), "no example"),
    (([0, 1], [0, 1], [2, -1]), "0 or more"),
    (([[0, 1]], [0, 1]), r"gold \[n\]"),
])  # fmt: skip
@pytest.mark.parametrize("metric", REFERENCE)
def test_what_cannot_be_scored_is_refused(metric: str, arguments: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        metrics.METRICS[metric](*arguments)


# --- Degenerate runs ------------------------------------------------------------------------------


def judge(gold, predicted, loss, train_gold, regression=False):
    chance = metrics.chance_loss(np.asarray(train_gold), regression=regression)
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    return metrics.degenerate(
        gold, predicted, train_loss=loss, chance=chance, regression=regression
    )


def test_chance_is_the_best_constant() -> None:
    """A quarter of ones: - 3/4 log 3/4 - 1/4 log 1/4 nats; 0 and 4: squared error 4 of the mean."""
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert metrics.chance_loss(np.array([0, 0, 1, 0]), regression=False) == pytest.approx(entropy)
    assert metrics.chance_loss(np.array([0.0, 4.0]), regression=True) == 4.0
    assert metrics.chance_loss(np.array([2, 2]), regression=False) == 0


def test_a_constant_or_a_loss_at_chance_is_degenerate() -> None:
    balanced = [0, 1, 0, 1]
    assert judge([0, 1], [0, 1], 0.69, balanced) is None
    assert judge([0, 1], [0, 1], None, balanced) is None
    assert "class 1" in judge([0, 1], [1, 1], 0.1, balanced)
    assert "at chance: 0.7, " in judge([0, 1], [0, 1], 0.70, balanced)
    # The same loss is far below chance for four classes, and above it for a rare class.
    assert judge([0, 1], [0, 1], 0.70, [0, 1, 2, 3]) is None
    assert "at chance" in judge([0, 1], [0, 1], 0.6, [0, 0, 0, 1])
    assert "at chance" in judge([0, 1], [0, 1], math.nan, balanced)


def test_a_regression_is_flat_or_at_chance() -> None:
    gold = [0.0, 2.5, 5.0]
    assert judge(gold, [0.1, 2.0, 4.0], 1.0, [0.0, 4.0], True) is None
    assert judge(gold, [2.4, 2.41, 2.42], 1.0, [0.0, 4.0], True).startswith("constant prediction")
    assert "at chance" in judge(gold, [0.1, 2.0, 4.0], 4.0, [0.0, 4.0], True)
    assert "not finite" in judge(gold, [0.1, math.nan, 4.0], 1.0, [0.0, 4.0], True)


def test_one_word_in_all_answers_is_degenerate() -> None:
    assert "constant prediction: O" in judge(["O B"], ["O O"], 0.1, [0, 1])
    assert judge(["O B"], ["O B"], 0.1, [0, 1]) is None


@pytest.mark.parametrize(("metric", "gold", "reason"), [
    ("f1", [0, 0], "no gold label is positive"),
    ("f1", [0, 1], None),  # 0 if none is predicted
    ("f1a", ["0 0", "0"], "no gold label is positive"),
    ("f1a", ["0 0", "1"], None),
    ("entity_f1", ["O O"], "no gold label is positive"),
    ("entity_f1", ["O B-PER"], None),
    ("matthews", [1, 1], "all gold labels are equal"),
    ("pearson", [0.1, 0.1], "all gold labels are equal"),
    ("spearman", [0.1, 0.2], None),
    *((name, [0, 0], None) for name in ("accuracy", "hits", "macro_f1")),
    ("word_accuracy", ["O O"], None),
])  # fmt: skip
def test_what_gold_leaves_undefined(metric: str, gold: list, reason: str | None) -> None:
    assert metrics.undefined(metric, np.array(gold)) == reason
    assert metrics.undefined(metric, None) is None
