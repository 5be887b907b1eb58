"""Training steps on a GPU or TPU, in one command, without data, network or TensorFlow.

  python -m benchmarks.accelerator [--out=accelerator] [--minutes=8.5] [--shapes=2x256x9,13x832x5]
      [--quick]

BERT's step (MLM and NSP, dropout 0.1, AdamW, vocabulary 30,000) at the protocol's shapes, in
bfloat16 and float32, on random batches of 64 x 128 and 16 x 512 without padding: one step a
dispatch, as `scalelab.train` runs, by which the targets are judged; and 16 steps a dispatch
(`lax.scan`), which shows what a small net would gain if it did not wait for Python. Then eight
seeds of 2x128x2 in one program (`vmap`) against the same seeds one after another.

Each round compiles one line for every two cores at once, then times each line alone. What matters
most comes first. accelerator.json and accelerator.md in --out are written anew after each line, so
a cut keeps what was done. No round starts after --minutes; the lines left are named. Shares are
useful FLOPs (flops.py) of the device's peak in `resources/devices.py`, and of the largest square
product measured here in the same dtype. Targets are not judged on CPU.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import common
from scalelab.config import cli

SHAPES = ["2x256x9", "13x832x5", "2x128x2", "7x448x4", "7x469x4", "2x128x36"]
BATCHES = ((64, 128), (16, 512))
SEEDS, SEEDS_SHAPE, SEEDS_TARGET = 8, "2x128x2", 4.0
BLOCK, REPEATS = 16, 5  # steps that are timed at a time, and times of which the median is taken
QUICK = {"shapes": ["2x8x1"], "batches": ((4, 16),), "vocab_size": 97, "block": 2}
TARGETS = (  # by bfloat16 lines of one step a dispatch at length 128
    ("2x256x9: under 2 ms a step", "2x256x9", "ms", lambda value: value < 2.0),
    ("13x832x5: share of peak 0.35", "13x832x5", "share_of_peak", lambda value: value >= 0.35),
)
HEADER = ("shape", "dtype", "batch", "seeds", "steps a dispatch", "ms a step", "tokens/s",
          "share of peak", "of measured product", "memory", "compiled in")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table: `block` steps a dispatch, of `seeds` runs in one program."""

    shape: str
    dtype: str
    batch_size: int
    length: int
    block: int
    seeds: int = 1

    @property
    def name(self) -> str:
        """Describes the line."""
        seeds = f", {self.seeds} seeds" if self.seeds > 1 else ""
        return f"{self.shape} {self.dtype} {self.batch_size} x {self.length}{seeds} by {self.block}"


def list_cases(
    shapes: Sequence[str], batches: tuple[tuple[int, int], ...], block: int
) -> list[Case]:
    """Lists all lines: what the targets are judged by, seeds, one float32 line, then the rest."""
    short, *longer = batches
    singles = [Case(shape, "bfloat16", *short, 1) for shape in shapes]
    blocks = [Case(shape, "bfloat16", *short, block) for shape in shapes]
    single = next((case for case in blocks if case.shape == SEEDS_SHAPE), blocks[-1])
    exact = [Case(shape, "float32", *short, block) for shape in shapes]
    first = [*singles[:2], single, dataclasses.replace(single, seeds=SEEDS), exact[0]]
    rest = [Case(s, d, *batch, block) for batch in longer for d in ("bfloat16", "float32")
            for s in shapes]  # fmt: skip
    return list(dict.fromkeys([*first, *singles, *blocks, *exact, *rest]))


