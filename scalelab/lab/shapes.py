"""Shape advice: near a shape that is wanted, those that the hardware likes.

  python -m scalelab.lab.shapes --near=7x469x4 [--measure] [--calibration=DIR/calibration.json]

Lists shapes of nearly the same N = 12 L H^2 whose width and head size are multiples of 8, better of
64, best of 128 (the width): the best kind first, in each the nearest first. With each stands its
change of N and the predicted time of a training step beside that of the first line: the cost model
of `study plan`, with matrix products rounded up to whole tiles (`--tile`; 16 on CPU, 64 on a GPU,
128 on a TPU). Without a calibration of this machine, which `study plan` leaves in its folder, the
model's guess is taken, and only ratios are told. --measure compiles every line and takes steps of
all of them in turn.
"""

import argparse
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from scalelab.config import cli, files
from scalelab.lab import shape_advice, shape_rules, tables
from scalelab.lab.reading.study_runs import Shape
from scalelab.lab.shape_advice import GRADES, Advice

PROGRAM = "python -m scalelab.lab.shapes"
TILES = {"cpu": 16, "gpu": 64, "tpu": 128}
ROUNDS = 7
MOST_TOKENS = 2**24  # of a batch
HEADER = ("shape", "liked for", "head size", "N", "change of N", "predicted")


def build(given: argparse.Namespace, shape: Shape) -> Any:
    """A shape's run in the abstract; None where heads do not divide the width."""
    from scalelab.config import pretraining as config_lib
    from scalelab.studies import cost_steps

    if shape.width % shape.num_heads:
        return None
    pretrain = files.load(files.FOLDER / "pretrain.py")
    made = pretrain.get_config(f"system={given.system},shape={shape},steps=1000")
    made.net.dtype, made.tokenizer.vocab_size = given.dtype, given.vocab_size
    made.net.max_len = max(made.net.max_len, given.length)
    made.short.max_len, made.short.batch_size = given.length, given.batch_size
    made.long.example_rate = 0.0
    return cost_steps.build_run(config_lib.resolve(made.to_dict()))


def predict(built: Any, shape: Shape, secs: Any, tile: int) -> float:
    """Seconds of a step, by seconds for each count; matrix products in whole tiles."""
    _, _, forward, counts = built.phases[0]
    weights, heads = shape_advice.padded(shape, tile)
    head = -(-shape.width // tile) * tile / shape.width
    products = 3 * (forward.body * weights + forward.attention * heads + forward.head * head)
    return float(counts[1:] @ secs[1:] + products * secs[0])


def coefficients(path: pathlib.Path | None) -> Any:
    """Seconds for each count: this machine's, or the guess.

    Raises:
      ValueError: the file is no calibration of this machine.
    """
    from scalelab.studies import cost

    if path is None:
        return cost.GUESS
    model = cost.load(path, cost.machine(), [])
    if model is None:
        raise ValueError(
            f"{path} is no calibration of this machine: `scalelab.study plan` leaves one as"
            " calibration.json in its --workdir"
        )
    return model.secs


def measure(builts: Sequence[Any]) -> list[float | None]:
    """Median seconds of a step of each, taken in turn, so that others slow all alike."""
    from scalelab.resources import malloc
    from scalelab.studies import cost_steps

    malloc.keep()  # as training does
    steppers = []
    for built in builts:
        if built is not None:
            print(f"compiling {cost_steps.label(built, 0)}", file=sys.stderr, flush=True)
        steppers.append(None if built is None else cost_steps.Stepper(built, 0))
    timed = iter(cost_steps.in_turns([s for s in steppers if s is not None], ROUNDS))
    return [stepper and statistics.median(next(timed)) for stepper in steppers]


def table(
    given: argparse.Namespace, found: Sequence[Advice], secs: Sequence[float | None],
    measured: Sequence[float | None] | None,
) -> str:  # fmt: skip
    """The lines for a terminal; times beside that of the first shape that can be built."""

    def cells(times: Sequence[float | None], show_ms: bool) -> list[str]:
        first = next(t for t in times if t)
        ms = [f" ({t * 1e3:,.1f} ms)" if show_ms and t else "" for t in times]
        return [f"{t / first:.2f}x{m}" if t else "-" for t, m in zip(times, ms, strict=True)]

    columns = [cells(secs, given.calibration is not None)]
    if measured is not None:
        columns.append(cells(measured, True))
    rows = []
    for i, advice in enumerate(found):
        shape = advice.shape
        rows.append([
            str(shape), GRADES[advice.grade][0] if advice.grade < len(GRADES) else "-",
            f"{shape.width / shape.num_heads:g}", f"{shape.n_model:,}",
            f"{advice.size_change:+.1%}", *(column[i] for column in columns),
        ])  # fmt: skip
    return tables.plain(HEADER + ("measured",) * (measured is not None), rows, 2)


def run(given: argparse.Namespace) -> None:
    """Advises and prints.

    Raises:
      ValueError: the shape or the net cannot be.
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
    found = shape_advice.near(wanted, given.each)
    builts = [build(given, advice.shape) for advice in found]
    if not any(builts):
        raise ValueError(f"nothing near {wanted} with N within {shape_advice.MOST_OFF:.0%}")
    tile = given.tile or TILES.get(jax.default_backend(), TILES["gpu"])
    known = coefficients(given.calibration)
    secs = [b and predict(b, a.shape, known, tile) for a, b in zip(found, builts, strict=True)]
    measured = measure(builts) if given.measure else None
    print(table(given, found, secs, measured), end="")
    if builts[0] is None:
        print(f"* {wanted}: {wanted.num_heads} heads do not divide a width of {wanted.width}")
    print(
        f"a step of {given.system}, {given.batch_size} x {given.length}, {given.dtype}, vocabulary"
        f" {given.vocab_size:,}; tiles of {tile}"
    )


def parser() -> argparse.ArgumentParser:
    """What there is to ask."""
    made = cli.Parser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    made.add_argument("--near", required=True, metavar="AxHxL", help="the shape that is wanted")
    made.add_argument("--measure", action="store_true", help="take steps of every line")
    made.add_argument("--calibration", type=pathlib.Path, metavar="FILE",
                      help="a calibration.json of this machine")  # fmt: skip
    made.add_argument("--each", type=int, default=2, help="lines of each kind; default: 2")
    made.add_argument("--tile", type=int, help="numbers along the side of a tile")
    made.add_argument("--system", default="bert", help="default: bert")
    made.add_argument("--batch_size", type=int, default=64, help="default: 64")
    made.add_argument("--length", type=int, default=128, help="tokens; default: 128")
    made.add_argument("--vocab_size", type=int, default=30_000, help="default: 30,000")
    made.add_argument("--dtype", default="float32", help="float32 or bfloat16; default: float32")
    made.add_argument("--compile_cache_dir", metavar="DIR", help="where programs are kept")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """The program; a mistake in its arguments is one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("start the same command again"):
        run(given)


if __name__ == "__main__":
    main()
