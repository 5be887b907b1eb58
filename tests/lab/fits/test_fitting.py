"""Fits of laws: planted ones are recovered, scipy agrees, outliers and wrong forms are noticed."""

import math

import numpy as np
import pytest
import scipy.optimize

from scalelab.lab.fits import fitting, law_text, robust, scatter
from scalelab.lab.fits.forms import FORMS
from scalelab.lab.fits.law_points import gather

SIZES = np.geomspace(1e5, 5e7, 8)
FLOOR, SCALE, EXPONENT = 2.0, 40.0, 0.25


def loss(x: np.ndarray) -> np.ndarray:
    return FLOOR + SCALE * x**-EXPONENT


def noisy(seed: int, sd: float = 0.005, num_runs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and losses of runs."""
    rng = np.random.default_rng(seed)
    x = np.repeat(SIZES, num_runs)
    return x, loss(x) * np.exp(sd * rng.normal(size=len(x)))


def holds(law: fitting.Law, **planted: float) -> bool:
    return all(value in law.parameters[name] for name, value in planted.items())


# --- Forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_slopes_are_those_of_finite_differences(name: str) -> None:
    form = FORMS[name]
    rng = np.random.default_rng(0)
    u = rng.normal(size=(6, form.num_inputs))
    theta = rng.uniform(0.2, 1.0, len(form.parameters))
    _, slopes = form.value(theta, u)
    numeric = scipy.optimize.approx_fprime(theta, lambda t: form.value(t, u)[0], 1e-6)
    np.testing.assert_allclose(slopes, numeric, atol=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_natural_parameters_give_the_law_as_it_is_written(name: str) -> None:
    form, x = FORMS[name], np.array([[20.0, 3.0], [400.0, 50.0]])[:, : FORMS[name].num_inputs]
    u0 = np.log(x).mean(axis=0)
    theta = np.linspace(0.3, 0.9, len(form.parameters))
    value = form.value(theta, np.log(x) - u0)[0]
    p = dict(zip(form.parameters, form.natural(theta, u0, 5.0), strict=True))
    if name == "joint":
        by_hand = p["E"] + p["A"] * x[:, 0] ** -p["a"] + p["B"] * x[:, 1] ** -p["b"]
    elif name == "rising":
        by_hand = p["C"] - p["A"] * x[:, 0] ** -p["a"]
    else:
        by_hand = p.get("E", 0.0) + p["A"] * x[:, 0] ** -p["a"]
    ours = 5.0 * (np.exp(value) if form.logarithmic else value)
    np.testing.assert_allclose(ours, by_hand, rtol=1e-12)


# --- Fits -----------------------------------------------------------------------------------------


def test_clean_data_give_the_law_back_as_curve_fit_does() -> None:
    law = fitting.fit(gather(SIZES, loss(SIZES)), resamples=20)
    theirs, _ = scipy.optimize.curve_fit(
        lambda x, a, b, e: e + a * x**-b, SIZES, loss(SIZES), p0=(30, 0.3, 1.5)
    )
    ours = [law.parameters[name].value for name in ("A", "a", "E")]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    np.testing.assert_allclose(ours, [SCALE, EXPONENT, FLOOR], rtol=1e-4)
    assert law.r_squared == pytest.approx(1)
    assert np.abs(law.residuals).max() < 1e-6
    assert not law.at_limits


def test_noisy_data_agree_with_curve_fit_within_the_interval() -> None:
    """Another loss, least squares of logs, on the same points."""
    x, y = noisy(3, num_runs=3)
    law = fitting.fit(gather(x, y), resamples=100)
    theirs, _ = scipy.optimize.curve_fit(
        lambda x, a, b, e: np.log(e + a * x**-b), x, np.log(y), p0=(30, 0.3, 1.5)
    )
    assert holds(law, A=theirs[0], a=theirs[1], E=theirs[2])


def test_the_minimum_is_that_of_l_bfgs() -> None:
    """Hoffmann et al.'s own way to it; a coarse delta, where that converges."""
    x, y = noisy(0)
    form, delta = FORMS["power"], 0.01
    u = (np.log(x) - np.log(x).mean())[:, None]
    z, starts, bounds = np.log(y), form.starts(u, y), form.bounds(y, 1.0)

    def huber(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, slopes = form.value(theta, u)
        total = scipy.special.huber(delta, value - z).sum() / delta
        return total, np.clip((value - z) / delta, -1, 1) @ slopes

    theirs = [scipy.optimize.minimize(huber, s, jac=True, method="L-BFGS-B", bounds=bounds)
              for s in starts[2:6]]  # fmt: skip
    best = min(theirs, key=lambda result: result.fun)
    ours, losses = robust.minimise(form, u, z, starts, bounds, delta)
    assert losses.min() == pytest.approx(best.fun, rel=1e-4)
    np.testing.assert_allclose(ours[losses.argmin()], best.x, atol=0.01)


def test_a_planted_joint_law_is_recovered() -> None:
    """The constants that Hoffmann et al. print, over sizes and tokens of this laboratory."""
    planted = {"A": 406.4, "B": 410.7, "a": 0.34, "b": 0.28, "E": 1.69}
    n, d = map(np.ravel, np.meshgrid(np.geomspace(1e5, 5e7, 5), np.geomspace(1e7, 1e9, 4)))
    rng = np.random.default_rng(0)
    y = 1.69 + 406.4 * n**-0.34 + 410.7 * d**-0.28
    x = np.stack([n, d], axis=1)
    clean = fitting.fit(gather(x, y), "joint", resamples=20)
    for name, value in planted.items():
        assert clean.parameters[name].value == pytest.approx(value, rel=1e-3)
    law = fitting.fit(gather(x, y * np.exp(0.005 * rng.normal(size=len(y)))), "joint", resamples=60)
    assert holds(law, **planted)
    assert law.parameters["E"].high - law.parameters["E"].low < 0.8
    assert len(fitting.validate(law)) == 4  # every D of the largest N


def test_a_planted_rising_law_is_recovered() -> None:
    """Scores below and above 0, in percent: the ceiling stays below a perfect score."""
    rng = np.random.default_rng(1)
    clean = 60 - 800 * SIZES**-0.2
    assert clean[0] < 0
    law = fitting.fit(gather(SIZES, clean + 0.3 * rng.normal(size=8)), "rising", resamples=100)
    assert holds(law, A=800.0, a=0.2, C=60.0)
    assert law.parameters["C"].high <= 100
    assert 60 - 800 * 2e8**-0.2 in law.predict([2e8], None)


def test_a_cost_may_grow() -> None:
    law = fitting.fit(gather(SIZES, 3e-4 * SIZES**0.9), "plain", resamples=20)
    assert law.parameters["a"].value == pytest.approx(-0.9, abs=1e-6)
    assert law.parameters["A"].value == pytest.approx(3e-4, rel=1e-4)


def test_an_outlier_moves_least_squares_but_not_the_robust_fit() -> None:
    x, y = noisy(4, sd=0.001)
    y[3] *= 1.2
    points = gather(x, y)
    law = fitting.fit(points, resamples=20)
    squares = fitting.fit(points, resamples=20, delta=1e3)  # square everywhere
    at = np.array([[2e6]])
    truth = loss(np.array([2e6]))[0]
    assert abs(law.at(at)[0] / truth - 1) < 0.005
    assert abs(squares.at(at)[0] / truth - 1) > 0.02
    assert abs(law.residuals).argmax() == 3


def test_a_floor_that_is_not_there_is_said_to_be_at_its_limit() -> None:
    rng = np.random.default_rng(2)
    y = 40 * SIZES**-0.25 * np.exp(0.002 * rng.normal(size=8)) * (SIZES / 1e6) ** -0.02
    bent = y * np.exp(-0.01 * np.log(SIZES / 1e6) ** 2)  # falls faster than any power law
    law = fitting.fit(gather(SIZES, bent), resamples=20)
    assert law.at_limits == ["E"]
    assert law.parameters["E"].value < 1e-5


def test_what_hangs_on_a_parameter_at_its_limit_is_not_told_either() -> None:
    flat = np.array([7.0, 7.1, 7.0, 7.1, 7.05, 7.1, 7.0, 7.3])  # no larger size is better
    law = fitting.fit(gather(SIZES, flat), resamples=20)
    assert law.at_limits and law.undetermined == ["A", "a", "E"]
    with pytest.raises(ValueError, match="the points do not determine the law"):
        law.check_determined()
    law = fitting.fit(gather(SIZES, loss(SIZES)), resamples=20)
    assert not law.undetermined and not any(map(any, law_text.open_ends(law).values()))
    law.check_determined()
    law = fitting.fit(gather(SIZES[:6], noisy(0, sd=0.05)[1][:6]), resamples=60)
    assert not law.at_limits and law_text.open_ends(law)["E"][0]  # no floor would do as well
    assert law_text.of_parameter(law, "E")[1].startswith("[-, ")
    assert any("no end of an interval" in remark for remark in law_text.remarks(law))


# --- Intervals ------------------------------------------------------------------------------------


def test_noise_by_hand() -> None:
    """Three points of two runs: seeds give s^2 = 0.5; means 1, -1, 0 off a law with 1 parameter.

    Variance of means: 2 / 2 = 1, of which seeds explain 0.5 / 2 = 0.25.
    """
    groups = [np.array([1.5, 0.5]), np.array([-0.5, -1.5]), np.array([0.5, -0.5])]
    noise = scatter.estimate(groups, np.zeros(3), 1)
    assert np.square(noise.between).mean() == pytest.approx(0.75)
    assert np.square(noise.within).mean() == pytest.approx(0.5)
    degrees = 1 / (0.75**2 / 2 + 0.25**2 / 3)
    t = scipy.stats.t.ppf(0.975, degrees) / scipy.stats.norm.ppf(0.975)
    assert noise.widening == pytest.approx(t)
    seeds = scatter.estimate(groups, np.zeros(3), 1, only_seeds=True)
    assert not seeds.between.any()
    assert seeds.widening == pytest.approx(3.18245 / 1.95996, abs=1e-4)  # Student's, 3 degrees
    rng = np.random.default_rng(0)
    means = [noise.draw(rng, [2])[0].mean() for _ in range(4000)]
    assert np.var(means) == pytest.approx(t**2 * 1.0, rel=0.1)


def test_seeds_narrow_the_interval() -> None:
    def width(num_runs: int) -> float:
        law = fitting.fit(gather(*noisy(5, num_runs=num_runs)), resamples=100)
        return law.parameters["E"].high - law.parameters["E"].low

    assert width(5) < 0.7 * width(1)


def test_a_single_run_is_less_certain_than_the_law() -> None:
    law = fitting.fit(gather(*noisy(6, num_runs=3)), resamples=200)
    of_law, of_run, of_mean = (law.predict([1e8], n) for n in (None, 1, 100))
    assert of_run.high - of_run.low > 1.3 * (of_law.high - of_law.low)
    assert of_mean.high - of_mean.low < of_run.high - of_run.low
    assert of_law.value == of_run.value


@pytest.mark.slow
@pytest.mark.parametrize("num_runs", [1, 3])
def test_intervals_hold_the_planted_law_as_often_as_they_say(num_runs: int) -> None:
    """40 experiments: 95% is 38; fewer than 34 has a chance below 2%."""
    x = np.repeat(SIZES, num_runs)
    found = []
    for seed in range(40):
        law = fitting.fit(gather(x, noisy(seed, num_runs=num_runs)[1]), resamples=80)
        truth = loss(np.array([1e8]))[0]
        found.append(
            [holds(law, a=EXPONENT), holds(law, E=FLOOR), truth in law.predict([1e8], None)]
        )
    assert (np.sum(found, axis=0) >= 34).all(), np.sum(found, axis=0)


@pytest.mark.slow
def test_intervals_of_a_joint_law_hold_it_as_often_as_they_say() -> None:
    """40 experiments of 20 points, as above: not fewer than 34."""
    planted = {"A": 406.4, "B": 410.7, "a": 0.34, "b": 0.28, "E": 1.69}
    n, d = map(np.ravel, np.meshgrid(np.geomspace(1e5, 5e7, 5), np.geomspace(1e7, 1e9, 4)))
    y = 1.69 + 406.4 * n**-0.34 + 410.7 * d**-0.28
    x = np.stack([n, d], axis=1)
    far = 1.69 + 406.4 * 1e8**-0.34 + 410.7 * 2e9**-0.28
    found = []
    for seed in range(40):
        noise = np.exp(0.005 * np.random.default_rng(seed).normal(size=len(y)))
        law = fitting.fit(gather(x, y * noise), "joint", resamples=80)
        found.append([holds(law, **{name: value}) for name, value in planted.items()]
                     + [far in law.predict([1e8, 2e9], None)])  # fmt: skip
    assert (np.sum(found, axis=0) >= 34).all(), np.sum(found, axis=0)


# --- Held out, refusals ---------------------------------------------------------------------------


def test_the_right_form_predicts_the_largest_size_and_a_wrong_one_does_not() -> None:
    """95% of three: two or more in 99%."""
    good, bad = [], []
    for seed in range(10, 13):
        points = gather(*noisy(seed, num_runs=3))
        good += fitting.validate(fitting.fit(points, "power", resamples=60))
        bad += fitting.validate(fitting.fit(points, "plain", resamples=60))
        assert good[-1].observed == bad[-1].observed == pytest.approx(points.means[-1])
    assert {held.x for held in good} == {(SIZES[-1],)}
    assert sum(held.inside for held in good) >= 2
    assert max(abs(held.relative_error) for held in good) < 0.015
    assert not any(held.inside for held in bad)
    assert max(held.relative_error for held in bad) < -0.03  # it knows no floor


def test_the_held_out_size_is_not_looked_at() -> None:
    x, y = noisy(8)
    y[-1] *= 2
    (held,) = fitting.validate(fitting.fit(gather(x, y), resamples=50))
    assert held.relative_error == pytest.approx(-0.5, abs=0.02)
    assert not held.inside


def test_too_little_is_refused() -> None:
    y = loss(SIZES)
    with pytest.raises(ValueError, match="3 parameters and needs 5 different x, got 4"):
        fitting.fit(gather(SIZES[:4], y[:4]))
    with pytest.raises(ValueError, match="needs 5 different x, got 4"):  # seeds are no sizes
        fitting.fit(gather(np.repeat(SIZES[:4], 3), np.repeat(y[:4], 3)))
    near = np.geomspace(1e6, 3e6, 6)
    with pytest.raises(ValueError, match="factor of 3, from 1e[+]06 to 3e[+]06: a law needs 4"):
        fitting.fit(gather(near, loss(near)))
    line = np.stack([SIZES, SIZES], axis=1)
    line[:, 1] = np.where(np.arange(8) % 2, 1e7, 1e8)
    with pytest.raises(ValueError, match="3 different values of each input"):
        fitting.fit(gather(line, y), "joint")
    with pytest.raises(ValueError, match="values above 0"):
        fitting.fit(gather(SIZES, y - 2.5))
    with pytest.raises(ValueError, match="unknown form 'cubic'"):
        fitting.fit(gather(SIZES, y), "cubic")
    with pytest.raises(ValueError, match="2 inputs, got 1"):
        fitting.fit(gather(SIZES, y), "joint")
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            gather([1.0, 2.0], [bad, 1.0])
    with pytest.raises(ValueError, match="above 0"):
        gather([0.0, 2.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="no points"):
        gather([], [])
    with pytest.raises(ValueError, match="2 x for 1 y"):
        gather([1.0, 2.0], [1.0])


def test_extrapolation_has_a_limit() -> None:
    law = fitting.fit(gather(SIZES, loss(SIZES)), resamples=20)
    assert law.predict([4.9e8]).value == pytest.approx(loss(np.array([4.9e8]))[0], rel=1e-4)
    for far in (5.1e8, 0.9e4):
        with pytest.raises(ValueError, match="more than a factor 10 outside"):
            law.predict([far])
    assert law.predict([1e10], limit=1000).value == pytest.approx(2.126, abs=1e-3)


def test_five_sizes_are_enough_to_fit_but_the_check_needs_one_to_spare() -> None:
    law = fitting.fit(gather(SIZES[:5], noisy(9)[1][:5]), resamples=20)
    assert len(fitting.validate(law)) == 1  # four sizes, three parameters
