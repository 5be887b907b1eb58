"""Finds the best shape of a size and scales it (protocol 7.5.5, after Tan and Le 2019).

  python -m scalelab.lab.compound --n=0.39M [--depths=2,3,4]
  python -m scalelab.lab.compound --base=2x104x3 --target_n=10.6M,20.5M,41.5M

The first command lists shapes (heads x width x layers, A x H x L) near a size N = 12 L H^2, to be
trained alike. The second scales a base shape by L = alpha^phi, H = beta^phi, A near H/64, with
alpha beta^2 = 2: one step of phi doubles the size. The base fixes phi = log2(L H^2), alpha =
L^(1/phi) and beta = H^(1/phi). Targets are sizes (--target_n), values of phi (--phi), or steps of
phi above the base (--step). The protocol's base is the best score among the three shapes of least
loss in a grid of one size.

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

import argparse
import math
from collections.abc import Callable, Sequence

from scalelab.config import cli
from scalelab.config.pretraining import Shape
from scalelab.helpers import quantities
from scalelab.lab import tables

HEAD_SIZE = 64
MIN_HEADS = 2
DEPTHS = (2, 3, 4, 6, 8, 10, 12, 14, 16)  # depths of the protocol's grid
NEAR = math.sqrt(1.1)  # sizes N within this ratio are near
PER_SQUARE = Shape(1, 1, 1).n_model  # N of one layer of width 1


def near_width(width: float, num_layers: int) -> Shape:
    """Returns the shape nearest to a width, with heads of about 64 units that divide it."""
    num_heads = max(MIN_HEADS, _round(width / HEAD_SIZE))
    return Shape(num_heads, num_heads * max(1, _round(width / num_heads)), num_layers)


def grid(n_model: float, depths: Sequence[int] = DEPTHS) -> list[Shape]:
    """Returns shapes of some depths within 5% of a size N = 12 L H^2, the shallowest first.

    Raises:
      ValueError: there is none; narrow shapes of a small N are too coarse.
    """
    shapes = [near_width(math.sqrt(n_model / (PER_SQUARE * depth)), depth) for depth in depths]
    near = [s for s in shapes if 1 / NEAR <= s.n_model / n_model <= NEAR]
    if not near:
        raise ValueError(
            f"no shape of {', '.join(map(str, depths))} layers has N within {NEAR - 1:.0%} of"
            f" {n_model:,.0f}: ask for a larger N or for other depths"
        )
    return near


def coefficients(base: Shape) -> tuple[float, float, float]:
    """Returns a base's phi = log2(L H^2), and alpha and beta: depth and width grow so per phi."""
    phi = size_to_phi(base.n_model)
    return phi, base.num_layers ** (1 / phi), base.width ** (1 / phi)


def shape_at(phi: float, alpha: float) -> Shape:
    """Returns the shape at a compound coefficient, rounded as the module's docstring says.

    Raises:
      ValueError: phi gives no shape.
    """
    if not 1 <= phi <= 60:
        raise ValueError(f"phi = {phi:g} gives no shape: N = 12 * 2^phi, and 15 is 0.39M")
    depth = max(1, _round(alpha**phi))
    return near_width(math.sqrt(2**phi / depth), depth)


def size_to_phi(n_model: float) -> float:
    """Returns the compound coefficient of a size N > 0: log2(N / 12)."""
    return math.log2(n_model / PER_SQUARE)


def _round(value: float) -> int:
    """Returns the whole number nearest to a positive value; a half goes up."""
    return math.floor(value + 0.5)


# --- The program ----------------------------------------------------------------------------------

# Option -> phi of a target and of the base.
TARGETS: dict[str, Callable[[str, float], float]] = {
    "target_n": lambda text, _: size_to_phi(quantities.parse(text)),
    "phi": lambda text, _: float(text),
    "step": lambda text, base_phi: base_phi + float(text),
}


def list_grid(n_model: float, depths: Sequence[int]) -> str:
    """Formats the grid of one size for a terminal."""
    found = grid(n_model, depths)
    rows = [[str(shape), f"{shape.n_model:,}", f"{shape.n_model / n_model - 1:+.1%}"]
            for shape in found]  # fmt: skip
    missing, text = len(depths) - len(found), tables.plain(("A x H x L", "N", "off"), rows)
    return text + f"* {missing} depths have no shape within {NEAR - 1:.0%} of N\n" * bool(missing)


def scale(given: argparse.Namespace) -> str:
    """Formats the coefficients of a base and the proposed shapes for a terminal.

    Raises:
      ValueError: a target is no number or too far away.
    """
    base, rows = Shape.parse(given.base), []
    base_phi, alpha, beta = coefficients(base)
    for name, to_phi in TARGETS.items():
        for target in filter(None, (getattr(given, name) or "").split(",")):
            phi = to_phi(target, base_phi)
            shape = shape_at(phi, alpha)
            off = f"{shape.n_model / (PER_SQUARE * 2**phi) - 1:+.1%}"
            rows.append([target, f"{phi:.3f}", str(shape), f"{shape.n_model:,}", off])
    return (
        f"base {base}, N = {base.n_model:,}: phi = {base_phi:.4f}, alpha = {alpha:.4f},"
        f" beta = {beta:.4f}\n"
    ) + ("\n" + tables.plain(("target", "phi", "A x H x L", "N", "off"), rows) if rows else "")


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.lab.compound", __doc__)
    start = made.add_mutually_exclusive_group(required=True)
    start.add_argument("--n", metavar="N", help="list a grid of this size, such as 0.39M")
    start.add_argument("--base", metavar="AxHxL", help="shape to scale")
    target = made.add_mutually_exclusive_group()
    for name in TARGETS:
        target.add_argument(f"--{name}", metavar="X,X")
    made.add_argument(
        "--depths", metavar="L,L", default=DEPTHS,
        type=lambda text: [cli.positive(depth) for depth in text.split(",")],
        help="layers of the grid's shapes; default: 2 to 16",
    )  # fmt: skip
    return made


def main(given: argparse.Namespace) -> None:
    """Prints a grid or scaled shapes."""
    text = list_grid(quantities.parse(given.n), given.depths) if given.n else scale(given)
    print(text, end="")


if __name__ == "__main__":
    cli.run(main, parser())
