"""Functional forms of scaling laws, the points they are fitted to, and how these scatter.

| name | law | for |
|---|---|---|
| power | E + A x^-a | a loss that falls to E (Henighan et al. 2020, arXiv:2010.14701) |
| plain | A x^-a, a of either sign | costs, and losses far above their floor (Kaplan et al. 2020) |
| rising | C - A x^-a | a score that rises to its ceiling C |

The first two are fitted on the log scale, as the log of a sum of exponentials that are linear in
theta (Hoffmann et al. 2022, arXiv:2203.15556, appendix D.3). Scores may be 0 or below, so `rising`
is fitted on the scale of the scores, in units of their mean.

Theta holds log A, a, and log E or C, with x replaced by exp(u), u = log(x / x0) and x0 the
geometric mean of the data. The term is then exp(log A - a u), and its size and exponent are nearly
independent.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.optimize
import scipy.stats

from scalelab.lab.compare.estimates import UPPER, satterthwaite

MAX_EXPONENT = 5.0
EXPONENTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)  # grid of starting values
ABSENT = 1e-4  # a term smaller than this share of the smallest loss counts as absent


@dataclasses.dataclass(frozen=True)
class Form:
    """A law with free parameters theta."""

    name: str  # its name in the table above
    text: str  # the law, for tables
    parameters: tuple[str, ...]  # their names in natural units, in the order of theta
    logarithmic: bool = True  # whether data and law are compared on the log scale
    offset: bool = True  # whether the law has a constant term

    def evaluate(self, theta: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the law at u [n] on the scale of comparison, [..., n], and its derivatives.

        Derivatives by theta [..., p] are [..., n, p]; for the log of a sum, they are its shares.
        """
        term = theta[..., :1] - theta[..., 1:2] * u
        last = theta[..., 2:] if self.offset else -np.inf
        if not self.logarithmic:
            term = np.exp(term)
            return last - term, np.stack([-term, term * u, np.ones_like(term)], axis=-1)
        total = np.logaddexp(term, last)
        share = np.exp(term - total)
        slopes = np.stack([share, -share * u, np.exp(last - total)], axis=-1)
        return total, slopes[..., : len(self.parameters)]

    def value(self, theta: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Returns the law on the scale of comparison: [..., n] for theta [..., p], u [n]."""
        return self.evaluate(theta, u)[0]

    def scale(self, y: np.ndarray, unit: float) -> np.ndarray:
        """Returns measurements on the scale of comparison: logs, or scores in units."""
        return np.log(y) if self.logarithmic else y / unit

    def starts(self, u: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Returns starting points [starts, p]: exponents on a grid, the rest by least squares.

        y [n] is in the units of comparison, without the log; u is [n].
        """
        found = []
        for exponent in EXPONENTS if self.offset else (*(-a for a in EXPONENTS), *EXPONENTS):
            term = np.exp(-exponent * u) * (1 if self.logarithmic else -1)
            columns = np.column_stack([term, np.ones(len(u))][: 1 + self.offset])
            weights = 1 / y if self.logarithmic else np.ones(len(y))
            sizes, _ = scipy.optimize.nnls(columns * weights[:, None], y * weights)
            logs = np.log(np.maximum(sizes, ABSENT * float(np.abs(y).max())))
            found.append([logs[0], exponent, *(logs if self.logarithmic else sizes)[1:]])
        return np.array(found)

    def bounds(self, y: np.ndarray, unit: float) -> np.ndarray:
        """Returns the bounds [2, p] of theta for y [n]; a score's ceiling is at most 1 or 100."""
        ends = [(-50.0, 50.0), (0.0 if self.offset else -MAX_EXPONENT, MAX_EXPONENT)]
        if not self.logarithmic:
            best = float(np.abs(y).max()) * unit
            perfect = 1.0 if best <= 1 else 100.0 if best <= 100 else np.inf
            ends.append((0.0, perfect / unit))
        elif self.offset:
            ends.append((float(np.log(ABSENT * y.min())), float(np.log(y.max()))))
        return np.array(ends).T

    def natural(self, theta: np.ndarray, u0: float, unit: float) -> np.ndarray:
        """Returns parameters [..., p] as the law is written, of theta [..., p]; u0 is log x0."""
        log_a, exponent, last = theta[..., :1], theta[..., 1:2], theta[..., 2:]
        last = np.exp(last) if self.logarithmic else last
        parts = [unit * np.exp(log_a + exponent * u0), exponent, unit * last]
        return np.concatenate(parts, axis=-1)


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("power", "E + A x^-a", ("A", "a", "E")),
        Form("plain", "A x^-a", ("A", "a"), offset=False),
        Form("rising", "C - A x^-a", ("A", "a", "C"), logarithmic=False),
    )
}


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """Measurements."""

    x: np.ndarray  # input of each point, [n]
    runs: tuple[np.ndarray, ...]  # results of the runs of each point, n arrays [k]

    def subset(self, keep: np.ndarray) -> "Points":
        """Returns the points where `keep` [n] is true."""
        return Points(self.x[keep], tuple(r for r, k in zip(self.runs, keep, strict=True) if k))


