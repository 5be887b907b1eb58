"""Measurements that a law is fitted to, and how they scatter around the law."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.stats

from scalelab.lab.compare.estimates import LEVEL
from scalelab.lab.compare.law_forms import Form

MORE_POINTS = 2  # a fit needs this many different x more than it has parameters
MIN_SPAN = 4.0  # a fit needs this ratio of the largest x to the smallest
MIN_VALUES = 3  # different values of each input of a joint law


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """Measurements.

    Attributes:
      x: inputs of each point, [n, num_inputs].
      runs: results of the runs of each point, n arrays [k].
    """

    x: np.ndarray
    runs: tuple[np.ndarray, ...]

    @property
    def means(self) -> np.ndarray:
        """The mean over the runs of each point, [n]."""
        return np.array([run.mean() for run in self.runs])

    def subset(self, keep: np.ndarray) -> "Points":
        """Returns the points where `keep` [n] is true."""
        return Points(self.x[keep], tuple(r for r, k in zip(self.runs, keep, strict=True) if k))


def gather(
    x: Sequence[float] | Sequence[Sequence[float]],
    y: Sequence[float],
    settings: Sequence[str] | None = None,
) -> Points:
    """Groups runs into points.

    Args:
      x: one input a run, or several: [runs] or [runs, num_inputs].
      y: the results, [runs].
      settings: of each run; runs of one setting are one point at their mean x. None: runs of equal
        x are one point.

    Raises:
      ValueError: lengths differ, a number is not finite, or an x is not above 0.
    """
    inputs, values = np.asarray(x, np.float64), np.asarray(y, np.float64)
    inputs = inputs[:, None] if inputs.ndim == 1 else inputs
    if len(inputs) != len(values):
        raise ValueError(f"got {len(inputs)} x for {len(values)} y: expected one of each a run")
    if not len(values):
        raise ValueError("no points to fit a law to")
    if not (np.isfinite(inputs).all() and np.isfinite(values).all() and (inputs > 0).all()):
        raise ValueError("every x must be above 0, and every x and y finite: drop the others")
    key = inputs if settings is None else np.asarray(settings)
    group = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    means = np.array([inputs[group == i].mean(axis=0) for i in range(group.max() + 1)])
    order = np.lexsort(means.T[::-1])
    return Points(means[order], tuple(values[group == i] for i in order))


def check(points: Points, form: Form, more: int, span: float) -> None:
    """Checks that points can carry a law.

    Raises:
      ValueError: too few different x, too small a range of x, or a y that the form cannot have.
    """
    n, needed = len(np.unique(points.x, axis=0)), len(form.parameters) + more
    if points.x.shape[1] != form.num_inputs:
        raise ValueError(f"{form.text} takes {form.num_inputs} inputs, got {points.x.shape[1]}")
    if n < needed:
        raise ValueError(
            f"{form.text} has {len(form.parameters)} parameters and needs {needed} different x,"
            f" got {n}: add sizes, or choose a form with fewer parameters"
        )
    for column in points.x.T:
        if column.max() < span * column.min():
            raise ValueError(
                f"x spans a factor of {column.max() / column.min():.3g}, from {column.min():.4g} to"
                f" {column.max():.4g}; a law needs {span:g} or more: add smaller or larger ones"
            )
        if len(np.unique(column)) < min(needed, MIN_VALUES):
            raise ValueError(f"{form.text} needs {MIN_VALUES} different values of each input")
    if form.logarithmic and min(run.min() for run in points.runs) <= 0:
        raise ValueError(f"{form.text} needs values above 0, such as losses or costs")


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """How points and runs scatter around a law, on the scale of comparison.

    Runs of a point (seeds) scatter around their mean. The means scatter around the law by more than
    the seeds explain, or by all of it where every point has one run. A bootstrap draws both parts,
    scaled to unbiased variances and widened from the normal to Student's t, because a handful of
    points estimates its own noise badly.

    Attributes:
      between: residuals of points that seeds do not explain, [n]; 0 where seeds explain them.
      within: deviations of runs from their point's mean; empty where every point has one run.
      widening: Student's quantile over the normal one (Satterthwaite's degrees of freedom).
    """

    between: np.ndarray
    within: np.ndarray
    widening: float

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
    of_means = squares / degrees * np.mean([1 / len(g) for g in groups]) if degrees else 0.0
    unexplained = 0.0 if only_seeds and degrees else max(0.0, between - float(of_means))
    total = unexplained + of_means
    centered = residuals - residuals.mean()
    spread = float(np.square(centered).mean())
    if total == 0 or spread == 0:
        return Noise(np.zeros(1), within, 1.0)
    parts = unexplained**2 / spare + (of_means**2 / degrees if degrees else 0.0)
    upper = (1 + LEVEL) / 2
    widening = scipy.stats.t.ppf(upper, total**2 / parts) / scipy.stats.norm.ppf(upper)
    return Noise(centered * math.sqrt(unexplained / spread), within, float(widening))
