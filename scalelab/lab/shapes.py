"""Shape advice: hardware-friendly shapes near a wanted one.

  python -m scalelab.lab.shapes --near=7x469x4 [--measure]

Matrix units and vector registers work on tiles; a head size or width that does not fill its last
tile leaves part of it idle. This program lists shapes of nearly the same N = 12 L H^2 whose width H
and head size H / A are multiples of 8, better of 64, best of 128 (the width): the best grade first,
in each the nearest first. Beside each stands its change of N and the work of a training step
relative to the first line: FLOPs counted from the program, with matrix products rounded up to whole
tiles (`--tile`; 16 on CPU, 64 on GPU, 128 on TPU). --measure compiles every line and times its
steps, all lines in turn.
"""

import argparse
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalelab.config import cli, files
from scalelab.config.pretraining import Shape
from scalelab.lab import tables
from scalelab.lab.compare import shape_rules

if TYPE_CHECKING:
    from scalelab.resources.blueprint import Blueprint

PROGRAM = "python -m scalelab.lab.shapes"
# (name, multiple of the width, multiple of the head size): the best first.
GRADES = (
    ("width 128, heads 64", 128, 64),
    ("width 64, heads 64", 64, 64),
    ("width 64, heads 8", 64, 8),
    ("width 8, heads 8", 8, 8),
)
MOST_OFF = 0.15  # largest relative difference of N
SMALLEST_HEAD, LARGEST_HEAD = 16, 128
TILES = {"cpu": 16, "gpu": 64, "tpu": 128}
UNTIMED, ROUNDS = 2, 7  # steps before and in a measurement
MOST_TOKENS = 2**24  # of a batch


@dataclasses.dataclass(frozen=True)
class Advice:
    """A shape compared with the wanted one.

    Attributes:
      shape: A, H, L.
      grade: index in GRADES; len(GRADES) for none.
      size_change: relative change of N.
      distance: weighted sum of the logarithms of the ratios of N, A, H and L.
    """

    shape: Shape
    grade: int
    size_change: float
    distance: float


def grade(shape: Shape) -> int:
    """Returns the best grade that a shape has."""
    heads, rest = divmod(shape.width, shape.num_heads)
    for place, (_, of_width, of_heads) in enumerate(GRADES):
        if not rest and shape.width % of_width == 0 and heads % of_heads == 0:
            return place
    return len(GRADES)


def judge(shape: Shape, wanted: Shape) -> Advice:
    """Compares a shape with the wanted one.

    A change of N counts in full, one of width or depth half, because other proportions are another
    shape too. Heads count a tenth: they move no parameter.
    """
    ratio = shape.n_model / wanted.n_model
    off = [abs(math.log(a / b)) for a, b in zip(shape, wanted, strict=True)]
    distance = abs(math.log(ratio)) + 0.1 * off[0] + 0.5 * off[1] + 0.5 * off[2]
    return Advice(shape, grade(shape), ratio - 1, distance)


