"""Shape advice: hardware-friendly shapes near a wanted one.

  python -m scalelab.shapes --near=7x469x4 [--measure]

Matrix units and vector registers work on tiles; a head size or width that does not fill its last
tile leaves part of it idle. This program lists shapes of nearly the same size N, as the system
declares it, whose width H and head size H / A are multiples of 8, better of 64, best of 128 (the
width): the best grade first, in each the nearest first. Beside each stands its change of N and the
work of a training step relative to the first line: FLOPs counted from the program, with matrix
products rounded up to whole tiles (`--tile`; 16 on CPU, 64 on GPU, 128 on TPU). --measure compiles
every line and times its steps.
"""

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from scalelab.config import cli
from scalelab.config.pretraining import Config, Net, Shape
from scalelab.lab import tables
from scalelab.resources import host

if TYPE_CHECKING:
    from scalelab.training.blueprint import Blueprint

# (name, multiple of the width, multiple of the head size): the best first.
GRADES = (
    ("width 128, heads 64", 128, 64),
    ("width 64, heads 64", 64, 64),
    ("width 64, heads 8", 64, 8),
    ("width 8, heads 8", 8, 8),
)
MOST_OFF = 0.15  # largest relative difference of N
MOST_WIDER = 3  # a model of fewer layers is at most so many times as wide
SMALLEST_HEAD, LARGEST_HEAD = 16, 128
TILES = {"cpu": 16, "gpu": 64, "tpu": 128}
MOST_TOKENS = 2**24  # tokens of a batch


Size = Callable[[Shape], int]  # N of a system


class Advice(NamedTuple):
    """A shape compared with the wanted one."""

    shape: Shape  # A, H, L
    grade: int  # index in GRADES; len(GRADES) for none
    size_change: float  # relative change of N
    distance: float  # weighted sum of the logarithms of the ratios of N, A, H and L


def grade(shape: Shape) -> int:
    """Returns the best grade that a shape has."""
    heads, rest = divmod(shape.width, shape.num_heads)
    for place, (_, width_step, heads_step) in enumerate(GRADES):
        if not rest and shape.width % width_step == 0 and heads % heads_step == 0:
            return place
    return len(GRADES)


def judge(shape: Shape, wanted: Shape, size: Size) -> Advice:
    """Compares a shape with the wanted one.

    A change of N counts in full, a change of width or depth half, because proportions matter too. A
    change of heads counts a tenth, because it moves no parameter.
    """
    ratio = size(shape) / size(wanted)
    off = [abs(math.log(a / b)) for a, b in zip(shape, wanted, strict=True)]
    distance = abs(math.log(ratio)) + 0.1 * off[0] + 0.5 * off[1] + 0.5 * off[2]
    return Advice(shape, grade(shape), ratio - 1, distance)


