"""Fits of scaling laws: a robust loss over many starts, intervals, a check on the largest size.

As in Hoffmann et al. (2022, arXiv:2203.15556, section 3.3) the loss is Huber's, with delta 1e-3, of
the difference of logs, and the fit begins from a grid of starts. With so small a delta the loss is
nearly the absolute error, which an outlier cannot pull away. They minimise it by L-BFGS, which
steps slowly over its kinks, and stopped too early for them (Besiroglu et al. 2024,
arXiv:2404.10102); `robust` finds the same minimum, for a whole bootstrap at once.

Intervals are a bootstrap with the sizes held, since whoever ran the experiment chose them: each
resample is the fitted law plus noise that is drawn over points and over seeds (`scatter`), fitted
again.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from scalelab.lab.compare.estimates import LEVEL
from scalelab.lab.fits import robust, scatter
from scalelab.lab.fits.forms import FORMS, Bounds, Form
from scalelab.lab.fits.law_points import MIN_SPAN, MORE_POINTS, Points, check

DELTA = 1e-3
RESAMPLES = 500
MAX_EXTRAPOLATION = 10.0  # beyond the x that were measured
LIMIT = 1e-6  # a parameter so close to the end of what is allowed stands at it
ENDS = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)


@dataclasses.dataclass(frozen=True)
class Interval:
    """A value, and between what it lies with 95%."""

    value: float
    low: float
    high: float

    def __contains__(self, other: float) -> bool:
        return self.low <= other <= self.high


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A point of the largest size, and what the others predict for it.

    Attributes:
      x: its inputs.
      observed: the mean of its runs.
      predicted: with the interval in which the mean of so many runs should lie.
    """

    x: tuple[float, ...]
    observed: float
    predicted: Interval

    @property
    def relative_error(self) -> float:
        """Predicted minus observed, over observed."""
        return (self.predicted.value - self.observed) / self.observed

    @property
    def inside(self) -> bool:
        """Whether the observed value lies in the interval."""
        return self.observed in self.predicted


@dataclasses.dataclass(frozen=True, eq=False)
class Law:
    """A fitted law.

    Attributes:
      form: which.
      points: what it was fitted to.
      theta: its parameters inside the fit, [p].
      samples: the same for each resample, [resamples, p].
      noise: of the points.
      unit: that y was divided by: 1, or the mean score.
    """

    form: Form
    points: Points
    theta: np.ndarray
    samples: np.ndarray
    noise: scatter.Noise
    unit: float

    @property
    def parameters(self) -> dict[str, Interval]:
        """In natural units, by name."""
        u0 = _center(self.points.x)
        values = self.form.natural(self.theta, u0, self.unit)
        low, high = np.percentile(self.form.natural(self.samples, u0, self.unit), ENDS, axis=0)
        return {name: Interval(float(values[i]), float(low[i]), float(high[i]))
                for i, name in enumerate(self.form.parameters)}  # fmt: skip

    @property
    def residuals(self) -> np.ndarray:
        """Measured minus law for each point, [n]: of logs, or of scores over their mean."""
        law = self.form.value(self.theta, _centered(self.points.x, self.points.x))[0]
        return self._means - law

    @property
    def r_squared(self) -> float:
        """1 - residual over total sum of squares of the points, on the scale of `residuals`."""
        total = np.square(self._means - self._means.mean()).sum()
        return float(1 - np.square(self.residuals).sum() / total) if total else math.nan

    @property
    def at_limits(self) -> list[str]:
        """Parameters that stand at the end of what is allowed: the points do not tell them."""
        return [name for name, value, (low, high)
                in zip(self.form.parameters, self.theta, self.limits, strict=True)
                if min(value - low, high - value) < LIMIT]  # fmt: skip

    @property
    def undetermined(self) -> list[str]:
        """Parameters that the points do not tell: those at their limits, and what hangs on them.

        A term whose size or exponent is at its limit is gone, or is a constant beside the offset.
        """
        d, names = self.form.num_inputs, self.form.parameters
        found = set(self.at_limits)
        for k in range(d):
            term = {names[k], names[d + k]}
            if term & found:
                found |= term
            if names[d + k] in found and self.form.offset and self.theta[d + k] < LIMIT:
                found.add(names[-1])
        return [name for name in names if name in found]

    @property
    def limits(self) -> Bounds:
        """Between what each parameter of `theta` may lie."""
        return self.form.bounds(np.concatenate(self.points.runs) / self.unit, self.unit)

    def check_determined(self) -> None:
        """Refuses to go on with a law that the points do not tell.

        Raises:
          ValueError: a parameter is at the end of what is allowed.
        """
        if self.at_limits:
            raise ValueError(
                f"{self.form.text}: {', '.join(self.at_limits)} at the end of what is allowed, so"
                " the points do not determine the law, and nothing is predicted from it: take"
                " another form, or wider sizes"
            )

    def at(self, x: np.ndarray) -> np.ndarray:
        """The law at x [m, num_inputs], without any limit, in the units of y: [m]."""
        return self._natural(self.form.value(self.theta, _centered(x, self.points.x))[0])

    def predict(
        self,
        x: Sequence[float],
        num_runs: int | None = 1,
        limit: float = MAX_EXTRAPOLATION,
        seed: int = 0,
    ) -> Interval:
        """Predicts y at x.

        Args:
          x: the inputs: one number, or N and D.
          num_runs: the interval is for the mean of so many new runs; None: for the law itself.
          limit: how far beyond the measured x, up or down, as a factor; math.inf for no limit.
          seed: of the drawn noise.

        Raises:
          ValueError: x is farther away than `limit` allows.
        """
        at = np.asarray(x, np.float64).reshape(1, -1)
        self._check_reach(at[0], limit)
        u = _centered(at, self.points.x)
        drawn = self.form.value(self.samples, u)[0][:, 0]
        if num_runs is not None:
            rng = np.random.default_rng(seed)
            drawn = drawn + [self.noise.draw(rng, [num_runs])[0].mean() for _ in drawn]
        low, high = np.percentile(self._natural(drawn), ENDS)
        return Interval(float(self.at(at)[0]), float(low), float(high))

    @property
    def _means(self) -> np.ndarray:
        """Of the runs of each point on the scale of comparison, [n]."""
        return np.array([g.mean() for g in _groups(self.form, self.points, self.unit)])

    def _natural(self, z: np.ndarray) -> np.ndarray:
        return np.exp(z) if self.form.logarithmic else self.unit * z

    def _check_reach(self, x: np.ndarray, limit: float) -> None:
        low, high = self.points.x.min(axis=0), self.points.x.max(axis=0)
        for value, lowest, highest in zip(x, low, high, strict=True):
            if not lowest / limit <= value <= highest * limit:
                raise ValueError(
                    f"x = {value:.4g} is more than a factor {limit:g} outside what was measured,"
                    f" {lowest:.4g} to {highest:.4g}: measure closer, or ask for a wider limit"
                )


