"""Training steps on a GPU or TPU, in one command.

  python -m benchmarks.accelerator --out=DIR [--minutes=8.5] [--shapes=2x256x9,13x832x5]
      [--candidate=fused_attention] [--quick]

BERT's step (MLM and NSP, dropout 0.1, AdamW, vocabulary 30,000) at the protocol's shapes, in
bfloat16 and float32, on random batches of 64 x 128 and 16 x 512 without padding: one step a
dispatch, as `scalelab.train` runs, by which the targets are judged; and a block of them
(`lax.scan`), which says what a small net would gain if it did not wait for Python. Then eight seeds
of 2x128x2 in one program (`vmap`) against the same one after another. Targets are not judged on
CPU. With --candidate lines are of that where it fits (lengths of at most 128, heads of a power
of two), and say so; it has not run on a GPU yet.

Needs neither corpus, TensorFlow nor network. Compiling takes longer than measuring, so a line for
every two cores is compiled at once; then each is timed while nothing else runs. What matters most
comes first, and accelerator.json and accelerator.md in DIR are written anew after each line: a cut
leaves what was done. The first round takes as long as it takes to compile (five minutes on an H100
with 16 cores); of the others those lines go on that are done in time, by what a layer has taken so
far, and the rest are named. Shares are useful FLOPs (flops.py)
of the device's peak in `scalelab/resources/devices.py`, and of the largest square product measured
here in the same dtype.

RESULTS.md has eight lines, measured with --minutes=2; no run with the default minutes was done yet.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks import accelerator_report as report
from benchmarks import arguments as command_line
from benchmarks import side_by_side
from scalelab.config import cli

SHAPES = ("2x256x9", "13x832x5", "2x128x2", "7x448x4", "7x469x4", "2x128x36")
BATCHES = ((64, 128), (16, 512))
DTYPES = ("bfloat16", "float32")
SEEDS, SEEDS_SHAPE = 8, "2x128x2"
QUICK = {"shapes": ["2x8x1"], "batches": ((4, 16),), "vocab_size": 97, "block": 2}
BLOCK, REPEATS = 16, 5  # steps that are timed together, and times of which the median is taken
CANDIDATES = ("fused_attention",)
SYSTEM, VOCAB_SIZE, LEARNING_RATE = "bert", 30_000, 1e-4


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
    def num_layers(self) -> int:
        """That are compiled: of a loop one, with another for what is around it."""
        from scalelab.nn.stack import in_a_loop

        num_layers = int(self.shape.split("x")[2])
        return 2 if in_a_loop(num_layers, "none") else num_layers

    @property
    def name(self) -> str:
        """For people."""
        seeds = f", {self.seeds} seeds" if self.seeds > 1 else ""
        return f"{self.shape} {self.dtype} {self.batch_size} x {self.length}{seeds} by {self.block}"


def cases(shapes: Sequence[str], batches: tuple[tuple[int, int], ...], block: int) -> list[Case]:
    """All lines: what the targets are judged by, a float32 line, then the rest."""
    short, *longer = batches
    singles = [Case(shape, "bfloat16", *short, 1) for shape in shapes]
    blocks = [Case(shape, "bfloat16", *short, block) for shape in shapes]
    alone = next((case for case in blocks if case.shape == SEEDS_SHAPE), blocks[-1])
    exact = [Case(shape, "float32", *short, block) for shape in shapes]
    first = [*singles[:2], alone, dataclasses.replace(alone, seeds=SEEDS), exact[0]]
    rest = [Case(s, d, *batch, block) for batch in longer for d in DTYPES for s in shapes]
    return list(dict.fromkeys([*first, *singles, *blocks, *exact, *rest]))


def with_candidate(name: str | None, interpret: bool = False) -> Any:
    """A context in which BERT's net is built with a candidate in place of its own part."""
    if name is None:
        return contextlib.nullcontext()
    from benchmarks import fused_attention
    from scalelab.systems import bert

    made = fused_attention.fused_attention(interpret)
    return mock.patch.object(bert, "SelfAttention", made)


