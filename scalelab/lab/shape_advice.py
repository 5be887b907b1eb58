"""Shapes that hardware likes, near one that is wanted.

Matrix units and vector registers work on tiles. A head size or width that does not fill its last
tile leaves part of it idle, and rows of odd length begin at odd addresses. So one asks for a head
size K = H / A and a width H that are multiples of 8, better of 64, of 128 where N allows it; the
FFN's 4 H follows. What is kept is the size N = 12 L H^2, nearly, and what is left of the shape.
"""

import dataclasses
import math

from scalelab.lab.reading.study_runs import Shape

# (name, multiple of the width, multiples of the head size): the first is liked best.
GRADES = (
    ("width 128, heads 64", 128, 64),
    ("width 64, heads 64", 64, 64),
    ("width 64, heads 8", 64, 8),
    ("width 8, heads 8", 8, 8),
)
MOST_OFF = 0.15  # a shape whose N is farther off is not of that size
SMALLEST_HEAD, LARGEST_HEAD = 16, 128


@dataclasses.dataclass(frozen=True)
class Advice:
    """A shape, and how it stands to the one that is wanted.

    Attributes:
      shape: A, H, L.
      grade: index in GRADES, len(GRADES) for none.
      size_change: relative change of N.
      distance: how far it is from what is wanted: sums of logarithms of ratios.
    """

    shape: Shape
    grade: int
    size_change: float
    distance: float


def grade(shape: Shape) -> int:
    """The best grade that a shape has."""
    heads, rest = divmod(shape.width, shape.num_heads)
    for place, (_, of_width, of_heads) in enumerate(GRADES):
        if not rest and shape.width % of_width == 0 and heads % of_heads == 0:
            return place
    return len(GRADES)


def judge(shape: Shape, wanted: Shape) -> Advice:
    """How a shape stands to the one that is wanted.

    A change of N counts in full, one of width or depth half: a shape of the same N with other
    proportions is another shape too. Heads count a tenth: they move no parameter.
    """
    ratio = shape.n_model / wanted.n_model
    off = [abs(math.log(a / b)) for a, b in zip(shape, wanted, strict=True)]
    distance = abs(math.log(ratio)) + 0.1 * off[0] + 0.5 * off[1] + 0.5 * off[2]
    return Advice(shape, grade(shape), ratio - 1, distance)


def near(wanted: Shape, each: int = 2) -> list[Advice]:
    """The nearest shapes of each grade, N within 15%.

    Args:
      wanted: what is asked for.
      each: so many of a grade; one that has a better grade stands there alone.

    Returns:
      First what is wanted itself, then the best grade first, in each the nearest first.
    """
    depths = range(max(1, wanted.num_layers - 2), wanted.num_layers + 3)
    found: dict[Shape, Advice] = {}
    for depth in depths:
        width = math.sqrt(wanted.n_model / (12 * depth))
        low, high = (math.floor(width * (1 + s * MOST_OFF)) for s in (-1, 1))
        for candidate in (w for w in range(low, high + 1) if w > 0 and w % 8 == 0):
            for num_heads in _heads(candidate):
                made = judge(Shape(num_heads, candidate, depth), wanted)
                if made.grade < len(GRADES) and abs(made.size_change) <= MOST_OFF:
                    found[made.shape] = made
    found.pop(wanted, None)
    chosen = [judge(wanted, wanted)]
    for place in range(len(GRADES)):
        of_grade = sorted((a for a in found.values() if a.grade == place), key=_order)
        chosen += of_grade[:each]
    return chosen


def _heads(width: int) -> list[int]:
    """Numbers of heads whose size is a multiple of 8 of a usual size."""
    sizes = range(SMALLEST_HEAD, LARGEST_HEAD + 1, 8)
    return [width // size for size in sizes if width % size == 0]


def _order(advice: Advice) -> tuple[float, Shape]:
    return advice.distance, advice.shape


def padded(shape: Shape, tile: int) -> tuple[float, float]:
    """By how much work grows where the last tile is not full.

    Args:
      shape: heads need not divide the width; the head size is then rounded up.
      tile: numbers along a side.

    Returns:
      Factors of the products with weights, whose sides are H and 4 H, and of those between heads,
      whose sides are K.
    """
    width, heads = shape.width, math.ceil(shape.width / shape.num_heads)
    whole = math.ceil(width / tile) * tile
    inner = math.ceil(4 * width / tile) * tile
    # Per position: 4 H^2 for the projections, 8 H^2 for the FFN.
    weights = (4 * whole**2 + 2 * whole * inner) / (12 * width**2)
    return weights, math.ceil(heads / tile) * tile / heads