class Runner:
    """A case's compiled block of steps, with its state.

    Args:
      case: what to run.
      vocab_size: V.
    """

    def __init__(self, case: Case, vocab_size: int) -> None:
        import jax
        from flax import linen as nn

        from scalelab import state, step

        begun = time.perf_counter()
        sizes = {"batch_size": case.batch_size, "length": case.length, "vocab_size": vocab_size}
        run = common.abstract_run("bert", case.shape, dtype=case.dtype, **sizes)
        block = train = step.make_train_step(run.net, run.objectives, run.tx)

        def fresh(seed: Any) -> Any:
            key, parts = jax.random.key(seed), (run.net, run.objectives, run.tx)
            return nn.unbox(state.fresh(key, *parts, max_len=case.length))

        def scanned(now: Any, batches: Any, rate: Any) -> Any:
            return jax.lax.scan(lambda s, b: train(s, b, rate), now, batches)

        batches, seeds = run.random_batch(case.length, case.batch_size), np.int32(0)
        if case.block > 1:
            block = scanned
            batches = {k: np.stack([v] * case.block) for k, v in batches.items()}
        if case.seeds > 1:
            seeds = np.arange(case.seeds)
            fresh, block = jax.vmap(fresh), jax.vmap(block, in_axes=(0, 0, None))
            batches = {k: np.stack([v] * case.seeds) for k, v in batches.items()}
        rng = np.random.default_rng(0)
        batches["tokens"] = rng.permuted(batches["tokens"], axis=-1)  # no two batches are the same
        self.forward, self.state = run.phases[0].forward, jax.jit(fresh)(seeds)
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


def exact_products(dtype: str) -> Any:
    """Returns a context in which products have the precision of their dtype."""
    import jax

    return jax.default_matmul_precision("float32" if dtype == "float32" else "default")


def build(case: Case, vocab_size: int) -> Runner:
    """Compiles a case."""
    with exact_products(case.dtype):
        return Runner(case, vocab_size)