def find_near(wanted: Shape, each: int = 2) -> list[Advice]:
    """Returns the wanted shape, then the nearest `each` of every grade with N within 15%."""
    found: dict[Shape, Advice] = {}
    for depth in range(max(1, wanted.num_layers - 2), wanted.num_layers + 3):
        width = math.sqrt(wanted.n_model / (shape_rules.PER_SQUARE * depth))
        low, high = (math.floor(width * (1 + s * MOST_OFF)) for s in (-1, 1))
        for candidate in (w for w in range(low, high + 1) if w > 0 and w % 8 == 0):
            for size in range(SMALLEST_HEAD, LARGEST_HEAD + 1, 8):
                if candidate % size:
                    continue
                made = judge(Shape(candidate // size, candidate, depth), wanted)
                if made.grade < len(GRADES) and abs(made.size_change) <= MOST_OFF:
                    found[made.shape] = made
    found.pop(wanted, None)
    chosen = [judge(wanted, wanted)]
    for place in range(len(GRADES)):
        same = [advice for advice in found.values() if advice.grade == place]
        chosen += sorted(same, key=lambda advice: (advice.distance, advice.shape))[:each]
    return chosen


def padding(shape: Shape, tile: int) -> tuple[float, float]:
    """Returns the factors by which incomplete tiles increase work.

    Args:
      shape: heads need not divide the width; the head size is then rounded up.
      tile: numbers along a side.

    Returns:
      Factors of the products with weights, whose sides are H and 4 H, and of those between heads,
      whose sides are the head size.
    """
    width, heads = shape.width, math.ceil(shape.width / shape.num_heads)
    whole = math.ceil(width / tile) * tile
    inner = math.ceil(4 * width / tile) * tile
    # Per position: 4 H^2 for the projections, 8 H^2 for the FFN.
    weights = (4 * whole**2 + 2 * whole * inner) / (shape_rules.PER_SQUARE * width**2)
    return weights, math.ceil(heads / tile) * tile / heads


def build(given: argparse.Namespace, shape: Shape) -> "Blueprint | None":
    """Builds a shape's run in the abstract; None where heads do not divide the width."""
    from scalelab.config import pretraining as config_lib
    from scalelab.resources import blueprint

    if shape.width % shape.num_heads:
        return None
    pretrain = files.load(files.FOLDER / "pretrain.py")
    made = pretrain.get_config(f"system={given.system},shape={shape},steps=1000")
    made.net.dtype, made.tokenizer.vocab_size = given.dtype, given.vocab_size
    made.net.max_len = max(made.net.max_len, given.length)
    made.short.max_len, made.short.batch_size = given.length, given.batch_size
    made.long.example_rate = 0.0
    return blueprint.draw(config_lib.resolve(made.to_dict()))


def count_work(plan: "Blueprint", shape: Shape, tile: int) -> float:
    """Returns the FLOPs of a step with matrix products in whole tiles."""
    forward = plan.phases[0].forward
    weights, heads = padding(shape, tile)
    head = math.ceil(shape.width / tile) * tile / shape.width
    return 3 * (forward.body * weights + forward.attention * heads + forward.head * head)


def measure(plans: Sequence["Blueprint | None"]) -> list[float | None]:
    """Returns the median seconds of a step of each, taken in turn so that noise hits all alike."""
    import jax
    import numpy as np

    from scalelab import sharding
    from scalelab.resources import malloc

    malloc.keep_freed()  # as training does
    steps = {}
    for place, plan in enumerate(plans):
        if plan is None:
            continue
        print(f"compiling line {place + 1} of {len(plans)}", file=sys.stderr, flush=True)
        phase, machine = plan.phases[0], plan.config.machine
        mesh = sharding.make_mesh(
            machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel
        )
        batch = plan.random_batch(phase.length, phase.batch_size)
        batch = sharding.put_batch(batch, mesh, phase.batch_size)
        compiled = plan.compile(phase.length, phase.batch_size, mesh)
        steps[place] = [compiled, plan.start(mesh), batch]
    secs: dict[int, list[float]] = {place: [] for place in steps}
    for _ in range(UNTIMED + ROUNDS):
        for place, step in steps.items():
            begin = time.perf_counter()
            step[1], pairs = step[0](step[1], step[2], np.float32(1e-4))
            jax.block_until_ready((step[1], pairs))
            secs[place].append(time.perf_counter() - begin)
    return [statistics.median(secs[i][UNTIMED:]) if i in secs else None for i in range(len(plans))]


def describe(
    found: Sequence[Advice], work: Sequence[float | None], secs: Sequence[float | None] | None
) -> str:
    """Formats the lines for a terminal; work and time are relative to the first possible shape."""
    header: tuple[str, ...] = ("shape", "grade", "head size", "N", "change of N", "work")
    columns = [[f"{w / next(filter(None, work)):.2f}x" if w else "-" for w in work]]
    if secs is not None:
        first = next(filter(None, secs))
        header += ("measured",)
        columns.append([f"{s / first:.2f}x ({s * 1e3:,.1f} ms)" if s else "-" for s in secs])
    rows = [
        [
            str(advice.shape), GRADES[advice.grade][0] if advice.grade < len(GRADES) else "-",
            f"{advice.shape.width / advice.shape.num_heads:g}", f"{advice.shape.n_model:,}",
            f"{advice.size_change:+.1%}", *cells,
        ]
        for advice, *cells in zip(found, *columns, strict=True)
    ]  # fmt: skip
    return tables.plain(header, rows, 2)


def run(given: argparse.Namespace) -> None:
    """Advises and prints.

    Raises:
      ValueError: impossible arguments.
    """
    wanted = shape_rules.read(given.near)
    if given.batch_size < 1 or given.length < 2 or given.each < 1:
        raise ValueError("--batch_size and --each must be 1 or more, --length 2 or more")
    if given.batch_size * given.length > MOST_TOKENS:
        raise ValueError(f"--batch_size times --length: expected at most {MOST_TOKENS:,} tokens")
    if given.tile is not None and given.tile < 1:
        raise ValueError(f"--tile={given.tile}: expected 1 or more")
    import jax

    from scalelab.runs import environment

    environment.configure_jax(given.compile_cache_dir, given.dtype)
    found = find_near(wanted, given.each)
    plans = [build(given, advice.shape) for advice in found]
    if not any(plans):
        raise ValueError(f"nothing near {wanted} with N within {MOST_OFF:.0%}")
    tile = given.tile or TILES.get(jax.default_backend(), TILES["gpu"])
    work = [p and count_work(p, a.shape, tile) for a, p in zip(found, plans, strict=True)]
    print(describe(found, work, measure(plans) if given.measure else None), end="")
    if plans[0] is None:
        print(f"* {wanted}: {wanted.num_heads} heads do not divide a width of {wanted.width}")
    print(
        f"a step of {given.system}, {given.batch_size} x {given.length}, {given.dtype}, vocabulary"
        f" {given.vocab_size:,}; tiles of {tile}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; a mistake in arguments is one message and exit code 2."""
    made = cli.Parser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    add = made.add_argument
    add("--near", required=True, metavar="AxHxL", help="the wanted shape")
    add("--measure", action="store_true", help="time steps of every line")
    add("--each", type=int, default=2, help="lines of each grade; default: 2")
    add("--tile", type=int, help="numbers along the side of a tile")
    add("--system", default="bert", help="default: bert")
    add("--batch_size", type=int, default=64, help="default: 64")
    add("--length", type=int, default=128, help="tokens; default: 128")
    add("--vocab_size", type=int, default=30_000, help="default: 30,000")
    add("--dtype", default="float32", help="float32 or bfloat16; default: float32")
    add("--compile_cache_dir", metavar="DIR", help="cache of compiled programs")
    given = made.parse_args(arguments)
    with cli.one_message("start the same command again"):
        run(given)


if __name__ == "__main__":
    main()
