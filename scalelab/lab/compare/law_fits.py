"""Fits of scaling laws: y = E + A x^-a, bootstrap intervals, a check on the largest size.

The form and the fit follow Hoffmann et al. (2022, arXiv:2203.15556, section 3.3): a power law that
falls to a floor E >= 0, fitted to log y from a grid of starts with a robust loss (scipy's soft_l1,
a smooth form of Huber's). A fit with a wide scale finds the best start. One with Hoffmann's scale
of 1e-3, nearly the absolute error, resists outliers. The last takes the scale of the residuals,
1.345 standard deviations, estimated from their median absolute value: a fit of absolute errors goes
exactly through as many points as there are parameters, and a bootstrap of its residuals is too
narrow.

Intervals are a parametric bootstrap at the measured sizes: a resample is the fitted law plus noise
of points and of seeds (`Noise`), fitted again.

Inside a fit, theta = (log A', a, E) with u = log(x / x0), x0 the geometric mean of the sizes, and
the term exp(log A' - a u): its size and exponent are then nearly independent.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

from scalelab.lab.compare.estimates import LEVEL, UPPER, satterthwaite

FORM = "E + A x^-a"
PARAMETERS = ("A", "a", "E")
STARTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)  # exponents
MAX_EXPONENT = 5.0
ABSENT = 1e-4  # a term of at most this share of the smallest y is absent
AT_BOUND = 1e-6  # a parameter this close to its bound is at the bound
SEARCH_SCALE, SCALE = 0.05, 1e-3  # residuals of log y above the scale count by their size
HUBER = 1.345 * 1.4826  # the scale in median absolute residuals
RESAMPLES = 200
MIN_SIZES = len(PARAMETERS) + 2  # different x that a law needs; the check has one fewer
MIN_SPAN = 4.0  # ratio of the largest x to the smallest that a law needs
MAX_EXTRAPOLATION = 10.0  # factor beyond the measured x
ENDS = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)


class Interval(NamedTuple):
    """A value with its 95% interval."""

    value: float
    low: float
    high: float


class HeldOut(NamedTuple):
    """A point of the largest size, and its prediction by a fit to the others."""

    x: float
    observed: float  # the mean of its runs
    predicted: Interval  # for a mean of equally many runs

    @property
    def inside(self) -> bool:
        """Whether the interval holds what was observed."""
        return self.predicted.low <= self.observed <= self.predicted.high


class Points(NamedTuple):
    """Measurements, by increasing x."""

    x: np.ndarray  # [n]
    runs: tuple[np.ndarray, ...]  # y of the runs (seeds) of each point, n arrays [k]

    @property
    def counts(self) -> list[int]:
        """The number of runs of each point."""
        return [len(run) for run in self.runs]

    @property
    def log_means(self) -> np.ndarray:
        """The mean log y of each point, [n]."""
        return np.array([np.log(run).mean() for run in self.runs])

    def center(self, x: np.ndarray) -> np.ndarray:
        """Returns u [m] of x [m], as in a law that is fitted to these points."""
        return np.log(x) - np.log(self.x).mean()


def gather(x: Sequence[float], y: Sequence[float], settings: Sequence[str] | None = None) -> Points:
    """Groups runs of one x, or of one setting, into points at their mean x.

    Raises:
      ValueError: there is none, a number is not finite, or an x or a y is not above 0.
    """
    inputs, values = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if not len(values) or not np.isfinite([inputs, values]).all() or min(*inputs, *values) <= 0:
        raise ValueError("every x and y must be finite and above 0: drop the others")
    group = np.unique(inputs if settings is None else settings, return_inverse=True)[1]
    means = np.array([inputs[group == i].mean() for i in range(group.max() + 1)])
    order = np.argsort(means, kind="stable")
    return Points(means[order], tuple(values[group == i] for i in order))


class Noise(NamedTuple):
    """How log y scatters around a law.

    Runs of a point (seeds) scatter around their mean. The means scatter around the law by more than
    the seeds explain, or by all of it where every point has one run. Few points estimate their own
    noise badly, so draws are widened from the normal to Student's t.
    """

    between: float  # standard deviation of points that seeds do not explain
    within: float  # standard deviation of the seeds of a point
    widening: float  # Student's quantile over the normal one (Satterthwaite's degrees of freedom)

    def draw(self, rng: np.random.Generator, counts: Sequence[int]) -> np.ndarray:
        """Draws the noise of log y of every run, given the runs of each point: [sum of counts]."""
        noise = np.repeat(self.between * rng.normal(size=len(counts)), counts)
        return self.widening * (noise + self.within * rng.normal(size=len(noise)))


def estimate_noise(groups: Sequence[np.ndarray], law: np.ndarray, num_parameters: int) -> Noise:
    """Estimates the noise around a law (degrees of freedom: Satterthwaite 1946).

    Args:
      groups: [k] each, log y of the runs of each of the n points.
      law: [n], log y by the law.
      num_parameters: parameters that were fitted.
    """
    residuals = np.array([group.mean() for group in groups]) - law
    spare = len(groups) - num_parameters
    degrees = sum(len(group) - 1 for group in groups)
    squares = sum(float(np.square(group - group.mean()).sum()) for group in groups)
    within = squares / degrees if degrees else 0.0
    explained = within * float(np.mean([1 / len(group) for group in groups]))
    between = max(0.0, float(np.square(residuals).sum()) / spare - explained)
    _, total = satterthwaite([(between, spare), (explained, degrees)])
    widening = scipy.special.stdtrit(min(total, 1e9), UPPER) / scipy.special.ndtri(UPPER)
    return Noise(math.sqrt(between), math.sqrt(within), float(widening))


@dataclasses.dataclass(frozen=True, eq=False)
class Law:
    """A fitted law."""

    points: Points  # the points that it was fitted to
    theta: np.ndarray  # parameters inside the fit, [3]
    samples: np.ndarray  # theta of each resample, [resamples, 3]
    noise: Noise  # noise of the points

    @property
    def parameters(self) -> dict[str, Interval]:
        """Parameters of the law as it is written, by name."""
        every = np.vstack([self.theta, self.samples])
        every[:, 0] = np.exp(every[:, 0] + every[:, 1] * np.log(self.points.x).mean())
        ends = np.percentile(every[1:], ENDS, axis=0)
        rows = np.stack([every[0], *ends]).T.tolist()
        return {name: Interval(*row) for name, row in zip(PARAMETERS, rows, strict=True)}

    @property
    def determined(self) -> bool:
        """Whether the points determine the law: its term is present and its exponent in range."""
        low, high = (end[:2] for end in _bounds(np.concatenate(self.points.runs)))
        return bool((np.minimum(self.theta[:2] - low, high - self.theta[:2]) > AT_BOUND).all())

    @property
    def residuals(self) -> np.ndarray:
        """Measured minus law for each point, of logs: [n]."""
        return self.points.log_means - np.log(self.at(self.points.x))

    @property
    def r_squared(self) -> float:
        """Explained share of the variance of the points' logs."""
        total = float(np.var(self.points.log_means))
        return 1 - float(np.mean(self.residuals**2)) / total if total else math.nan

    def at(self, x: np.ndarray) -> np.ndarray:
        """Returns the law at x: [m] for x [m]."""
        return np.exp(_evaluate(self.theta, self.points.center(x)))

    def predict(
        self, x: float, num_runs: int | None = 1, limit: float = MAX_EXTRAPOLATION
    ) -> Interval:
        """Predicts y at x for the mean of `num_runs` new runs; None: for the law itself.

        Raises:
          ValueError: the points do not determine the law, or x is further than a factor `limit`
            outside the measured range.
        """
        if not self.determined:
            raise ValueError(
                f"{FORM}: a parameter is at the end of its allowed range, so the points do not"
                " determine the law and it predicts nothing: measure more or wider sizes"
            )
        low, high = self.points.x.min(), self.points.x.max()
        if not low / limit <= x <= high * limit:
            raise ValueError(
                f"x = {x:.4g} is more than a factor {limit:g} outside the measured range"
                f" {low:.4g} to {high:.4g}: measure closer"
            )
        at = np.array([x])
        drawn = _evaluate(self.samples, self.points.center(at))[:, 0]
        if num_runs is not None:
            rng = np.random.default_rng(0)
            drawn = drawn + [self.noise.draw(rng, [num_runs]).mean() for _ in drawn]
        return Interval(float(self.at(at)[0]), *np.exp(np.percentile(drawn, ENDS)).tolist())