def fit(
    points: Points,
    form: str = "power",
    *,
    resamples: int = RESAMPLES,
    delta: float = DELTA,
    seed: int = 0,
) -> Law:
    """Fits a law.

    Args:
      points: at least 2 more than the form has parameters, over a factor 4 in x.
      form: one of FORMS.
      resamples: of the bootstrap.
      delta: where the loss turns from square to absolute.
      seed: of the bootstrap.

    Raises:
      ValueError: unknown form, points too few or too close, or a y that the form cannot have.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; there are {', '.join(FORMS)}")
    check(points, FORMS[form], MORE_POINTS, MIN_SPAN)
    return _fit(points, FORMS[form], resamples, delta, seed)


def validate(law: Law, *, delta: float = DELTA, seed: int = 0) -> list[HeldOut]:
    """Fits again without the largest size, and predicts it.

    The intervals are those of a form that is right: where there are seeds they alone scatter, so
    that a form that does not bend as the points do is caught, not excused by how badly it fits.

    Returns:
      One for each point whose first input is the largest.

    Raises:
      ValueError: what remains is too little for a fit: it needs one point more than parameters.
    """
    largest = law.points.x[:, 0] == law.points.x[:, 0].max()
    rest = law.points.subset(~largest)
    check(rest, law.form, MORE_POINTS - 1, 1.0)
    again = _fit(rest, law.form, len(law.samples), delta, seed, only_seeds=True)
    held = law.points.subset(largest)
    return [
        HeldOut(
            tuple(float(v) for v in x),
            float(runs.mean()),
            again.predict(x, len(runs), math.inf),
        )
        for x, runs in zip(held.x, held.runs, strict=True)
    ]


# --- Inside ---------------------------------------------------------------------------------------


def _fit(
    points: Points,
    form: Form,
    resamples: int,
    delta: float,
    seed: int,
    *,
    only_seeds: bool = False,
) -> Law:
    values = np.concatenate(points.runs)
    unit = 1.0 if form.logarithmic else float(np.abs(values).mean()) or 1.0
    counts = [len(run) for run in points.runs]
    u = np.repeat(_centered(points.x, points.x), counts, axis=0)
    z = np.log(values) if form.logarithmic else values / unit
    bounds = form.bounds(values / unit, unit)
    ends, losses = robust.minimise(form, u, z, form.starts(u, values / unit), bounds, delta)
    theta = ends[losses.argmin()]
    law = form.value(theta, u)[0]
    centers = form.value(theta, _centered(points.x, points.x))[0]
    noise = scatter.estimate(
        _groups(form, points, unit), centers, len(theta), only_seeds=only_seeds
    )
    rng = np.random.default_rng(seed)
    drawn = np.array([law + np.concatenate(noise.draw(rng, counts)) for _ in range(resamples)])
    samples, _ = robust.minimise(form, u, drawn, np.tile(theta, (resamples, 1)), bounds, delta)
    return Law(form, points, theta, samples, noise, unit)


def _groups(form: Form, points: Points, unit: float) -> list[np.ndarray]:
    """The runs of each point on the scale of comparison, n arrays [k]."""
    return [np.log(run) if form.logarithmic else run / unit for run in points.runs]


def _center(x: np.ndarray) -> np.ndarray:
    """Returns log x0 of each input, [num_inputs]."""
    return np.log(x).mean(axis=0)


def _centered(x: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns u of x [m, num_inputs] amid the points [n, num_inputs]."""
    return np.log(x) - _center(points)