def takes(case: Case, candidate: str | None) -> str | None:
    """The candidate, if it is what the case's net has; where it does not fit, the net is ours."""
    from benchmarks import fused_attention

    heads, width, _ = map(int, case.shape.split("x"))
    return candidate if fused_attention.fits(case.length, width // heads) else None


def add_candidate(made: cli.Parser) -> None:
    """Adds --candidate."""
    known = command_line.one_of("candidate", CANDIDATES)
    made.add_argument("--candidate", type=known, help=f"in its part's place: {CANDIDATES[0]}")


def blueprint_of(case: Case, vocab_size: int) -> Any:
    """A case's run in the abstract."""
    from scalelab.config import files
    from scalelab.config import pretraining as config_lib
    from scalelab.resources import blueprint

    pretrain = files.load(files.FOLDER / "pretrain.py")
    made = pretrain.get_config(f"system={SYSTEM},shape={case.shape},steps=1000")
    made.net.dtype, made.tokenizer.vocab_size = case.dtype, vocab_size
    made.short.max_len, made.short.batch_size = case.length, case.batch_size
    made.long.example_rate = 0.0
    return blueprint.draw(config_lib.resolve(made.to_dict()))


class Program(NamedTuple):
    """A case's functions and what they are given.

    Attributes:
      plan: the run in the abstract.
      fresh: seeds -> state.
      block: (state, batches, learning rate) -> (state, metrics), `case.block` steps.
      seeds: of the runs; one number where there is one run.
      batches: of random tokens, [steps, B, T], [B, T] where a block is one step; of several runs
        stacked before that.
    """

    plan: Any
    fresh: Callable[[Any], Any]
    block: Callable[[Any, Any, Any], Any]
    seeds: Any
    batches: dict[str, Any]


def program(case: Case, vocab_size: int) -> Program:
    """Makes a case's functions; nothing is compiled."""
    import jax
    from flax import linen as nn

    from scalelab import state, step

    plan = blueprint_of(case, vocab_size)
    train = step.make_train_step(plan.net, plan.objectives, plan.tx)

    def fresh(seed: Any) -> Any:
        made = state.fresh(
            jax.random.key(seed), plan.net, plan.objectives, plan.tx, max_len=case.length
        )
        return nn.unbox(made)

    def scanned(now: Any, batches: Any, rate: Any) -> Any:
        return jax.lax.scan(lambda s, b: train(s, b, rate), now, batches)

    several, block = plan.random_batch(case.length, case.batch_size), train
    if case.block > 1:
        block = scanned
        several = {k: np.stack([v] * case.block) for k, v in several.items()}
    seeds: Any = np.int32(0)
    if case.seeds > 1:
        seeds = np.arange(case.seeds)
        fresh, block = jax.vmap(fresh), jax.vmap(block, in_axes=(0, 0, None))
        several = {k: np.stack([v] * case.seeds) for k, v in several.items()}
    rng = np.random.default_rng(0)
    several["tokens"] = rng.permuted(several["tokens"], axis=-1)  # no two batches are the same
    return Program(plan, fresh, block, seeds, several)


class Runner:
    """A case's compiled block of steps, with its state.

    Args:
      case: what to run.
      vocab_size: V.
    """

    def __init__(self, case: Case, vocab_size: int) -> None:
        import jax

        begun = time.perf_counter()
        made = program(case, vocab_size)
        self.plan, self.case = made.plan, case
        self.state = jax.jit(made.fresh)(made.seeds)
        self.batches, self.rate = jax.device_put(made.batches), np.float32(LEARNING_RATE)
        jitted = jax.jit(made.block, donate_argnums=0)
        self.run = jitted.lower(self.state, self.batches, self.rate).compile()
        self.compile_secs = time.perf_counter() - begun

    def __call__(self, dispatches: int = 1) -> float:
        """So many dispatches, none waited for before the next, as in training; their seconds."""
        import jax

        begun = time.perf_counter()
        for _ in range(dispatches):
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


def measure(
    case: Case,
    runner: Runner,
    peaks: Callable[[str], dict[str, Any]],
    candidate: str | None = None,
) -> dict[str, Any]:
    """Times a case.

    Args:
      case: what to run.
      runner: the case, compiled.
      peaks: of a dtype: "table" and "measured" FLOP/s.
      candidate: which the net was built with, where it fits.
    """
    with exactly(case.dtype):
        peak = peaks(case.dtype)
        runner()
        count = -(-BLOCK // case.block)
        each = [runner(count) / (count * case.block) for _ in range(REPEATS)]
    secs = statistics.median(each)
    rate = runner.plan.phases[0].forward.train * case.seeds / secs
    planned = runner.run.memory_analysis()
    return dataclasses.asdict(case) | {
        "candidate": takes(case, candidate),
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

    from scalelab.resources import devices, flops

    known = devices.of_kind(jax.devices()[0].device_kind)
    found: dict[str, dict[str, Any]] = {}

    def peaks(dtype: str) -> dict[str, Any]:
        if dtype not in found:
            table = known and (known.narrow_peak if dtype == "bfloat16" else known.wide_peak)
            found[dtype] = {"table": table, "measured": flops.measure_peak(dtype)}
        return found[dtype]

    return peaks


def in_time(
    todo: list[Case], at_once: int, secs_left: float, secs_a_layer: float | None
) -> list[Case]:
    """The first lines that a round compiles together and that are done in time; None: all are."""
    done = lambda case: secs_a_layer is None or case.num_layers * secs_a_layer <= secs_left  # noqa: E731
    return [case for case in todo if done(case)][:at_once]


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measures round by round until the time is over."""
    import jax

    from scalelab.runs import environment

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
    secs_a_layer = None  # of a round so far
    while todo:
        start = time.perf_counter()
        some = in_time(todo, at_once, 60 * given.minutes - (start - begun), secs_a_layer)
        if not some:
            found["left"] = [case.name for case in todo]
            report.write(folder, found)
            break
        todo = [case for case in todo if case not in some]
        with concurrent.futures.ThreadPoolExecutor(at_once) as compiling:
            built = [compiling.submit(build, case, given.vocab_size) for case in some]
        for case in some:
            try:
                row = measure(case, built.pop(0).result(), peaks, given.candidate)
                known[case.dtype] = peaks(case.dtype)
            except Exception as error:  # one line must not cost the others
                why = (str(error) or repr(error)).splitlines()[0][:120]
                had = {"candidate": takes(case, given.candidate), "error": why}
                row = dataclasses.asdict(case) | had
            found["rows"].append(row)
            print(case.name, f"{row['ms']:.3f} ms" if "ms" in row else row["error"], flush=True)
            found["secs"] = time.perf_counter() - begun
            report.write(folder, found)
        took = (time.perf_counter() - start) / max(case.num_layers for case in some)
        secs_a_layer = max(secs_a_layer or 0.0, took)
    return found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("accelerator", __doc__)
    made.add_argument("--out", type=command_line.folder, default="accelerator", metavar="DIR",
                      help="for both files")  # fmt: skip
    made.add_argument("--minutes", type=command_line.positive, default=8.5, help="after the first"
                      " round no line is begun that would end later")  # fmt: skip
    made.add_argument("--shapes", type=command_line.listed(command_line.shape), default=SHAPES,
                      help="heads x width x layers, joined by commas")  # fmt: skip
    add_candidate(made)
    command_line.add_quick(made, "a tiny net, to see that it runs")
    made.set_defaults(batches=BATCHES, vocab_size=VOCAB_SIZE, block=BLOCK)
    return command_line.read(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Measures, and prints the table; fails where no line could be measured."""
    with with_candidate(given.candidate):
        found = run(given)
    print("\n" + report.markdown(found))
    if not report.measured(found["rows"]):
        cli.fail(f"no line was measured; {given.out}/accelerator.md says why", exit_code=1)


if __name__ == "__main__":
    side_by_side.start(parse, main, only_tells=False)