def fit(points: Points, *, resamples: int = RESAMPLES, cut: bool = False) -> Law:
    """Fits the law, with a bootstrap; `cut` points lack the largest size, for a check.

    Raises:
      ValueError: fewer than MIN_SIZES different x, of cut points one fewer; or a range of x below a
        factor MIN_SPAN, unless they are cut.
    """
    if (n := len(np.unique(points.x))) < (least := MIN_SIZES - cut):
        raise ValueError(f"{FORM} has 3 parameters and needs {least} x, got {n}: add sizes")
    if (span := points.x.max() / points.x.min()) < MIN_SPAN and not cut:
        raise ValueError(
            f"x spans a factor of {span:.3g}; a law needs {MIN_SPAN:g}: add smaller or larger ones"
        )
    values, counts = np.concatenate(points.runs), points.counts
    u, z = np.repeat(points.center(points.x), counts), np.log(values)

    def minimise(z: np.ndarray, start: np.ndarray, scale: float) -> scipy.optimize.OptimizeResult:
        return scipy.optimize.least_squares(
            lambda theta: _evaluate(theta, u) - z, start, bounds=_bounds(values),
            method="dogbox", loss="soft_l1", f_scale=scale, x_scale="jac",
        )  # fmt: skip

    fits = [minimise(z, start, SEARCH_SCALE) for start in _starts(u, values)]
    theta = minimise(z, min(fits, key=lambda found: found.cost).x, SCALE).x
    # The smallest residuals, one a parameter, are 0 by construction.
    sizes = np.sort(np.abs(_evaluate(theta, u) - z))[len(theta) :]
    scale = max(SCALE, HUBER * float(np.median(sizes)))
    theta = minimise(z, theta, scale).x
    centers = _evaluate(theta, points.center(points.x))
    noise = estimate_noise([np.log(run) for run in points.runs], centers, len(theta))
    rng, law = np.random.default_rng(0), _evaluate(theta, u)
    samples = [minimise(law + noise.draw(rng, counts), theta, scale).x for _ in range(resamples)]
    return Law(points, theta, np.array(samples), noise)


