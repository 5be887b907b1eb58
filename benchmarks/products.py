"""How fast the forms of a kernel's gradient are: which operand is transposed.

  python -m benchmarks.products [--widths=128,256,448] [--repeats=5] [--threads=2]
      [--json=FILE] [--quick]

The gradient of a kernel [4D, D] contracts the rows of inputs [R, 4D] and of cotangents [R, D]; that
of the vocabulary's table those of softmax [P, V] and features [P, D]. Alternately, the least CPU
time: the wide operand transposed, as XLA makes it of JAX's gradient, and the narrow one.
"""

import argparse
import collections

from benchmarks import arguments as command_line
from benchmarks import side_by_side
from scalelab.runs import environment

ROWS, PREDICTED, VOCAB_SIZE = 8192, 448, 30_000


def measure(widths: list[int], repeats: int, rows: int = ROWS) -> dict[str, float]:
    """Name -> GFLOP a second of CPU time."""
    import jax
    import jax.numpy as jnp

    runs = {}
    for width in widths:
        for what, count, wide in (("kernel", rows, 4 * width), ("table", PREDICTED, VOCAB_SIZE)):
            a, b = (jnp.ones((count, size), jnp.float32) for size in (wide, width))
            for form, function in (
                ("wide transposed", lambda a, b: a.T @ b),
                ("narrow transposed", lambda a, b: b.T @ a),
            ):
                run = jax.jit(function).lower(a, b).compile()
                runs[f"{what} {width}, {form}"] = (run, a, b, 2e-9 * count * wide * width)
    best: dict[str, float] = collections.defaultdict(float)
    for _ in range(repeats + 1):
        for name, (run, a, b, gigaflops) in runs.items():
            call = lambda _, run=run, a=a, b=b: run(a, b).block_until_ready()  # noqa: E731
            best[name] = max(best[name], gigaflops / side_by_side.timed(call, 1).cpu)
    return dict(best)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("products", __doc__)
    widths = command_line.listed(command_line.count())
    made.add_argument("--widths", type=widths, default=[128, 256, 448])
    command_line.add_common(made, repeats=5, quick="small matrices")
    made.set_defaults(rows=ROWS)
    return command_line.read(made, argv, {"widths": [8], "repeats": 1, "rows": 16})


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    environment.configure_jax(None, "float32")
    found = measure(arguments.widths, arguments.repeats, arguments.rows)
    side_by_side.keep(found, arguments.json)
    for name, rate in found.items():
        print(f"| {name} | {rate:,.0f} GFLOP/s |")


if __name__ == "__main__":
    side_by_side.start(parse, main)
