"""How measurements scatter around a law: over the runs of a point, and from point to point.

Runs of a point (seeds) scatter around their mean. The means scatter around the law by more than
seeds explain, or all of it where every point has one run. Noise for a bootstrap is drawn from both:
deviations over seeds, and residuals over points, shrunk to the part that seeds leave unexplained.
Both are scaled to unbiased variances, and by Student's t over the normal quantile, with
Satterthwaite's degrees of freedom, because five points tell little of their own noise.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.stats

from scalelab.lab.compare.estimates import LEVEL


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """How means of points and runs of a point scatter, on the scale of comparison.

    Attributes:
      between: residuals of points that seeds do not explain, [n]; all 0 where seeds explain them.
      within: deviations of runs from the mean of their point; empty where every point has one run.
      widening: Student's quantile over the normal one.
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


def estimate(
    groups: Sequence[np.ndarray],
    law: np.ndarray,
    num_parameters: int,
    *,
    only_seeds: bool = False,
) -> Noise:
    """What the points show of their noise around a fitted law.

    Args:
      groups: the runs of each point on the scale of comparison, n arrays [k].
      law: on the same scale, [n].
      num_parameters: that were fitted, fewer than n.
      only_seeds: take the form for right: nothing but seeds scatters, if there are any.
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
    unexplained = max(0.0, between - float(of_means))
    if only_seeds and degrees:
        unexplained = 0.0
    total = unexplained + of_means
    centered = residuals - residuals.mean()
    spread = float(np.square(centered).mean())
    if total == 0 or spread == 0:
        return Noise(np.zeros(1), within, 1.0)
    parts = unexplained**2 / spare + (of_means**2 / degrees if degrees else 0.0)
    upper = (1 + LEVEL) / 2
    widening = scipy.stats.t.ppf(upper, total**2 / parts) / scipy.stats.norm.ppf(upper)
    return Noise(centered * math.sqrt(unexplained / spread), within, float(widening))
