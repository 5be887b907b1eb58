"""Compound scaling: lists the shapes of one size, and scales a shape to other sizes.

  python -m scalelab.lab.compound --n=0.39M [--depths=2,3,4]
  python -m scalelab.lab.compound --base=2x104x3 --target_n=10.6M,20.5M,41.5M

The first command lists shapes (heads x width x layers) near a size N = 12 L H^2, to be trained
alike. The second solves alpha = L^(1/phi), beta = H^(1/phi), phi = log2(L H^2) of a base shape and
proposes shapes with about 64 units a head. Targets are sizes (--target_n), values of phi (--phi),
or steps of phi above the base (--step), each doubling the size. The report of a study names the
base that its grid of one size gives.
`scalelab.lab.compare.shape_rules` tells how shapes are rounded.
"""

import argparse
from collections.abc import Callable, Sequence

from scalelab.config import cli
from scalelab.config.pretraining import Shape
from scalelab.helpers import quantities
from scalelab.lab import tables
from scalelab.lab.compare import shape_rules
from scalelab.lab.compare.shape_rules import Scaling

# Option -> phi of a target and the base.
TARGETS: dict[str, Callable[[str, Scaling], float]] = {
    "target_n": lambda text, _: shape_rules.size_to_phi(quantities.parse(text)),
    "phi": lambda text, _: float(text),
    "step": lambda text, base: base.phi + float(text),
}


def list_grid(n_model: float, depths: Sequence[int]) -> str:
    """Formats the grid of one size for a terminal."""
    found = shape_rules.grid(n_model, depths)
    rows = [[str(shape), f"{shape.n_model:,}", f"{shape.n_model / n_model - 1:+.1%}"]
            for shape in found]  # fmt: skip
    missing, text = len(depths) - len(found), tables.plain(("A x H x L", "N", "off"), rows)
    note = f"* {missing} depths have no shape within {shape_rules.NEAR:.0%} of N\n"
    return text + note * bool(missing)


def scale(given: argparse.Namespace) -> str:
    """Formats the coefficients of a base and the proposed shapes for a terminal.

    Raises:
      ValueError: a target is no number or too far away.
    """
    base = Scaling(Shape.parse(given.base))
    rows = []
    for name, to_phi in TARGETS.items():
        for target in filter(None, (getattr(given, name) or "").split(",")):
            phi = to_phi(target, base)
            shape, size = base.at(phi), shape_rules.PER_SQUARE * 2**phi
            exact = [f"{base.beta**phi:.1f}", f"{base.alpha**phi:.2f}"]
            off = f"{shape.n_model / size - 1:+.1%}"
            rows.append([target, f"{phi:.3f}", *exact, str(shape), f"{shape.n_model:,}", off])
    header = ("target", "phi", "beta^phi", "alpha^phi", "A x H x L", "N", "off")
    return (
        f"base {base.base}, N = {base.base.n_model:,}: phi = {base.phi:.4f},"
        f" alpha = {base.alpha:.4f}, beta = {base.beta:.4f}\n"
    ) + ("\n" + tables.plain(header, rows) if rows else "")


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
        "--depths", metavar="L,L", default=shape_rules.DEPTHS,
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
