"""Fits of scaling laws: a robust loss, many starts, bootstrap intervals, the largest size held out.

As in Hoffmann et al. (2022, arXiv:2203.15556, section 3.3), a fit begins from a grid of starts and
minimises a robust loss of differences of logs. It has three steps: a search from every start with a
wide scale; from the best of these, a fit with Hoffmann's scale of 1e-3, nearly the absolute error;
from there, a fit with the scale of the residuals (Huber's 1.345 standard deviations, estimated from
the median absolute residual). The last step is needed because a fit of absolute errors goes exactly
through as many points as there are parameters, and a bootstrap of its residuals is too narrow.
scipy's `least_squares` minimises a smooth form of Huber's loss, soft_l1, with bounds.

Intervals are a parametric bootstrap at the measured sizes: a resample is the fitted law plus noise
drawn over points and over seeds (`law_forms.Noise`), fitted again.
"""

# The stubs of pandas are narrower than what it accepts.
# pyright: reportArgumentType=false

import dataclasses
import math

import numpy as np
import scipy.optimize

from scalelab.lab.compare import law_forms
from scalelab.lab.compare.estimates import LEVEL
from scalelab.lab.compare.law_forms import FORMS, Form, Noise, Points

# Residuals below the scale of the loss count by their square, above it by their size.
SEARCH_SCALE, SCALE = 0.05, 1e-3  # of the search and of the second step
HUBER = 1.345 * 1.4826  # scale of the last step, in median absolute residuals
RESAMPLES = 200
MORE_POINTS = 2  # a fit needs this many different x more than it has parameters
MIN_SPAN = 4.0  # a fit needs this ratio of the largest x to the smallest
MAX_EXTRAPOLATION = 10.0  # factor beyond the measured x
LIMIT = 1e-6  # a parameter this close to a bound is at the bound
NEGLIGIBLE = math.log(10)  # a floor this close to its lower bound is at the bound too
TOLERANCE = 1e-6  # relative change of loss and parameters at which a fit stops
ENDS = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)


@dataclasses.dataclass(frozen=True)
class Interval:
    """A value with its 95% interval; NaN if the points do not determine it."""

    value: float
    low: float
    high: float

    def __contains__(self, other: float) -> bool:
        return self.low <= other <= self.high


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A point of the largest size, and its prediction by a fit to the others."""

    x: float
    observed: float  # the mean of its runs
    predicted: Interval  # with the interval for a mean of equally many runs

    @property
    def relative_error(self) -> float:
        """Predicted minus observed, over observed."""
        return self.predicted.value / self.observed - 1

    @property
    def inside(self) -> bool:
        """Whether the observed value lies in the interval."""
        return self.observed in self.predicted


@dataclasses.dataclass(frozen=True, eq=False)
class Law:
    """A fitted law."""

    form: Form  # the functional form
    points: Points  # the points that it was fitted to
    theta: np.ndarray  # its parameters inside the fit, [p]
    samples: np.ndarray  # theta of each resample, [resamples, p]
    noise: Noise  # of the points
    unit: float  # the number that y was divided by: 1, or the mean score

    @property
    def parameters(self) -> dict[str, Interval]:
        """Parameters in natural units by name; NaN if the points do not determine them."""
        center = float(np.log(self.points.x).mean())
        values = self.form.natural(self.theta, center, self.unit)
        ends = np.percentile(self.form.natural(self.samples, center, self.unit), ENDS, axis=0)
        for end, theta in zip(ends, np.percentile(self.samples, ENDS, axis=0), strict=True):
            at = self._at_bounds(theta)
            at[0] |= at[1]  # an unbounded exponent leaves the size of the term unbounded
            end[at] = math.nan
        undetermined = [name in self.undetermined for name in self.form.parameters]
        columns = [np.where(undetermined, math.nan, column) for column in (values, *ends)]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {n: Interval(*row) for n, row in zip(self.form.parameters, rows, strict=True)}

    @property
    def at_limits(self) -> list[str]:
        """Parameters at a bound of their allowed range."""
        at = self._at_bounds(self.theta)
        return [name for name, here in zip(self.form.parameters, at, strict=True) if here]

    @property
    def undetermined(self) -> list[str]:
        """Parameters that the points do not determine: those at bounds and those tied to them.

        A term whose size or exponent is at a bound is absent, or a constant beside the offset.
        """
        names, at = self.form.parameters, self._at_bounds(self.theta)
        if at[:2].any():
            at[:2] = True
            at[2:] |= self.theta[1] < LIMIT
        return [name for name, here in zip(names, at, strict=True) if here]

    @property
    def residuals(self) -> np.ndarray:
        """Measured minus law for each point, [n]: of logs, or of scores over their mean."""
        means = [self.form.scale(run, self.unit).mean() for run in self.points.runs]
        return np.array(means) - self.form.value(self.theta, _center(self.points.x, self.points.x))

    @property
    def r_squared(self) -> float:
        """Explained share of the variance of the points, on the scale of `residuals`."""
        means = np.array([self.form.scale(run, self.unit).mean() for run in self.points.runs])
        total = np.square(means - means.mean()).sum()
        return float(1 - np.square(self.residuals).sum() / total) if total else math.nan

    def at(self, x: np.ndarray) -> np.ndarray:
        """Returns the law at x [m], in the units of y: [m]."""
        return self._natural(self.form.value(self.theta, _center(x, self.points.x)))

    def check_determined(self) -> None:
        """Raises a ValueError if a parameter is at a bound: the points do not determine the law."""
        if self.at_limits:
            raise ValueError(
                f"{self.form.text}: {', '.join(self.at_limits)} at the end of the allowed range, so"
                " the points do not determine the law and it predicts nothing: choose another form,"
                " or wider sizes"
            )

    def predict(
        self, x: float, num_runs: int | None = 1, limit: float = MAX_EXTRAPOLATION
    ) -> Interval:
        """Predicts y at x.

        Args:
          x: the input.
          num_runs: the interval is for the mean of this many new runs; None: for the law itself.
          limit: largest factor beyond the measured x, up or down; math.inf for no limit.

        Raises:
          ValueError: x is farther away than `limit` allows.
        """
        at, low, high = np.array([x]), self.points.x.min(), self.points.x.max()
        if not low / limit <= x <= high * limit:
            raise ValueError(
                f"x = {x:.4g} is more than a factor {limit:g} outside the measured range"
                f" {low:.4g} to {high:.4g}: measure closer, or ask for a wider limit"
            )
        drawn = self.form.value(self.samples, _center(at, self.points.x))[:, 0]
        if num_runs is not None:
            rng = np.random.default_rng(0)
            drawn = drawn + [self.noise.draw(rng, [num_runs])[0].mean() for _ in drawn]
        ends = np.percentile(self._natural(drawn), ENDS)
        return Interval(float(self.at(at)[0]), float(ends[0]), float(ends[1]))

    def _natural(self, z: np.ndarray) -> np.ndarray:
        return np.exp(z) if self.form.logarithmic else self.unit * z

    def _at_bounds(self, theta: np.ndarray) -> np.ndarray:
        values = np.concatenate(self.points.runs) / self.unit
        low, high = self.form.bounds(values, self.unit)
        at = np.minimum(theta - low, high - theta) < LIMIT
        if self.form.offset and self.form.logarithmic:
            at[-1] |= theta[-1] - low[-1] < NEGLIGIBLE
        return at


def fit(points: Points, form: str = "power", *, resamples: int = RESAMPLES, seed: int = 0) -> Law:
    """Fits the law of a form of FORMS, with a bootstrap of `resamples`.

    Raises:
      ValueError: unknown form, points too few or too close, or a y that the form cannot have.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; there are {', '.join(FORMS)}")
    law_forms.check(points, FORMS[form], MORE_POINTS, MIN_SPAN)
    return _fit(points, FORMS[form], resamples, seed)