def validate(law: Law) -> list[HeldOut]:
    """Fits again without the largest size, and predicts the points of that size.

    Raises:
      ValueError: too few points remain, or they do not determine a law.
    """
    x, runs = law.points
    rest = Points(x[x < x.max()], runs[: int((x < x.max()).sum())])
    again = fit(rest, resamples=len(law.samples), cut=True)
    return [
        HeldOut(float(at), float(own.mean()), again.predict(float(at), len(own), math.inf))
        for at, own in zip(x, runs, strict=True) if at == x.max()
    ]  # fmt: skip


def _evaluate(theta: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Returns log y of the law: [..., n] for theta [..., 3] and u [n]."""
    return np.log(np.exp(theta[..., :1] - theta[..., 1:2] * u) + theta[..., 2:])


def _bounds(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the least and the largest theta for y [n]."""
    low = np.array([math.log(ABSENT * y.min()), 0.0, 0.0])
    return low, np.array([math.log(10 * y.max()), MAX_EXPONENT, y.max()])


def _starts(u: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Returns a theta for each exponent of STARTS: A' and E by least squares."""
    starts = []
    for exponent in STARTS:
        (size, floor), _ = scipy.optimize.nnls(np.stack([np.exp(-exponent * u), u * 0 + 1]).T, y)
        starts.append(np.array([math.log(size or 0.1 * y.min()), exponent, floor]))
    return [np.clip(start, *_bounds(y)) for start in starts]