def gather(x: Sequence[float], y: Sequence[float], settings: Sequence[str] | None = None) -> Points:
    """Groups runs into points.

    Args:
      x: the inputs, [runs].
      y: the results, [runs].
      settings: one a run; runs of one setting are one point at their mean x. None: group by x.

    Raises:
      ValueError: there is none, a number is not finite, or an x is not above 0.
    """
    inputs, values = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if not len(values) or not (
        np.isfinite(inputs).all() and np.isfinite(values).all() and (inputs > 0).all()
    ):
        raise ValueError("every x must be above 0, and every x and y finite: drop the others")
    key = inputs if settings is None else np.asarray(settings)
    group = np.unique(key, return_inverse=True)[1]
    means = np.array([inputs[group == i].mean() for i in range(group.max() + 1)])
    order = np.argsort(means, kind="stable")
    return Points(means[order], tuple(values[group == i] for i in order))


def check(points: Points, form: Form, more: int, span: float) -> None:
    """Checks that points can carry a law.

    Raises:
      ValueError: too few different x, too small a range of x, or a y that the form cannot have.
    """
    n, needed = len(np.unique(points.x)), len(form.parameters) + more
    if n < needed:
        raise ValueError(
            f"{form.text} has {len(form.parameters)} parameters and needs {needed} different x,"
            f" got {n}: add sizes, or choose a form with fewer parameters"
        )
    low, high = points.x.min(), points.x.max()
    if high < span * low:
        raise ValueError(
            f"x spans a factor of {high / low:.3g}, from {low:.4g} to {high:.4g}; a law needs"
            f" {span:g} or more: add smaller or larger ones"
        )
    if form.logarithmic and min(run.min() for run in points.runs) <= 0:
        raise ValueError(f"{form.text} needs values above 0, such as losses or costs")


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """How points and runs scatter around a law, on the scale of comparison.

    Runs of a point (seeds) scatter around their mean. The means scatter around the law by more than
    the seeds explain, or by all of it where every point has one run. A bootstrap draws both parts,
    scaled to unbiased variances and widened from the normal to Student's t, because a handful of
    points estimates its own noise badly.
    """

    # Residuals of points that seeds do not explain, [n]; 0 where seeds explain them.
    between: np.ndarray
    # Deviations of runs from their point's mean; empty where every point has one run.
    within: np.ndarray
    widening: float  # Student's quantile over the normal one (Satterthwaite's degrees of freedom)

    def draw(self, rng: np.random.Generator, num_runs: Sequence[int]) -> list[np.ndarray]:
        """Draws the noise of every run of points that have `num_runs` each."""
        drawn = []
        for num in num_runs:
            noise = np.full(num, rng.choice(self.between))
            if len(self.within):
                noise += rng.choice(self.within, num)
            drawn.append(self.widening * noise)
        return drawn


def estimate_noise(
    groups: Sequence[np.ndarray], law: np.ndarray, num_parameters: int, *, only_seeds: bool = False
) -> Noise:
    """Estimates the noise of points around a fitted law.

    Args:
      groups: the runs of each point on the scale of comparison, n arrays [k].
      law: the law on the same scale, [n].
      num_parameters: number of fitted parameters, below n.
      only_seeds: assume that the form is right, so that seeds alone scatter, if there are any.
    """
    residuals = np.array([group.mean() for group in groups]) - law
    spare = len(residuals) - num_parameters
    between = float(np.square(residuals).sum()) / spare
    several = [group for group in groups if len(group) > 1]
    degrees = sum(len(group) - 1 for group in several)
    deviations = [(g - g.mean()) * math.sqrt(len(g) / (len(g) - 1)) for g in several]
    within = np.concatenate(deviations) if deviations else np.zeros(0)
    squares = sum(float(np.square(g - g.mean()).sum()) for g in several)
    means_variance = squares / degrees * np.mean([1 / len(g) for g in groups]) if degrees else 0.0
    unexplained = 0.0 if only_seeds and degrees else max(0.0, between - float(means_variance))
    total = unexplained + means_variance
    centered = residuals - residuals.mean()
    spread = float(np.square(centered).mean())
    if total == 0 or spread == 0:
        return Noise(np.zeros(1), within, 1.0)
    _, spare = satterthwaite([(unexplained, spare), (float(means_variance), degrees)])
    widening = scipy.stats.t.ppf(UPPER, spare) / scipy.stats.norm.ppf(UPPER)
    return Noise(centered * math.sqrt(unexplained / spread), within, float(widening))
