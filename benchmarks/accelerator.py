"""Training steps on a GPU or TPU, in one command, without data, network or TensorFlow.

  python -m benchmarks.accelerator [--out=accelerator] [--minutes=8.5] [--shapes=2x256x9,13x832x5]

BERT's step (MLM and NSP, dropout 0.1, AdamW) at the protocol's shapes, in bfloat16 on random
batches of 64 x 128 without padding: one step a dispatch, as `scalelab.train` runs; and 16 steps a
dispatch (`lax.scan`), which shows what a small net would gain if it did not wait for Python.

Each round compiles one line for every two cores at once, then times each line alone.
accelerator.json and accelerator.md in --out are written anew after each line, so a cut keeps what
was done. No round starts after --minutes; the lines left are named. The share of the peak is that
of useful FLOPs (flops.py) in the device's peak (`resources/devices.py`).

Targets on an H200: 2 ms a step at 2x256x9; 0.35 of the peak at 13x832x5.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import common
from scalelab.config import cli
from scalelab.helpers.files import write_text

SHAPES = ["2x256x9", "13x832x5", "2x128x2", "7x448x4", "7x469x4", "2x128x36"]
BLOCK, REPEATS = 16, 5  # steps that are timed at a time, and times of which the median is taken
HEADER = ("shape", "steps a dispatch", "ms a step", "tokens/s", "share of peak", "memory, GiB",
          "compiled in, s")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table: `block` steps a dispatch."""

    shape: str
    block: int


def list_cases(shapes: Sequence[str]) -> list[Case]:
    """Lists all lines, what matters most first."""
    return [Case(shape, block) for block in (1, BLOCK) for shape in shapes]


class Runner:
    """A case's compiled block of steps, with its state.

    Args:
      case: what to run.
      sizes: batch_size, length and vocab_size.
    """

    def __init__(self, case: Case, sizes: dict[str, int]) -> None:
        import jax
        from flax import linen as nn

        from scalelab import state, step
        from scalelab.resources import blueprint

        begun = time.perf_counter()
        run = blueprint.draw_alone("bert", case.shape, dtype="bfloat16", **sizes)
        block = train = step.make_train_step(run.net, run.terms, run.tx)

        def fresh(seed: Any) -> state.TrainState:
            key, parts = jax.random.key(seed), (run.net, run.terms, run.tx)
            return nn.unbox(state.fresh(key, *parts, max_len=sizes["length"]))

        def scanned(now: state.TrainState, batches: Any, rate: Any) -> Any:
            return jax.lax.scan(lambda s, b: train(s, b, rate), now, batches)

        batches = run.random_batch(sizes["length"], sizes["batch_size"])
        if case.block > 1:
            block = scanned
            batches = {k: np.stack([v] * case.block) for k, v in batches.items()}
        rng = np.random.default_rng(0)
        batches["tokens"] = rng.permuted(batches["tokens"], axis=-1)  # no two batches are the same
        self.flops, self.state = run.phases[0].forward.train, jax.jit(fresh)(np.int32(0))
        self.batches = jax.device_put(batches)
        self.rate = np.float32(run.config.optim.learning_rate)
        jitted = jax.jit(block, donate_argnums=0)
        self.compiled = jitted.lower(self.state, self.batches, self.rate).compile()
        self.compile_secs = time.perf_counter() - begun

    def __call__(self, dispatches: int = 1) -> float:
        """Starts dispatches without waiting in between, as training does; returns the seconds."""
        import jax

        begun = time.perf_counter()
        for _ in range(dispatches):
            self.state, metrics = self.compiled(self.state, self.batches, self.rate)
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - begun


