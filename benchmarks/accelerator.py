"""Training steps on a GPU or TPU, in one command and under nine minutes.

  python -m benchmarks.accelerator --out=DIR [--minutes=8.5] [--shapes=2x256x9,13x832x5] [--quick]

BERT's step (MLM and NSP, dropout 0.1, AdamW, vocabulary 30,000) at the protocol's shapes, in
bfloat16 and float32, on random batches of 64 x 128 and 16 x 512 without padding: one step a
dispatch, as `scalelab.train` runs, by which the targets are judged; and a block of them
(`lax.scan`), which says what a small net would gain if it did not wait for Python. Then eight seeds
of 2x128x2 in one program (`vmap`) against the same one after another. Targets are not judged on
CPU.

Needs neither corpus, TensorFlow nor network. Compiling takes longer than measuring, so a line for
every two cores is compiled at once; then each is timed while nothing else runs. What matters most
comes first, and accelerator.json and accelerator.md in DIR are written anew after each line: a cut
leaves what was done. Lines for which no time was left are named. Shares are useful FLOPs (flops.py)
of the device's peak in `scalelab/devices.py`, and of the largest square product measured here in the same dtype.
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

from benchmarks import arguments as command_line
from benchmarks import side_by_side
from scalelab import cli

SHAPES = ("2x256x9", "13x832x5", "2x128x2", "7x448x4", "7x469x4", "2x128x36")
BATCHES = ((64, 128), (16, 512))
DTYPES = ("bfloat16", "float32")
SEEDS, SEEDS_SHAPE = 8, "2x128x2"
QUICK = {"shapes": ["2x8x1"], "batches": ((4, 16),), "vocab_size": 97, "block": 2}
BLOCK, REPEATS = 16, 5  # steps of a dispatch, and dispatches of which the median is taken
SYSTEM, VOCAB_SIZE, LEARNING_RATE = "bert", 30_000, 1e-4
TARGETS = (
    ("2x256x9, bfloat16, 64 x 128: under 2 ms a step", "2x256x9", "ms", 2.0),
    ("13x832x5, bfloat16, 64 x 128: share of peak 0.35", "13x832x5", "share_of_peak", 0.35),
)
HEADER = ("shape", "dtype", "batch", "seeds", "steps a dispatch", "ms a step", "tokens/s")
HEADER += ("share of peak", "of measured product", "memory", "compiled in")


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table; `block` steps a dispatch, of `seeds` runs together."""

    shape: str
    dtype: str
    batch_size: int
    length: int
    block: int
    seeds: int = 1

    @property
    def name(self) -> str:
        """For people."""
        seeds = f", {self.seeds} seeds" if self.seeds > 1 else ""
        return f"{self.shape} {self.dtype} {self.batch_size} x {self.length}{seeds} by {self.block}"


def cases(shapes: Sequence[str], batches: tuple[tuple[int, int], ...], block: int) -> list[Case]:
    """All lines, what matters most first."""
    short, *longer = batches
    found = [Case(shape, "bfloat16", *short, block) for shape in shapes]
    at = next((i for i, c in enumerate(found) if c.shape == SEEDS_SHAPE), len(found) - 1)
    found.insert(at + 1, dataclasses.replace(found[at], seeds=SEEDS))
    found = [Case(shape, "bfloat16", *short, 1) for shape in shapes] + found
    found += [Case(shape, "float32", *short, block) for shape in shapes]
    found += [Case(s, d, *batch, block) for batch in longer for d in DTYPES for s in shapes]
    return found


def blueprint_of(case: Case, vocab_size: int) -> Any:
    """A case's run in the abstract."""
    from scalelab import blueprint, config_files
    from scalelab import config as config_lib

    pretrain = config_files.load(config_files.FOLDER / "pretrain.py")
    made = pretrain.get_config(f"system={SYSTEM},shape={case.shape},steps=1000")
    made.net.dtype, made.tokenizer.vocab_size = case.dtype, vocab_size
    made.short.max_len, made.short.batch_size = case.length, case.batch_size
    made.long.example_rate = 0.0
    return blueprint.draw(config_lib.resolve(made.to_dict()))


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

        plan = blueprint_of(case, vocab_size)
        self.plan, self.case = plan, case
        train = step.make_train_step(plan.net, plan.objectives, plan.tx)

        def fresh(seed: Any) -> Any:
            made = state.fresh(
                jax.random.key(seed), plan.net, plan.objectives, plan.tx, max_len=case.length
            )
            return nn.unbox(made)

        def block(now: Any, batches: Any, rate: Any) -> Any:
            return jax.lax.scan(lambda s, b: train(s, b, rate), now, batches)

        one = plan.random_batch(case.length, case.batch_size)
        several = {k: np.stack([v] * case.block) for k, v in one.items()}
        if case.seeds > 1:
            seeds = np.arange(case.seeds)
            fresh, block = jax.vmap(fresh), jax.vmap(block, in_axes=(0, 0, None))
            several = {k: np.stack([v] * case.seeds) for k, v in several.items()}
        else:
            seeds = np.int32(0)
        rng = np.random.default_rng(0)
        several["tokens"] = rng.permuted(several["tokens"], axis=-1)  # no two batches are the same
        begun = time.perf_counter()
        self.state = jax.jit(fresh)(seeds)
        self.batches, self.rate = jax.device_put(several), np.float32(LEARNING_RATE)
        jitted = jax.jit(block, donate_argnums=0)
        self.run = jitted.lower(self.state, self.batches, self.rate).compile()
        self.compile_secs = time.perf_counter() - begun

    def __call__(self) -> float:
        """One dispatch; its seconds."""
        import jax

        begun = time.perf_counter()
        self.state, metrics = self.run(self.state, self.batches, self.rate)
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - begun


