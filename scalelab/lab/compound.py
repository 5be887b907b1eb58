"""Compound scaling: finds the best shape of one size on a grid and scales it to other sizes.

  python -m scalelab.lab.compound --n=0.39M [--depths=2,3,4]
  python -m scalelab.lab.compound --base=2x104x3 --target_n=10.6M,20.5M,41.5M
  python -m scalelab.lab.compound --results=RUNS --step=1

The first command lists shapes (heads x width x layers) near a size N = 12 L H^2, to be trained
alike. The others solve alpha = L^(1/phi), beta = H^(1/phi), phi = log2(L H^2) of a base shape and
propose shapes with about 64 units a head. The base is --base, or the best of --results, a folder of
runs: among the --best=3 shapes of least loss, the one of best score. Sizes of a grid differ by a
tenth at most, and its runs only in shape and seed; other runs are refused unless --where chooses
among them or --allow=FIELD,FIELD pools them.

Targets: --target_n, sizes; --phi, values of phi; --step, steps of phi above the base, each doubling
the size.
`scalelab.lab.compare.shape_rules` tells how shapes are rounded.
"""

import argparse
import pathlib
from collections.abc import Sequence

import numpy as np

from scalelab.config import cli
from scalelab.config.pretraining import Shape
from scalelab.helpers import quantities
from scalelab.lab import tables
from scalelab.lab.compare import run_points, shape_rules
from scalelab.lab.compare.shape_rules import Scaling

TARGETS = ("target_n", "phi", "step")


def read_grid(
    folder: pathlib.Path, score: str | None, notes: list[str], where: str = "", allow: str = ""
) -> tuple[dict[Shape, float], dict[Shape, float]]:
    """Reads the loss and score of each shape of a grid, as means over seeds.

    Args:
      folder: of runs.
      score: a measure of `run_points.read`; None: no score.
      notes: receives remarks on runs.
      where: conditions on runs.
      allow: fields, joined by commas, in which runs may differ.

    Raises:
      ValueError: there are no such runs, they differ in more than their shape, or sizes differ.
    """
    found, sizes, most = [], list[float](), shape_rules.EQUAL
    for measure in (run_points.LOSS, score):
        values: dict[Shape, list[float]] = {}
        if measure:
            points, remarks = run_points.read([folder], measure, where)
            allowed = run_points.parse_allowed(allow, points)
            place = f"{folder}" + (f" where {where}" if where else "")
            remarks += run_points.check_poolable(points, run_points.SHAPE, allowed, place)
            notes += [remark for remark in remarks if remark not in notes]
            for p in points:
                values.setdefault(Shape.parse(p.shape), []).append(p.value)
            sizes += [p.clocks["n_model"] for p in points]
        found.append({shape: float(np.mean(own)) for shape, own in values.items()})
    if max(sizes) > most * min(sizes):
        raise ValueError(
            f"{folder}: shapes have N from {min(sizes):,.0f} to {max(sizes):,.0f}; a grid has"
            f" one size, to a factor {most:g}: select with"
            f" --where=n_model>={min(sizes):.0f},n_model<={int(most * min(sizes))}"
        )
    return found[0], found[1]


def list_grid(n_model: float, depths: Sequence[int]) -> str:
    """Formats the grid of one size for a terminal."""
    found = shape_rules.grid(n_model, depths)
    rows = [[str(shape), f"{shape.n_model:,}", f"{shape.n_model / n_model - 1:+.1%}"]
            for shape in found]  # fmt: skip
    missing, text = len(depths) - len(found), tables.plain(("A x H x L", "N", "off"), rows)
    note = f"* {missing} depths have no shape within {shape_rules.NEAR:.0%} of N\n"
    return text + note * bool(missing)


def scale(given: argparse.Namespace) -> str:
    """Chooses a base and formats its coefficients and the proposed shapes for a terminal.

    Raises:
      ValueError: results cannot be used, or a target is no number or too far away.
    """
    notes: list[str] = []
    text = ""
    if given.base:
        base = Shape.parse(given.base)
    else:
        score = None if given.score.lower() == "none" else given.score
        losses, scores = read_grid(given.results, score, notes, given.where, given.allow)
        base, best = shape_rules.choose(losses, scores, given.best)
        rows = [
            [str(shape), f"{losses[shape]:.4f}", f"{scores[shape]:.4g}" if shape in scores else "-"]
            for shape in best
        ]
        text += tables.plain(("least loss", "loss", "score"), rows)
        text += f"base: {base}, of {len(losses)} shapes\n\n"
    scaling = Scaling(base)
    text += (
        f"base {base}, N = {base.n_model:,}: phi = {scaling.phi:.4f},"
        f" alpha = {scaling.alpha:.4f}, beta = {scaling.beta:.4f}\n"
    )
    rows = []
    targets = next(filter(None, (getattr(given, name) for name in TARGETS)), "")
    for target in filter(None, targets.split(",")):
        if given.step or given.phi:
            phi = float(target) + (scaling.phi if given.step else 0.0)
        else:
            phi = shape_rules.size_to_phi(quantities.parse(target))
        shape, size = scaling.at(phi), shape_rules.phi_to_size(phi)
        exact = [f"{scaling.beta**phi:.1f}", f"{scaling.alpha**phi:.2f}"]
        off = f"{shape.n_model / size - 1:+.1%}"
        rows.append([target, f"{phi:.3f}", *exact, str(shape), f"{shape.n_model:,}", off])
    header = ("target", "phi", "beta^phi", "alpha^phi", "A x H x L", "N", "off")
    text += "\n" + tables.plain(header, rows) if rows else ""
    return text + "".join(f"* {note}\n" for note in notes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; a mistake in arguments or files is one message and exit code 2."""
    made = cli.Parser("python -m scalelab.lab.compound", __doc__)
    start = made.add_mutually_exclusive_group(required=True)
    start.add_argument("--n", metavar="N", help="list a grid of this size, such as 0.39M")
    start.add_argument("--base", metavar="AxHxL", help="shape to scale")
    start.add_argument("--results", metavar="RUNS", type=pathlib.Path)
    target = made.add_mutually_exclusive_group()
    for name in TARGETS:
        target.add_argument(f"--{name}", metavar="X,X")
    add = made.add_argument
    add("--depths", metavar="L,L", default=shape_rules.DEPTHS,
        type=lambda text: [cli.positive(depth) for depth in text.split(",")],
        help="layers of the grid's shapes; default: 2 to 16")  # fmt: skip
    add("--score", default="glue_large",
        help="a task, glue_large (default) or glue; none: the least loss wins")  # fmt: skip
    add("--best", type=cli.positive, default=shape_rules.NUM_BEST, metavar="K",
        help="shapes of least loss among which the best score is chosen; default: 3")  # fmt: skip
    add("--where", default="", help="conditions on runs, as scalelab.lab.runs takes them")
    add("--allow", default="", metavar="FIELD,FIELD", help="fields that pooled runs may differ in")
    given = made.parse_args(arguments)
    with cli.one_message("start the same command again"):
        text = list_grid(quantities.parse(given.n), given.depths) if given.n else scale(given)
        print(text, end="")


if __name__ == "__main__":
    main()
