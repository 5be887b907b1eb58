"""Measurements that a law is fitted to, and when they are too few to carry it."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from scalelab.lab.fits.forms import Form

MORE_POINTS = 2  # than parameters, of different x
MIN_SPAN = 4.0  # the largest x over the smallest
MIN_VALUES = 3  # different values of each input of a joint law


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """Measurements.

    Attributes:
      x: inputs of each point, [n, num_inputs].
      runs: what the runs of each point gave, n arrays [k].
    """

    x: np.ndarray
    runs: tuple[np.ndarray, ...]

    @property
    def means(self) -> np.ndarray:
        """Of the runs of each point, [n]."""
        return np.array([run.mean() for run in self.runs])

    def subset(self, keep: np.ndarray) -> "Points":
        """The points where `keep` [n] holds."""
        return Points(self.x[keep], tuple(r for r, k in zip(self.runs, keep, strict=True) if k))


def gather(
    x: Sequence[float] | Sequence[Sequence[float]],
    y: Sequence[float],
    settings: Sequence[str] | None = None,
) -> Points:
    """Puts the runs of one point together.

    Args:
      x: one input a run, or several: [runs] or [runs, num_inputs].
      y: what came out, [runs].
      settings: of each run; those of one setting are one point, at their mean x, and others are
        not, even at the same x. None: runs of the same x are one point.

    Raises:
      ValueError: lengths differ, or a number is not finite, or an x not above 0.
    """
    inputs, values = np.asarray(x, np.float64), np.asarray(y, np.float64)
    inputs = inputs[:, None] if inputs.ndim == 1 else inputs
    if len(inputs) != len(values):
        raise ValueError(f"{len(inputs)} x for {len(values)} y; one of each a run is needed")
    if not len(values):
        raise ValueError("no points to fit a law to")
    if not (np.isfinite(inputs).all() and np.isfinite(values).all() and (inputs > 0).all()):
        raise ValueError("every x must be above 0, and every x and y finite; drop the others")
    of = inputs if settings is None else np.asarray(settings)
    which = np.unique(of, axis=0, return_inverse=True)[1].reshape(-1)
    means = np.array([inputs[which == i].mean(axis=0) for i in range(which.max() + 1)])
    order = np.lexsort(means.T[::-1])
    return Points(means[order], tuple(values[which == i] for i in order))


def check(points: Points, form: Form, more: int, span: float) -> None:
    """Refuses points that cannot carry a law.

    Raises:
      ValueError: see `fit`.
    """
    n, needed = len(np.unique(points.x, axis=0)), len(form.parameters) + more
    if points.x.shape[1] != form.num_inputs:
        raise ValueError(f"{form.text} takes {form.num_inputs} inputs, got {points.x.shape[1]}")
    if n < needed:
        raise ValueError(
            f"{form.text} has {len(form.parameters)} parameters and needs {needed} different x,"
            f" got {n}: add sizes, or take a form with fewer parameters"
        )
    for column in points.x.T:
        if column.max() < span * column.min():
            raise ValueError(
                f"x spans a factor of {column.max() / column.min():.3g}, from {column.min():.4g} to"
                f" {column.max():.4g}: a law needs {span:g} or more; add smaller or larger ones"
            )
        if len(np.unique(column)) < min(needed, MIN_VALUES):
            raise ValueError(f"{form.text} needs {MIN_VALUES} different values of each input")
    if form.logarithmic and min(run.min() for run in points.runs) <= 0:
        raise ValueError(f"{form.text} is for values above 0, as a loss or a cost has them")
