"""Shapes of one size, and compound scaling (protocol 7.5.5, after Tan and Le 2019, EfficientNet).

The equation is L = alpha^phi, H = beta^phi, A near H/64, with alpha beta^2 = 2, so that L H^2 is
2^phi and N is 12 * 2^phi: one step of phi doubles the size. A base shape fixes phi = log2(L H^2),
and with it alpha = L^(1/phi) and beta = H^(1/phi).

Shapes are whole numbers. At a phi, or a size N with phi = log2(N / 12):

1. L is alpha^phi, rounded;
2. the wanted width is sqrt(2^phi / L): beta^phi but for the rounding of L, so that a rounded depth
   does not change the size, by up to an eighth at four layers;
3. A is that width over 64, rounded, at least 2;
4. H is the multiple of A nearest to that width, so that A divides H.

From (2,104,3) this gives the protocol's (7,469,4), (9,585,5), (13,832,5) at their own sizes,
10.6M, 20.5M and 41.5M; the protocol prints no phi. Without step 2 a size of 10.6M gives (7,455,4).

A grid follows steps 3 and 4 at given depths: at N = 0.39M it is the protocol's nine shapes.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scalelab.config.pretraining import Shape

if TYPE_CHECKING:
    from scalelab.lab.load.study_runs import Point, Study

HEAD_SIZE = 64
MIN_HEADS = 2
DEPTHS = (2, 3, 4, 6, 8, 10, 12, 14, 16)  # of the protocol's grid
EQUAL = 1.1  # sizes N whose ratio is at most this are equal: the thesis pairs 3.50 M and 3.54 M
NEAR = math.sqrt(EQUAL) - 1  # two shapes within this share of a size are still equal
NUM_BEST = 3  # number of shapes of least loss among which the best score is chosen
PER_SQUARE = Shape(1, 1, 1).n_model  # N of one layer of width 1


def near_width(width: float, num_layers: int) -> Shape:
    """Returns the shape nearest to a width, with heads of about 64 units that divide it."""
    num_heads = max(MIN_HEADS, _round(width / HEAD_SIZE))
    return Shape(num_heads, num_heads * max(1, _round(width / num_heads)), num_layers)


def grid(n_model: float, depths: Sequence[int] = DEPTHS) -> list[Shape]:
    """Returns shapes of one size N = 12 L H^2 at some depths L, the shallowest first.

    They are within 5% of N, so that any two count as equal (EQUAL). Narrow shapes of a small N are
    too coarse and are left out.

    Raises:
      ValueError: there is none.
    """
    shapes = [near_width(math.sqrt(n_model / (PER_SQUARE * depth)), depth) for depth in depths]
    ratios = [max(shape.n_model / n_model, n_model / shape.n_model) for shape in shapes]
    near = [shape for shape, ratio in zip(shapes, ratios, strict=True) if ratio <= 1 + NEAR]
    if not near:
        raise ValueError(
            f"no shape of {', '.join(map(str, depths))} layers has N within {NEAR:.0%} of"
            f" {n_model:,.0f}: ask for a larger N or for other depths"
        )
    return near


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The coefficients that a base shape fixes."""

    base: Shape  # the shape

    @property
    def phi(self) -> float:
        """The base's compound coefficient, log2(L H^2)."""
        return size_to_phi(self.base.n_model)

    @property
    def alpha(self) -> float:
        """The growth of depth for one step of phi."""
        return self.base.num_layers ** (1 / self.phi)

    @property
    def beta(self) -> float:
        """The growth of width for one step of phi."""
        return self.base.width ** (1 / self.phi)

    def at(self, phi: float) -> Shape:
        """Returns the shape at a compound coefficient, rounded as the module's docstring says.

        Raises:
          ValueError: phi gives no shape.
        """
        if not 1 <= phi <= 60:
            raise ValueError(f"phi = {phi:g} gives no shape: N = 12 * 2^phi, and 15 is 0.39M")
        depth = max(1, _round(self.alpha**phi))
        return near_width(math.sqrt(2**phi / depth), depth)


def size_to_phi(n_model: float) -> float:
    """Returns the compound coefficient of a size N > 0: log2(N / 12)."""
    return math.log2(n_model / PER_SQUARE)


# --- The base shape of a grid of one size ---------------------------------------------------------


def choose(
    losses: Mapping[Shape, float], scores: Mapping[Shape, float]
) -> tuple[Shape, list[Shape]]:
    """Chooses the base of a grid: the best score among the NUM_BEST shapes of least loss.

    Returns:
      The base, which without any score has the least loss; and the shapes it was chosen from, the
      least loss first.
    """
    best = sorted(losses, key=losses.__getitem__)[:NUM_BEST]
    return max(best, key=lambda shape: scores.get(shape, -math.inf)), best


def describe_bases(study: "Study", points: "Sequence[Point]") -> list[str]:
    """Returns base, alpha and beta of each grid of one size among the rows of a table.

    A score is the mean main score over GLUE-Large's tasks, or over all if the study has none of
    these. A grid that is not finished has no base yet.
    """
    from scalelab.lab.compare.scores import LARGE_TASKS
    from scalelab.lab.load import frame
    from scalelab.lab.load.task_runs import MAIN, TASK_SCORES

    tasks, found = study.facts.tasks, []
    scored = [t for t in tasks if t in LARGE_TASKS] or [t for t in tasks if t in MAIN]
    keys = [TASK_SCORES[MAIN[task]] for task in scored]
    for system, variant in dict.fromkeys((p.system, p.variant) for p in points):
        own = {p.shape: p.runs for p in points if (p.system, p.variant) == (system, variant)}
        sizes = [shape.n_model for shape in own]
        if len(own) < NUM_BEST or max(sizes) > EQUAL * min(sizes):
            continue
        if not all(run.finished for runs in own.values() for run in runs):
            continue
        losses = {x: float(np.mean([r.loss or math.nan for r in own[x]])) for x in own}
        runs = [run for shape in choose(losses, {})[1] for run in own[shape]]
        ended = [[r for r in run.tasks[t].runs if not r.unfinished] if t in run.tasks else ()
                 for run in runs for t in tasks]  # fmt: skip
        if any(len(tuned) < study.facts.finetune_seeds for tuned in ended):
            continue
        scores: dict[Shape, float] = {}
        for shape in {run.shape for run in runs if keys}:
            tuned = [frame.mean_score(run.tasks, keys) for run in own[shape]]
            if known := [score for score in tuned if score is not None]:
                scores[shape] = float(np.mean(known))
        base, best = choose(losses, scores)
        scaling = Scaling(base)
        reason = "best mean score" if tasks else "least loss"
        found.append(
            f"Compound scaling of {system} starts from {base}, the {reason} among the shapes of"
            f" least mean loss ({', '.join(map(str, best))}); the differences may be small."
            f" phi = log2(L H^2) = {scaling.phi:.3f}, alpha = L^(1/phi) = {scaling.alpha:.4f},"
            f" beta = H^(1/phi) = {scaling.beta:.4f}. One step of phi up is"
            f" {scaling.at(scaling.phi + 1)}."
        )
    return found


def _round(value: float) -> int:
    """Returns the whole number nearest to a positive value; a half goes up."""
    return int(np.floor(value + 0.5))
