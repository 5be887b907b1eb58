"""Shapes of one size, and compound scaling (protocol 7.5.5, after Tan and Le 2019, EfficientNet).

The equation is L = alpha^phi, H = beta^phi, A near H/64, with alpha beta^2 = 2, so that L H^2 is
2^phi and N is 12 * 2^phi: one step of phi doubles the size. A base shape fixes phi = log2(L H^2),
and with it alpha = L^(1/phi) and beta = H^(1/phi).

Shapes are whole numbers, so at a phi (or a size N, which is the same: phi = log2(N / 12))

1. L is alpha^phi, rounded;
2. the width that is wanted is sqrt(2^phi / L): beta^phi but for the rounding of L, so that a
   rounded depth does not move the size, which at four layers would be by up to an eighth;
3. A is that width over 64, rounded, at least 2;
4. H is the multiple of A nearest to that width, so that A divides H.

From (2,104,3) this gives the protocol's (7,469,4), (9,585,5), (13,832,5) at their own sizes,
10.6M, 20.5M and 41.5M, and also at 10.41M doubled twice (phi = 19.727, 20.727, 21.727). The
protocol prints no phi. With H = beta^phi taken at its word, step 2 left out, the same shapes come
out at phi within 19.84-19.89, 20.55-20.60 and 21.69-21.74 (with phi = 15 for the base, as it
rounds): these are not whole steps apart, and a size of 10.6M would give (7,455,4).

A grid has the same steps 3 and 4 at given depths: at N = 0.39M the protocol's nine shapes.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from scalelab.lab.reading.study_runs import Shape

HEAD_SIZE = 64
MIN_HEADS = 2
DEPTHS = (2, 3, 4, 6, 8, 10, 12, 14, 16)  # of the protocol's grid
EQUAL = 1.1  # sizes N whose ratio is at most this are equal: the thesis pairs 3.50 M and 3.54 M
NEAR = math.sqrt(EQUAL) - 1  # off a size by so much at most, two shapes are still equal
NUM_BEST = 3  # shapes of the least loss, of which the best score wins


def read(text: str) -> Shape:
    """Reads "2x104x3": heads, width, layers; heads need not divide the width.

    Raises:
      ValueError: it is not written so.
    """
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text.strip())
    if not found:
        raise ValueError(f"{text!r} is no shape: expected heads x width x layers, as 2x104x3")
    return Shape(*map(int, found.groups()))


def parse(text: str) -> Shape:
    """Reads the shape of a net that can be built.

    Raises:
      ValueError: it is not written so, or heads do not divide width.
    """
    shape = read(text)
    if shape.width % shape.num_heads:
        raise ValueError(f"{text}: {shape.num_heads} heads do not divide a width of {shape.width}")
    return shape


def near_width(width: float, num_layers: int) -> Shape:
    """The shape whose width is nearest to `width`, with heads of about 64 that divide it."""
    num_heads = max(MIN_HEADS, _nearest(width / HEAD_SIZE))
    return Shape(num_heads, num_heads * max(1, _nearest(width / num_heads)), num_layers)


def grid(n_model: float, depths: Sequence[int] = DEPTHS) -> list[Shape]:
    """Shapes of one size, the shallow ones first.

    Args:
      n_model: N = 12 L H^2.
      depths: L of each.

    Returns:
      Those within 5% of N, so that any two count as equal (EQUAL): the narrow ones of a
      small N are too coarse.

    Raises:
      ValueError: there is none.
    """
    shapes = [near_width(math.sqrt(n_model / (12 * depth)), depth) for depth in depths]
    ratios = [max(shape.n_model / n_model, n_model / shape.n_model) for shape in shapes]
    near = [shape for shape, ratio in zip(shapes, ratios, strict=True) if ratio <= 1 + NEAR]
    if not near:
        raise ValueError(
            f"no shape of {', '.join(map(str, depths))} layers has N within {NEAR:.0%} of"
            f" {n_model:,.0f}; ask for a larger N or for other depths"
        )
    return near


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The coefficients that a base shape fixes.

    Attributes:
      base: the shape.
    """

    base: Shape

    @property
    def phi(self) -> float:
        """The base's compound coefficient, log2(L H^2)."""
        return math.log2(self.base.num_layers * self.base.width**2)

    @property
    def alpha(self) -> float:
        """The growth of depth for one step of phi."""
        return self.base.num_layers ** (1 / self.phi)

    @property
    def beta(self) -> float:
        """The growth of width for one step of phi."""
        return self.base.width ** (1 / self.phi)

    def at(self, phi: float) -> Shape:
        """The shape at a compound coefficient; the rounding is told above.

        Raises:
          ValueError: phi is not a number that gives a shape.
        """
        if not 1 <= phi <= 60:
            raise ValueError(f"phi = {phi:g} gives no shape: N = 12 * 2^phi, and 15 is 0.39M")
        depth = max(1, _nearest(self.alpha**phi))
        return near_width(math.sqrt(2**phi / depth), depth)


def phi_of(n_model: float) -> float:
    """The compound coefficient of a size N > 0: log2(N / 12)."""
    return math.log2(n_model / 12)


def choose(
    losses: Mapping[Shape, float], scores: Mapping[Shape, float], num_best: int = NUM_BEST
) -> tuple[Shape, list[Shape]]:
    """Chooses the base from a grid: the best score among the shapes of the least loss.

    Args:
      losses: of each shape.
      scores: of those that were fine-tuned; none at all: the least loss wins.
      num_best: how many of the least loss are looked at.

    Returns:
      The base, and the shapes that were looked at, the least loss first.

    Raises:
      ValueError: there is no shape, or of those looked at only some have a score.
    """
    if not losses:
        raise ValueError("no shape has a loss")
    looked_at = sorted(losses, key=losses.__getitem__)[:num_best]
    missing = [shape for shape in looked_at if shape not in scores]
    if not scores:
        return looked_at[0], looked_at
    if missing:
        raise ValueError(
            f"no score for {', '.join(map(str, missing))}, among the {len(looked_at)} of the least"
            " loss: fine-tune it, or look at fewer"
        )
    return max(looked_at, key=scores.__getitem__), looked_at


def _nearest(value: float) -> int:
    """The whole number nearest to a positive value; a half goes up."""
    return int(np.floor(value + 0.5))