def exactly(dtype: str) -> Any:
    """A context in which products have the precision of their dtype."""
    import jax

    return jax.default_matmul_precision("float32" if dtype == "float32" else "default")


def build(case: Case, vocab_size: int) -> Runner:
    """Compiles a case."""
    with exactly(case.dtype):
        return Runner(case, vocab_size)


def measure(case: Case, runner: Runner, peaks: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Times a case.

    Args:
      case: what to run.
      runner: the case, compiled.
      peaks: of a dtype: "table" and "measured" FLOP/s.
    """
    with exactly(case.dtype):
        peak = peaks(case.dtype)
        runner()
        each = [runner() / case.block for _ in range(REPEATS)]
    secs = statistics.median(each)
    rate = runner.plan.phases[0].forward.train * case.seeds / secs
    planned = runner.run.memory_analysis()
    return dataclasses.asdict(case) | {
        "ms": secs * 1e3,
        "each_ms": [one * 1e3 for one in each],
        "tokens_per_sec": case.seeds * case.batch_size * case.length / secs,
        "flops_per_sec": rate,
        "share_of_peak": rate / peak["table"] if peak["table"] else None,
        "share_of_product": rate / peak["measured"],
        "memory_bytes": planned.argument_size_in_bytes + planned.temp_size_in_bytes,
        "compile_secs": runner.compile_secs,
    }


def find_peaks() -> Callable[[str], dict[str, Any]]:
    """Gives the peaks of a dtype, each measured once."""
    import jax

    from scalelab import devices, flops

    known = devices.of_kind(jax.devices()[0].device_kind)
    found: dict[str, dict[str, Any]] = {}

    def peaks(dtype: str) -> dict[str, Any]:
        if dtype not in found:
            table = known and (known.narrow_peak if dtype == "bfloat16" else known.wide_peak)
            found[dtype] = {"table": table, "measured": flops.measure_peak(dtype)}
        return found[dtype]

    return peaks


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that did not fail."""
    return [row for row in rows if "ms" in row]


def conclusions(rows: list[dict[str, Any]], platform: str) -> list[str]:
    """What the lines say about the targets.

    Args:
      rows: the lines.
      platform: JAX's word for the kind of device; the targets are none for "cpu".
    """
    rows = measured(rows)
    if not rows:
        return ["no line was measured"]

    def verdict(met: bool) -> str:
        return "not judged on CPU" if platform == "cpu" else "met" if met else "not met"

    said = []
    whole = [r for r in rows if r["dtype"] == "bfloat16" and r["seeds"] == 1]
    for text, shape, key, wanted in TARGETS:
        of_shape = [r for r in whole if r["shape"] == shape and r["length"] == BATCHES[0][1]]
        for row in sorted(of_shape, key=lambda row: row["block"]):
            value, block = row[key], row["block"]
            if value is None:
                continue
            if block == 1:
                met = value < wanted if key == "ms" else value >= wanted
                said.append(f"{text}: {value:.3g}, {verdict(met)}")
            else:
                said.append(f"{text}: {block} steps a dispatch would give {value:.3g}")
    for row in rows:
        if row["seeds"] > 1:
            alone = [r for r in whole if r["shape"] == row["shape"] and r["block"] == row["block"]
                     and r["length"] == row["length"]]  # fmt: skip
            if alone:
                ratio = row["seeds"] * alone[0]["ms"] / row["ms"]
                said.append(
                    f"{row['seeds']} seeds of {row['shape']} together, {row['block']} steps a"
                    f" dispatch: {ratio:.2f}x one after another (target 4 on an H200),"
                    f" {verdict(ratio >= 4)}"
                )
    return said


def markdown(found: dict[str, Any]) -> str:
    """The table, and what it says."""
    share = lambda value: "-" if value is None else f"{value:.3f}"  # noqa: E731
    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    for r in found["rows"]:
        start = [r["shape"], r["dtype"], f"{r['batch_size']} x {r['length']}", str(r["seeds"])]
        start.append(str(r["block"]))
        if "error" in r:
            cells = [*start, r["error"], *[""] * (len(HEADER) - len(start) - 1)]
        else:
            cells = [
                *start, f"{r['ms']:.3g}", f"{r['tokens_per_sec']:,.0f}", share(r["share_of_peak"]),
                share(r["share_of_product"]), f"{r['memory_bytes'] / 2**30:.2f} GiB",
                f"{r['compile_secs']:.0f} s",
            ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    peaks = "; ".join(
        f"{dtype}: measured product {p['measured'] / 1e12:,.3g} TFLOP/s"
        + (f", table {p['table'] / 1e12:,.3g}" if p["table"] else "")
        for dtype, p in found["peaks"].items()
    )
    head = (
        f"{found['device']}, JAX {found['jax']}, commit {found['commit']}, {found['secs']:.0f} s\n"
        f"`{found['command']}`\n{peaks}\n\n"
    )
    left = f"\nnot reached in the time: {', '.join(found['left'])}\n" if found["left"] else ""
    said = "".join(f"- {text}\n" for text in conclusions(found["rows"], found["platform"]))
    return head + "\n".join(lines) + "\n\n" + said + left


def write(folder: pathlib.Path, found: dict[str, Any]) -> None:
    """Writes both files, each at once or not at all."""
    texts = {"json": json.dumps(found, indent=1) + "\n", "md": markdown(found)}
    for suffix, text in texts.items():
        path = folder / f"accelerator.{suffix}"
        path.with_suffix(".new").write_text(text, encoding="utf-8")
        path.with_suffix(".new").replace(path)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measures round by round until the time is over."""
    import jax

    from scalelab import environment

    begun = time.perf_counter()
    folder = pathlib.Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    about = environment.describe()
    peaks, known = find_peaks(), {}
    todo = cases(given.shapes, given.batches, given.block)
    found: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "platform": jax.devices()[0].platform,
        "jax": jax.__version__,
        "commit": (about["git_commit"] or "unknown")[:10] + " changed" * bool(about["git_dirty"]),
        "command": about["command"],
        "peaks": known,
        "rows": [],
        "left": [],
        "secs": 0.0,
    }
    at_once = max(1, len(environment.cores()) // 2)
    longest = 0.0  # of a round so far: the next is not begun where so much time is not left
    for first in range(0, len(todo), at_once):
        start = time.perf_counter()
        if first and start - begun + longest > 60 * given.minutes:
            found["left"] = [case.name for case in todo[first:]]
            write(folder, found)
            break
        some = todo[first : first + at_once]
        with concurrent.futures.ThreadPoolExecutor(at_once) as compiling:
            built = [compiling.submit(build, case, given.vocab_size) for case in some]
        for case in some:
            try:
                row = measure(case, built.pop(0).result(), peaks)
                known[case.dtype] = peaks(case.dtype)
            except Exception as error:  # one line must not cost the others
                row = dataclasses.asdict(case) | {"error": str(error).splitlines()[0][:120]}
            found["rows"].append(row)
            print(case.name, f"{row['ms']:.3f} ms" if "ms" in row else row["error"], flush=True)
            found["secs"] = time.perf_counter() - begun
            write(folder, found)
        longest = max(longest, time.perf_counter() - start)
    return found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("accelerator", __doc__)
    made.add_argument("--out", type=command_line.folder, default="accelerator", metavar="DIR",
                      help="for both files")  # fmt: skip
    made.add_argument("--minutes", type=command_line.positive, default=8.5, help="no round is begun"
                      " that would end later, to judge by the longest so far")  # fmt: skip
    made.add_argument("--shapes", type=command_line.listed(command_line.shape), default=SHAPES,
                      help="heads x width x layers, joined by commas")  # fmt: skip
    command_line.add_quick(made, "a tiny net, to see that it runs")
    made.set_defaults(batches=BATCHES, vocab_size=VOCAB_SIZE, block=BLOCK)
    return command_line.read(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Measures, and prints the table; fails where no line could be measured."""
    found = run(given)
    print("\n" + markdown(found))
    if not measured(found["rows"]):
        cli.fail(f"no line was measured; {given.out}/accelerator.md says why", exit_code=1)


if __name__ == "__main__":
    side_by_side.start(parse, main, only_tells=False)
