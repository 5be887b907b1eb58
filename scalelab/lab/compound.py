"""Compound scaling: a grid of shapes of one size, and from its best shape those of other sizes.

  python -m scalelab.lab.compound --n=0.39M [--depths=2,3,4]
  python -m scalelab.lab.compound --base=2x104x3 --target_n=10.6M,20.5M,41.5M
  python -m scalelab.lab.compound --results=RUNS_OR_CSV --step=1

The first lists shapes heads x width x layers near a size N = 12 L H^2, to be trained alike. The
others solve alpha = L^(1/phi), beta = H^(1/phi), phi = log2(L H^2) of a base shape, and propose
shapes with about 64 units a head, heads dividing the width. The base is told by --base, or is the
best of --results: of the --best=3 shapes of the least loss that of the best score. RUNS is a folder
of runs, CSV has columns shape (or A, H, L), loss and score. Sizes N of a grid differ by a tenth at
most, and its runs in nothing but shape and seed that the comparability contract holds equal: others
are refused, by name, unless --where=... chooses among them or --allow=FIELD,FIELD pools them.

How far up: --target_n, sizes; --phi, compound coefficients; --step, added to the base's phi, 1
doubling the size; --target_flops, in proportion to --base_flops of the base, or by --costs;
--target_secs, by --costs: RUNS that trained alike, or a CSV with columns n_model (or shape) and
flops or seconds, to which a power law is fitted. Where the output head outweighs the layers, FLOPs
are not in proportion to N: use --costs there. `scalelab.lab.shape_rules` says how shapes are
rounded.
"""

import argparse
import pathlib
from collections.abc import Sequence

from scalelab.config import cli
from scalelab.helpers import quantities
from scalelab.lab import shape_rules, tables
from scalelab.lab.fits import grid_results
from scalelab.lab.fits.fitting import MAX_EXTRAPOLATION
from scalelab.lab.fits.grid_results import Source
from scalelab.lab.reading.study_runs import Shape
from scalelab.lab.shape_rules import Scaling

PROGRAM = "python -m scalelab.lab.compound"
TARGETS = ("target_n", "phi", "step", "target_flops", "target_secs")


def grid_text(n_model: float, depths: Sequence[int]) -> str:
    """The grid of one size, for a terminal."""
    found = shape_rules.grid(n_model, depths)
    rows = [[str(shape), f"{shape.n_model:,}", f"{shape.n_model / n_model - 1:+.1%}"]
            for shape in found]  # fmt: skip
    left_out = len(depths) - len(found)
    note = (
        f"* {left_out} depths have no shape within {shape_rules.NEAR:.0%} of N\n"
        if left_out
        else ""
    )
    return tables.plain(("A x H x L", "N", "off"), rows) + note


def base_of(given: argparse.Namespace, notes: list[str]) -> tuple[Shape, str]:
    """The base shape, and how it was chosen, in words; `notes` takes what is said of runs."""
    if given.base:
        return shape_rules.parse(given.base), ""
    score = None if given.score.lower() == "none" else given.score
    if score == "score" and given.results.is_dir():
        score = "glue_large"
    source = Source(given.results, given.where, given.allow)
    losses, scores = grid_results.losses_and_scores(source, given.loss, score, notes)
    base, looked_at = shape_rules.choose(losses, scores, given.best)
    rows = [
        [str(shape), f"{losses[shape]:.4f}", f"{scores[shape]:.4g}" if shape in scores else "-"]
        for shape in looked_at
    ]
    said = tables.plain(("least loss", "loss", "score"), rows)
    return base, said + f"base: {base}, of {len(losses)} shapes\n\n"


def sizes_of(
    given: argparse.Namespace, scaling: Scaling, notes: list[str]
) -> list[tuple[str, float]]:
    """The phi of each target, with the target in words; `notes` takes what is said of runs.

    Raises:
      ValueError: a target is not a number, or lies too far outside of the costs that are known.
    """
    if given.step or given.phi:
        name, start = ("step", scaling.phi) if given.step else ("phi", 0.0)
        texts = [text.strip() for text in (given.step or given.phi).split(",")]
        return [(f"{name} {text}", start + _number(text, name)) for text in texts]
    found = []
    if given.target_n:
        return [(f"N = {text}", shape_rules.phi_of(quantities.parse(text)))
                for text in given.target_n.split(",")]  # fmt: skip
    clock, texts = ("flops", given.target_flops) if given.target_flops else (
        "seconds", given.target_secs)  # fmt: skip
    source = Source(given.costs, given.where, given.allow) if given.costs else None
    law = grid_results.cost_law(source, clock, notes) if source else None
    for text in texts.split(","):
        cost = quantities.parse(text)
        if law is None:
            size = scaling.base.n_model * cost / quantities.parse(given.base_flops)
        else:
            size = grid_results.size_at(cost, law, given.limit)
        found.append((f"{text} {clock}", shape_rules.phi_of(size)))
    return found


