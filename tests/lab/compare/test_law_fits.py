"""Fits of laws: planted laws are recovered, scipy agrees, outliers and wrong forms are noticed."""

import math

import numpy as np
import pytest
import scipy.optimize

from scalelab.lab.compare import law_fits
from scalelab.lab.compare.law_fits import gather

SIZES = np.geomspace(1e5, 5e7, 8)
FLOOR, SCALE, EXPONENT = 2.0, 40.0, 0.25


def loss(x: np.ndarray) -> np.ndarray:
    return FLOOR + SCALE * x**-EXPONENT


def noisy(seed: int, sd: float = 0.005, num_runs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and losses of runs."""
    rng = np.random.default_rng(seed)
    x = np.repeat(SIZES, num_runs)
    return x, loss(x) * np.exp(sd * rng.normal(size=len(x)))


def holds(law: law_fits.Law, **planted: float) -> bool:
    return all(covers(law.parameters[name], value) for name, value in planted.items())


def covers(interval: law_fits.Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def log_law(x, a, b, e):
    return np.log(e + a * x**-b)


def test_clean_data_give_the_law_back_as_curve_fit_does() -> None:
    law = law_fits.fit(gather(SIZES, loss(SIZES)), resamples=20)
    theirs, _ = scipy.optimize.curve_fit(log_law, SIZES, np.log(loss(SIZES)), p0=(30, 0.3, 1.5))
    ours = [law.parameters[name].value for name in ("A", "a", "E")]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    np.testing.assert_allclose(ours, [SCALE, EXPONENT, FLOOR], rtol=1e-4)
    assert law.r_squared == pytest.approx(1) and np.abs(law.residuals).max() < 1e-6
    assert law.determined


def test_noisy_data_agree_with_curve_fit_within_the_interval() -> None:
    """curve_fit minimises another loss, least squares of logs, on the same points."""
    x, y = noisy(3, num_runs=3)
    law = law_fits.fit(gather(x, y), resamples=100)
    theirs, _ = scipy.optimize.curve_fit(log_law, x, np.log(y), p0=(30, 0.3, 1.5))
    assert holds(law, A=theirs[0], a=theirs[1], E=theirs[2])


def test_a_planted_law_without_a_floor_is_recovered() -> None:
    law = law_fits.fit(gather(SIZES, SCALE * SIZES**-EXPONENT), resamples=20)
    parameters = law.parameters
    assert parameters["a"].value == pytest.approx(EXPONENT, rel=1e-3)
    assert parameters["A"].value == pytest.approx(SCALE, rel=1e-2)
    assert parameters["E"].value < 1e-3 and law.determined


def test_an_outlier_moves_least_squares_but_not_the_robust_fit() -> None:
    x, y = noisy(4, sd=0.001)
    y[3] *= 1.2
    law = law_fits.fit(gather(x, y), resamples=20)
    squares, _ = scipy.optimize.curve_fit(
        log_law, x, np.log(y), (30, 0.3, 1.5), bounds=(0, np.inf)
    )  # fmt: skip
    truth = loss(np.array([2e6]))[0]
    assert abs(law.at(np.array([2e6]))[0] / truth - 1) < 0.005
    assert abs((squares[2] + squares[0] * 2e6 ** -squares[1]) / truth - 1) > 0.02
    assert abs(law.residuals).argmax() == 3


def test_what_the_points_do_not_determine_predicts_nothing() -> None:
    grows = law_fits.fit(gather(SIZES, 7 + 0.1 * np.arange(8.0) ** 2), resamples=20)
    assert not grows.determined
    with pytest.raises(ValueError, match="determine"):
        grows.predict(SIZES[-1])
    law = law_fits.fit(gather(SIZES[:6], noisy(0, sd=0.05)[1][:6]), resamples=60)
    floor = law.parameters["E"]  # no floor would do as well
    assert law.determined and floor.low < 1e-3 and floor.high > floor.value


def test_noise_by_hand() -> None:
    """Three points of two runs: seeds give s^2 = 0.5; means 1, -1, 0 off a law with 1 parameter.

    Variance of means: 2 / 2 = 1, of which seeds explain 0.5 / 2 = 0.25.
    """
    groups = [np.array([1.5, 0.5]), np.array([-0.5, -1.5]), np.array([0.5, -0.5])]
    noise = law_fits.estimate_noise(groups, np.zeros(3), 1)
    assert noise.between**2 == pytest.approx(0.75) and noise.within**2 == pytest.approx(0.5)
    degrees = 1 / (0.75**2 / 2 + 0.25**2 / 3)
    t = scipy.stats.t.ppf(0.975, degrees) / scipy.stats.norm.ppf(0.975)
    assert noise.widening == pytest.approx(t)
    rng = np.random.default_rng(0)
    means = [noise.draw(rng, [2]).mean() for _ in range(4000)]
    assert np.var(means) == pytest.approx(t**2 * 1.0, rel=0.1)
    exact = law_fits.estimate_noise(groups, np.array([1.0, -1.0, 0.0]), 1)
    assert exact.between == 0  # seeds explain all of it
    assert exact.widening == pytest.approx(3.18245 / 1.95996, abs=1e-4)  # Student's, 3 degrees


def test_seeds_narrow_the_interval_and_a_single_run_is_less_certain_than_the_law() -> None:
    laws = {n: law_fits.fit(gather(*noisy(5, num_runs=n)), resamples=100) for n in (1, 5)}
    widths = {n: law.parameters["E"].high - law.parameters["E"].low for n, law in laws.items()}
    assert widths[5] < 0.7 * widths[1]
    of_law, of_run, of_mean = (laws[5].predict(1e8, n) for n in (None, 1, 100))
    assert of_run.high - of_run.low > 1.3 * (of_law.high - of_law.low)
    assert of_mean.high - of_mean.low < of_run.high - of_run.low
    assert of_law.value == of_run.value


@pytest.mark.slow
def test_intervals_hold_the_planted_law_as_often_as_they_say() -> None:
    """20 experiments: 95% is 19; fewer than 17 has a chance below 2%."""
    found = []
    for seed in range(20):
        law = law_fits.fit(gather(*noisy(seed)))
        found.append([holds(law, a=EXPONENT), holds(law, E=FLOOR),
                      covers(law.predict(1e8, None), loss(np.array(1e8)))])  # fmt: skip
    assert (np.sum(found, axis=0) >= 17).all(), np.sum(found, axis=0)


def test_the_largest_size_is_predicted_where_the_form_holds_and_not_where_it_breaks() -> None:
    """95% of three: two or more in 99%. The broken law falls by a further 10% at the last size."""
    good, bad = [], []
    for seed in range(10, 13):
        x, y = noisy(seed, num_runs=3)
        good += law_fits.validate(law_fits.fit(gather(x, y), resamples=60))
        broken = np.where(x == SIZES[-1], 0.9 * y, y)
        bad += law_fits.validate(law_fits.fit(gather(x, broken), resamples=60))
        assert good[-1].observed == pytest.approx(y[-3:].mean())
    assert {point.x for point in good} == {SIZES[-1]}
    assert sum(point.inside for point in good) >= 2
    assert max(abs(point.predicted.value / point.observed - 1) for point in good) < 0.015
    assert not any(point.inside for point in bad)


def test_the_held_out_size_is_not_used() -> None:
    x, y = noisy(8)
    y[-1] *= 2
    (point,) = law_fits.validate(law_fits.fit(gather(x, y), resamples=50))
    assert point.predicted.value / point.observed == pytest.approx(0.5, abs=0.02)
    law = law_fits.fit(gather(SIZES[:5], noisy(9)[1][:5]), resamples=20)
    assert len(law_fits.validate(law)) == 1  # four sizes, three parameters


def test_too_little_is_refused() -> None:
    y, near = loss(SIZES), np.geomspace(1e6, 3e6, 6)
    for x, values, named in [
        (SIZES[:4], y[:4], "got 4"),
        (np.repeat(SIZES[:4], 3), np.repeat(y[:4], 3), "got 4"),  # seeds are no sizes
        (near, loss(near), "factor of 3"),
        (SIZES, y - 2.5, "above 0"),
        ([1.0, 2.0], [math.nan, 1.0], "finite"),
        ([1.0, 2.0], [math.inf, 1.0], "finite"),
        ([0.0, 2.0], [1.0, 1.0], "above 0"),
        ([], [], "above 0"),
    ]:
        with pytest.raises(ValueError, match=named):
            law_fits.fit(gather(x, values))


def test_extrapolation_has_a_limit() -> None:
    law = law_fits.fit(gather(SIZES, loss(SIZES)), resamples=20)
    assert law.predict(4.9e8).value == pytest.approx(loss(np.array([4.9e8]))[0], rel=1e-4)
    for far in (5.1e8, 0.9e4):
        with pytest.raises(ValueError, match="factor 10"):
            law.predict(far)
    assert law.predict(1e10, limit=1000).value == pytest.approx(2.126, abs=1e-3)