def measure(
    case: Case, runner: Runner, peaks: Callable[[str], dict[str, float | None]]
) -> dict[str, Any]:
    """Times a case.

    Args:
      case: what to run.
      runner: the case, compiled.
      peaks: dtype -> FLOP/s, "table" and "measured".
    """
    with exact_products(case.dtype):
        peak = peaks(case.dtype)
        runner()
        dispatches = -(-BLOCK // case.block)
        secs = statistics.median(
            runner(dispatches) / (dispatches * case.block) for _ in range(REPEATS)
        )
    rate = runner.forward.train * case.seeds / secs
    planned = runner.compiled.memory_analysis()
    return dataclasses.asdict(case) | {
        "ms": secs * 1e3,
        "tokens_per_sec": case.seeds * case.batch_size * case.length / secs,
        "share_of_peak": rate / peak["table"] if peak["table"] else None,
        "share_of_product": rate / (peak["measured"] or 1.0),
        "memory_bytes": planned.argument_size_in_bytes + planned.temp_size_in_bytes,
        "compile_secs": runner.compile_secs,
    }


def make_peaks(found: dict[str, dict[str, float | None]]) -> Callable[..., Any]:
    """Returns a function that measures the peak of each dtype once, and keeps it in `found`."""
    import jax

    from scalelab.resources import devices, flops

    known = devices.of_kind(jax.devices()[0].device_kind)

    def peaks(dtype: str) -> dict[str, float | None]:
        if dtype not in found:
            table = known and (known.narrow_peak if dtype == "bfloat16" else known.wide_peak)
            found[dtype] = {"table": table, "measured": flops.measure_peak(dtype)}
        return found[dtype]

    return peaks


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measures round by round until the time is over."""
    import jax

    from scalelab.runs import environment

    begun, folder = time.perf_counter(), pathlib.Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    about = environment.describe()
    todo = list_cases(given.shapes, given.batches, given.block)
    found: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "platform": jax.devices()[0].platform,
        "jax": jax.__version__,
        "commit": (about["git_commit"] or "unknown")[:10] + " changed" * bool(about["git_dirty"]),
        "command": about["command"],
        "peaks": {},
        "rows": [],
        "left": [case.name for case in todo],
    }
    peaks, at_once = make_peaks(found["peaks"]), max(1, len(environment.cores()) // 2)
    while todo and (not found["rows"] or time.perf_counter() - begun < 60 * given.minutes):
        cases, todo = todo[:at_once], todo[at_once:]
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            built = [pool.submit(build, case, given.vocab_size) for case in cases]
        for case in cases:
            try:
                row = measure(case, built.pop(0).result(), peaks)
            except Exception as error:  # one line must not cost the others
                reason = (str(error) or repr(error)).splitlines()[0][:120]
                row = dataclasses.asdict(case) | {"error": reason}
            found["rows"].append(row)
            found["left"].remove(case.name)
            print(case.name, f"{row['ms']:.3f} ms" if "ms" in row else row["error"], flush=True)
            for suffix, text in (("json", json.dumps(found, indent=1)), ("md", markdown(found))):
                path = folder / f"accelerator.{suffix}"
                path.with_suffix(".new").write_text(text + "\n", encoding="utf-8")
                path.with_suffix(".new").replace(path)
    return found


def conclude(rows: list[dict[str, Any]], platform: str) -> list[str]:
    """Says what the lines mean for the targets, which are not judged on CPU."""

    def verdict(met: bool) -> str:
        return "not judged on CPU" if platform == "cpu" else "met" if met else "not met"

    rows = [row for row in rows if "ms" in row]
    single = {(r["shape"], r["length"], r["block"]): r for r in rows
              if r["dtype"] == "bfloat16" and r["seeds"] == 1}  # fmt: skip
    lines = []
    for text, shape, key, is_met in TARGETS:
        row = single.get((shape, 128, 1))
        if row and row[key] is not None:
            lines.append(f"{text}: {row[key]:.3g}, {verdict(is_met(row[key]))}")
    for row in rows:
        base = single.get((row["shape"], row["length"], row["block"]))
        if row["seeds"] > 1 and base:
            ratio = row["seeds"] * base["ms"] / row["ms"]
            lines.append(
                f"{row['seeds']} seeds of {row['shape']} in one program: {ratio:.2f}x one after"
                f" another (target {SEEDS_TARGET:g}), {verdict(ratio >= SEEDS_TARGET)}"
            )
    return lines


def markdown(found: dict[str, Any]) -> str:
    """Formats the table and the conclusions."""
    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    for r in found["rows"]:
        cells = [r["shape"], r["dtype"], f"{r['batch_size']} x {r['length']}", str(r["seeds"])]
        cells.append(str(r["block"]))
        if "ms" in r:
            shares = (r["share_of_peak"], r["share_of_product"])
            cells += [f"{r['ms']:.3g}", f"{r['tokens_per_sec']:,.0f}"]
            cells += ["-" if share is None else f"{share:.3f}" for share in shares]
            cells += [f"{r['memory_bytes'] / 2**30:.2f} GiB", f"{r['compile_secs']:.0f} s"]
        else:
            cells.append(r["error"])
        lines.append(f"| {' | '.join(cells + [''] * (len(HEADER) - len(cells)))} |")
    peaks = [
        f"{dtype}: measured product {peak['measured'] / 1e12:,.3g} TFLOP/s"
        + (f", table {peak['table'] / 1e12:,.3g}" if peak["table"] else "")
        for dtype, peak in found["peaks"].items()
    ]
    head = f"{found['device']}, JAX {found['jax']}, commit {found['commit']}\n`{found['command']}`"
    conclusions = [f"- {line}" for line in conclude(found["rows"], found["platform"])]
    left = [f"\nnot reached in the time: {', '.join(found['left'])}"] if found["left"] else []
    return "\n".join([head, *peaks, "", *lines, "", *conclusions, *left])


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = common.make_parser("accelerator", __doc__, threads=False)
    made.add_argument("--out", default="accelerator", metavar="DIR", help="for both files")
    made.add_argument("--minutes", type=float, default=8.5, help="no round starts after these")
    made.add_argument("--shapes", type=common.comma_list(common.shape), default=SHAPES,
                      help="heads x width x layers, joined by commas")  # fmt: skip
    made.set_defaults(batches=BATCHES, vocab_size=30_000, block=BLOCK)
    return common.parse(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Measures, and prints the table; fails where no line could be measured."""
    found = run(given)
    common.write_json(found, given.json)
    print("\n" + markdown(found))
    if not any("ms" in row for row in found["rows"]):
        cli.fail(f"no line was measured; {given.out}/accelerator.md says why", exit_code=1)


if __name__ == "__main__":
    common.start(parse, main)