def proposals(given: argparse.Namespace) -> str:
    """The coefficients and the shapes, for a terminal."""
    notes: list[str] = []
    base, said = base_of(given, notes)
    scaling = Scaling(base)
    said += (
        f"base {base}, N = {base.n_model:,}: phi = {scaling.phi:.4f},"
        f" alpha = {scaling.alpha:.4f}, beta = {scaling.beta:.4f}\n"
    )
    rows = []
    for name, phi in sizes_of(given, scaling, notes) if _targets(given) else []:
        shape, size = scaling.at(phi), 12 * 2**phi
        exact = [f"{scaling.beta**phi:.1f}", f"{scaling.alpha**phi:.2f}"]
        off = f"{shape.n_model / size - 1:+.1%}"
        rows.append([name, f"{phi:.3f}", *exact, str(shape), f"{shape.n_model:,}", off])
    header = ("target", "phi", "beta^phi", "alpha^phi", "A x H x L", "N", "off")
    said += "\n" + tables.plain(header, rows) if rows else ""
    return said + "".join(f"* {note}\n" for note in notes)


def check(given: argparse.Namespace) -> None:
    """Refuses arguments that do not go together.

    Raises:
      ValueError: see above.
    """
    starts = [name for name in ("n", "base", "results") if getattr(given, name)]
    if len(starts) != 1:
        got = " and ".join(f"--{name}" for name in starts) or "none"
        raise ValueError(f"expected one of --n, --base, --results, got {got}; --help tells more")
    targets = _targets(given)
    if targets and given.n:
        raise ValueError(f"--n lists a grid and scales nothing: leave out --{targets[0]}")
    if len(targets) > 1:
        raise ValueError(f"expected one target, got --{' and --'.join(targets)}")
    if given.target_flops and bool(given.base_flops) == bool(given.costs):
        raise ValueError("--target_flops needs --base_flops or --costs, and not both")
    if given.target_secs and not given.costs:
        raise ValueError("--target_secs needs --costs: seconds that were measured at some sizes")
    if given.best < 1:
        raise ValueError(f"--best={given.best}: expected at least 1")


def parser() -> cli.Parser:
    """The command line."""
    made = cli.Parser(
        prog=PROGRAM,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--n", metavar="N", help="list a grid of this size, such as 0.39M")
    made.add_argument("--depths", metavar="L,L", default=",".join(map(str, shape_rules.DEPTHS)),
                      help="layers of the grid's shapes; default: %(default)s")  # fmt: skip
    made.add_argument("--base", metavar="AxHxL", help="shape to scale")
    made.add_argument("--results", metavar="RUNS_OR_CSV", type=pathlib.Path, help="of a grid")
    made.add_argument("--loss", default="loss", help="its column in a CSV; default: loss")
    made.add_argument("--score", default="score", help="likewise; of runs, what was fine-tuned:"
                      " a task, glue_large (default), glue; none: the least loss wins")  # fmt: skip
    made.add_argument("--best", type=int, default=shape_rules.NUM_BEST, metavar="K",
                      help="of so many of the least loss, the best score; default: 3")  # fmt: skip
    for name in TARGETS:
        made.add_argument(f"--{name}", metavar="X,X")
    made.add_argument("--base_flops", metavar="X", help="what training the base costs")
    made.add_argument("--costs", metavar="RUNS_OR_CSV", type=pathlib.Path)
    made.add_argument("--limit", type=float, default=MAX_EXTRAPOLATION, metavar="FACTOR",
                      help="how far outside of the sizes in --costs; default: 10")  # fmt: skip
    made.add_argument("--where", default="", help="conditions on runs, as scalelab.lab.runs has")
    made.add_argument("--allow", default="", metavar="FIELD,FIELD",
                      help="pool runs that differ in these, against the contract")  # fmt: skip
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """The program; a mistake in its arguments or files is one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("start the same command again"):
        check(given)
        if given.n:
            depths = [_depth(text) for text in given.depths.split(",")]
            print(grid_text(quantities.parse(given.n), depths), end="")
        else:
            print(proposals(given), end="")


def _targets(given: argparse.Namespace) -> list[str]:
    return [name for name in TARGETS if getattr(given, name)]


def _depth(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"--depths: {text!r} is no number of layers")
    return int(text)


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--{flag}: {text!r} is no number") from None


if __name__ == "__main__":
    main()