def measure_case(case: Case, runner: Runner, sizes: dict[str, int]) -> dict[str, Any]:
    """Times a case."""
    import jax

    from scalelab.resources import devices

    runner()
    dispatches = -(-BLOCK // case.block)
    secs = statistics.median(runner(dispatches) / (dispatches * case.block) for _ in range(REPEATS))
    known, planned = (
        devices.find_kind(jax.devices()[0].device_kind),
        runner.compiled.memory_analysis(),
    )
    rate = runner.flops / secs
    return dataclasses.asdict(case) | {
        "ms": secs * 1e3,
        "tokens_per_sec": sizes["batch_size"] * sizes["length"] / secs,
        "share_of_peak": rate / known.narrow_peak if known else None,
        "memory_bytes": planned.argument_size_in_bytes + planned.temp_size_in_bytes,
        "compile_secs": runner.compile_secs,
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measures round by round until the time is over.

    Raises:
      Stopped: no line could be measured.
    """
    import jax

    from scalelab.runs import environment

    begun, sizes = time.perf_counter(), {name: getattr(given, name) for name in common.SIZES}
    given.out.mkdir(parents=True, exist_ok=True)
    todo = list_cases(given.shapes)
    found: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "environment": environment.describe(),
        "rows": [],
    }
    at_once = max(1, len(environment.cores()) // 2)
    while todo and (not found["rows"] or time.perf_counter() - begun < 60 * given.minutes):
        cases, todo = todo[:at_once], todo[at_once:]
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            built = [pool.submit(Runner, case, sizes) for case in cases]
        for number, case in enumerate(cases, 1):
            try:
                row = measure_case(case, built.pop(0).result(), sizes)
            except Exception as error:  # one line must not cost the others
                reason = (str(error) or repr(error)).splitlines()[0][:120]
                row = dataclasses.asdict(case) | {"error": reason}
            found["rows"].append(row)
            found["left"] = [dataclasses.asdict(c) for c in [*cases[number:], *todo]]
            print(case, f"{row['ms']:.3f} ms" if "ms" in row else row["error"], flush=True)
            for suffix, text in (("json", json.dumps(found, indent=1)), ("md", markdown(found))):
                write_text(given.out / f"accelerator.{suffix}", text + "\n")
    if not any("ms" in row for row in found["rows"]):
        raise cli.Stopped(f"no line was measured; {given.out}/accelerator.md says why", 1)
    return found


def markdown(found: dict[str, Any]) -> str:
    """Formats the table."""
    about = found["environment"]
    lines = [
        f"{found['device']}, JAX {found['jax']}, commit {about['git_commit'] or 'unknown'}",
        f"`{about['command']}`\n\n| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|",
    ]
    for r in found["rows"]:
        cells = [r["shape"], str(r["block"])]
        if "ms" in r:
            share = r["share_of_peak"]
            cells += [f"{r['ms']:.3g}", f"{r['tokens_per_sec']:,.0f}"]
            cells += ["-" if share is None else f"{share:.3f}"]
            cells += [f"{r['memory_bytes'] / 2**30:.2f}", f"{r['compile_secs']:.0f}"]
        else:
            cells.append(r["error"])
        lines.append(f"| {' | '.join(cells + [''] * (len(HEADER) - len(cells)))} |")
    if found["left"]:
        names = (f"{c['shape']} by {c['block']}" for c in found["left"])
        lines += ["", f"not reached in the time: {', '.join(names)}"]
    return "\n".join(lines)


def report(found: dict[str, Any]) -> None:
    """Prints the table."""
    print("\n" + markdown(found))


def parser() -> cli.Parser:
    """Returns the command line."""
    made = common.make_parser("accelerator", __doc__, threads=False)
    made.add_argument("--out", type=pathlib.Path, default=pathlib.Path("accelerator"),
                      metavar="DIR", help="for both files")  # fmt: skip
    made.add_argument("--minutes", type=float, default=8.5, help="no round starts after these")
    made.add_argument("--shapes", type=common.comma_list, default=SHAPES,
                      help="heads x width x layers, joined by commas")  # fmt: skip
    common.add_sizes(made)
    return made


if __name__ == "__main__":
    common.start(parser(), measure, report)