def validate(law: Law, *, seed: int = 0) -> list[HeldOut]:
    """Fits again without the largest size, and predicts the points of that size.

    The intervals assume that the form is right: if there are seeds, only seeds scatter. A form with
    the wrong curvature therefore fails the check; its own misfit does not widen the intervals.

    Raises:
      ValueError: too few points remain: a fit needs one point more than parameters.
    """
    largest = law.points.x == law.points.x.max()
    rest, last = law.points.subset(~largest), law.points.subset(largest)
    law_forms.check(rest, law.form, MORE_POINTS - 1, 1.0)
    again = _fit(rest, law.form, len(law.samples), seed, only_seeds=True)
    return [
        HeldOut(float(x), float(runs.mean()), again.predict(float(x), len(runs), math.inf))
        for x, runs in zip(last.x, last.runs, strict=True)
    ]


def _minimise(
    form: Form, u: np.ndarray, z: np.ndarray, start: np.ndarray, bounds: np.ndarray, scale: float
) -> tuple[np.ndarray, float]:
    """Minimises the robust loss of z [n] from one start [p]; returns theta and the loss."""
    found = scipy.optimize.least_squares(
        lambda theta: form.value(theta, u) - z,
        np.clip(start, *bounds),
        jac=lambda theta: form.evaluate(theta, u)[1],
        method="dogbox", bounds=bounds, loss="soft_l1", f_scale=scale, x_scale="jac",
        ftol=TOLERANCE, xtol=TOLERANCE, gtol=TOLERANCE,
    )  # fmt: skip
    return found.x, float(found.cost)


def _fit(points: Points, form: Form, resamples: int, seed: int, *, only_seeds: bool = False) -> Law:
    values = np.concatenate(points.runs)
    unit = 1.0 if form.logarithmic else float(np.abs(values).mean()) or 1.0
    counts = [len(run) for run in points.runs]
    u = np.repeat(_center(points.x, points.x), counts)
    z = form.scale(values, unit)
    bounds = form.bounds(values / unit, unit)
    starts = form.starts(u, values / unit)
    fits = [_minimise(form, u, z, start, bounds, SEARCH_SCALE) for start in starts]
    theta = min(fits, key=lambda found: found[1])[0]
    theta, _ = _minimise(form, u, z, theta, bounds, SCALE)
    # The p smallest residuals are 0 by construction and carry no information on noise.
    sizes = np.sort(np.abs(form.value(theta, u) - z))[len(theta) :]
    scale = max(SCALE, HUBER * float(np.median(sizes)))
    theta, _ = _minimise(form, u, z, theta, bounds, scale)
    groups = [form.scale(run, unit) for run in points.runs]
    centers = form.value(theta, _center(points.x, points.x))
    noise = law_forms.estimate_noise(groups, centers, len(theta), only_seeds=only_seeds)
    rng, law = np.random.default_rng(seed), form.value(theta, u)
    samples = [
        _minimise(form, u, law + np.concatenate(noise.draw(rng, counts)), theta, bounds, scale)[0]
        for _ in range(resamples)
    ]
    return Law(form, points, theta, np.array(samples), noise, unit)


def _center(x: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns u [m] of x [m], centred as for a law that is fitted to the points [n]."""
    return np.log(x) - np.log(points).mean()