def find_near(wanted: Shape, each: int, size: Size) -> list[Advice]:
    """Returns the wanted shape, then the nearest `each` of every grade with N within 15%."""
    found = [
        judge(Shape(width // head, width, depth), wanted, size)
        for depth in range(max(1, wanted.num_layers - 2), wanted.num_layers + 3)
        for width in range(8, MOST_WIDER * wanted.width, 8)
        if abs(size(Shape(1, width, depth)) / size(wanted) - 1) <= MOST_OFF
        for head in range(SMALLEST_HEAD, LARGEST_HEAD + 1, 8)
        if width % head == 0 and (width // head, width, depth) != wanted
    ]
    found.sort(key=lambda advice: (advice.distance, advice.shape))
    chosen = [judge(wanted, wanted, size)]
    for place in range(len(GRADES)):
        chosen += [advice for advice in found if advice.grade == place][:each]
    return chosen


def padding(shape: Shape, tile: int) -> tuple[float, float]:
    """Returns the factors by which tiles of a side of `tile` numbers increase work.

    The first factor is for products with weights (sides H and 4 H), the second for products inside
    heads (side: the head size, rounded up if heads do not divide the width).
    """
    width, heads = shape.width, math.ceil(shape.width / shape.num_heads)
    whole, inner = (math.ceil(side / tile) * tile for side in (width, 4 * width))
    # Per position: 4 H^2 for the projections, 8 H^2 for the FFN.
    weights = (4 * whole**2 + 2 * whole * inner) / (Shape(1, 1, 1).n_model * width**2)
    return weights, math.ceil(heads / tile) * tile / heads


def count_work(plan: "Blueprint", shape: Shape, tile: int) -> float:
    """Returns the FLOPs of a step of a run of a shape, with matrix products in whole tiles."""
    forward = plan.costs[0]
    weights, heads = padding(shape, tile)
    edge = math.ceil(shape.width / tile) * tile / shape.width
    rest = (forward.head + forward.embedding) * edge
    whole = forward.body * weights + forward.attention * heads + rest
    return forward.train / forward.forward * whole


def advise(given: argparse.Namespace) -> str:
    """Returns the lines for a terminal; work and time are relative to the first possible shape.

    Raises:
      ValueError: impossible arguments.
    """
    wanted = Shape.parse(given.near, divided=False)
    if given.batch_size * given.length > MOST_TOKENS:
        raise ValueError(f"--batch_size times --length: expected at most {MOST_TOKENS:,} tokens")
    import jax

    from scalelab import systems
    from scalelab.training import blueprint

    host.configure_jax(given.compile_cache_dir, given.dtype)
    tile = given.tile or TILES.get(jax.default_backend(), TILES["gpu"])
    sizes = {name: getattr(given, name) for name in ("batch_size", "length", "vocab_size", "dtype")}
    rows, work, secs = [], [], []
    system = systems.load(given.system)

    def size(shape: Shape) -> int:
        return systems.n_model(system, Net(1, shape.width, shape.num_layers))

    for advice in find_near(wanted, given.each, size):
        shape, placed = advice.shape, advice.grade < len(GRADES)
        possible, cells = shape.width % shape.num_heads == 0, ["-", "-"]
        plan = blueprint.draw_alone(given.system, str(shape), **sizes) if possible else None
        if plan is not None:
            work.append(count_work(plan, shape, tile))
            cells[0] = f"{work[-1] / work[0]:.2f}x"
        if plan is not None and given.measure:
            secs.append(blueprint.time_steps(plan, plan.config.short).secs)
            cells[1] = f"{secs[-1] / secs[0]:.2f}x ({secs[-1] * 1e3:,.1f} ms)"
        rows.append([
            str(shape), GRADES[advice.grade][0] if placed else "-",
            f"{shape.width / shape.num_heads:g}", f"{size(shape):,}",
            f"{advice.size_change:+.1%}", *cells,
        ])  # fmt: skip
    if not work:
        raise ValueError(f"nothing near {wanted} with N within {MOST_OFF:.0%}")
    header = ("shape", "grade", "head size", "N", "change of N", "work", "measured")
    shown = len(header) if given.measure else len(header) - 1
    text = tables.plain(header[:shown], [row[:shown] for row in rows], 2)
    if wanted.width % wanted.num_heads:
        text += f"* {wanted}: {wanted.num_heads} heads do not divide a width of {wanted.width}\n"
    return text + (
        f"a step of {given.system}, {given.batch_size} x {given.length}, {given.dtype}, vocabulary"
        f" {given.vocab_size:,}; tiles of {tile}\n"
    )


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.shapes", __doc__, setup=host.keep_freed)
    add = made.add_argument
    add("--near", required=True, metavar="AxHxL", help="the wanted shape")
    add("--measure", action="store_true", help="time steps of every line")
    add("--each", type=cli.positive, default=2, help="lines of each grade; default: 2")
    add("--tile", type=cli.positive, help="numbers along the side of a tile")
    add("--system", default=Config.system, help=f"default: {Config.system}, the base config")
    add("--batch_size", type=cli.positive, default=64, help="default: 64")
    add("--length", type=cli.positive, default=128, help="tokens; default: 128")
    add("--vocab_size", type=cli.positive, default=30_000, help="default: 30,000")
    add("--dtype", default="float32", help="float32 or bfloat16; default: float32")
    add("--compile_cache_dir", metavar="DIR", help="folder that keeps compiled programs")
    return made


def main(given: argparse.Namespace) -> None:
    """Prints the advice."""
    print(advise(given), end="")


if __name__ == "__main__":
    cli.run(main, parser())
