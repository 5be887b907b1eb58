"""Speed of a training step: ours, PyTorch's, and the floor of its matrix products.

  python -m benchmarks.step [--systems=bert] [--shapes=2x128x2,2x256x9,7x448x4] [--batch_size=64]
      [--length=128] [--vocab_size=30000] [--peers=stock,tuned,compiled] [--steps=1] [--repeats=5]
      [--threads=2] [--json=FILE] [--quick]

A step is forward, backward and update in float32: the system's own objectives on a batch without
padding, 15% of the tokens predicted where it masks, dropout 0.1, clipping, AdamW. All sides run
alternately in one process; the numbers are medians of the repetitions.

  ours      the step that scalelab.train runs, masking included
  floor     its matrix products alone, forward and backward (floor.py)
  stock     the class of `transformers`: its attention and loss, clip_grad_norm_, fused AdamW
  tuned     the same with the head on the predicted positions alone
  compiled  tuned, through torch.compile

PyTorch gets batches that are masked already and starts from our weights; the program checks that
all losses without dropout are equal. Compiling is timed apart, and three steps of each side go
untimed. "Of peak" divides the useful FLOPs (flops.py) by the largest rate of a square matrix
product in the same process. Ratios are given by wall time and by CPU time of all threads: on a busy
machine the second says more, though PyTorch's threads spin while they wait. All sides keep freed
memory (resources/malloc.py), from which PyTorch gains too.

`--shapes=12x768x12 --batch_size=8 --vocab_size=30522` is BERT-base. For the memory of a step see
`python -m scalelab.fit`.

Targets at 64 x 128 on two cores: 8x, 2.9x and 3.7x stock; 0.75, 0.85 and 0.85 of the floor; 1.3x
tuned and compiled.
"""

import argparse
import collections
import gc
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import common
from scalelab.helpers.names import module_names

SHAPES = ["2x128x2", "2x256x9", "7x448x4"]
PEERS = ("stock", "tuned", "compiled")
UNTIMED = 3  # a process that keeps freed memory meets new pages in its first few steps
QUICK = {
    "shapes": ["2x8x2"], "vocab_size": 97, "batch_size": 4, "length": 16, "repeats": 2,
    "peers": ["stock", "tuned"],
}  # fmt: skip
COLUMNS = ("ms a step", "CPU ms", "tokens/s", "over ours", "by CPU", "of peak", "by CPU", "compile")


class Ours:
    """The step of scalelab.train, on one batch over and over.

    Args:
      run: the abstract run, with one phase.
    """

    def __init__(self, run: Any) -> None:
        import jax

        from scalelab import sharding, step

        (phase,) = run.phases
        self.plan, self.key = run, jax.random.key(1)
        self.batch, mesh = run.random_batch(phase.length, phase.batch_size), sharding.make_mesh()
        self.state, self.rate = run.start(mesh), np.float32(run.config.optim.learning_rate)
        begun = time.perf_counter()
        self.compiled = run.compile(phase.length, phase.batch_size, mesh)
        self.compile_secs = time.perf_counter() - begun
        self.eval_step = step.make_eval_step(run.net, run.objectives)

    def masked_batch(self) -> dict[str, np.ndarray]:
        """Returns the batch as the objectives prepare it."""
        import jax

        from scalelab import objectives

        masks = objectives.named_key(self.key, "mask")
        return jax.device_get(objectives.prepare(self.batch, self.plan.objectives, masks))

    def loss(self) -> float:
        """Returns the summed loss of the masked batch, without dropout."""
        import jax

        found = jax.jit(self.eval_step)(self.state.params, self.batch, self.key)
        return sum(
            float(total / weight) for k, (total, weight) in found.items() if k.endswith("_loss")
        )

    def __call__(self, steps: int) -> None:
        """Takes steps and waits for the last."""
        import jax

        for _ in range(steps):
            self.state, _ = self.compiled(self.state, self.batch, self.rate)
        jax.block_until_ready(self.state)


def make_sides(
    run: Any, given: argparse.Namespace, missing: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Builds all sides.

    Args:
      run: the abstract run.
      given: the command line.
      missing: why PyTorch cannot be measured, or None.

    Returns:
      Name -> side, a call of which takes steps; and name -> why a peer is left out.
    """
    from benchmarks import floor

    ours = Ours(run)
    sides, left_out = {"ours": ours, "floor": floor.Floor(run)}, {}
    for name in given.peers:
        if missing:
            left_out[name] = missing
            continue
        from benchmarks import peers

        try:
            sides[name] = peers.make_step(name, ours, given.threads)
        except Exception as error:  # whatever torch.compile meets on this machine
            if name != "compiled":
                raise
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return sides, left_out


def check_losses(sides: dict[str, Any]) -> dict[str, float]:
    """Returns the loss of each side without dropout; ends the program where they differ."""
    losses = {name: side.loss() for name, side in sides.items() if hasattr(side, "loss")}
    if any(abs(loss / losses["ours"] - 1) > 1e-4 for loss in losses.values()):
        raise SystemExit(f"these are not the same net: losses {losses}")
    return losses


def measure_case(
    system: str, shape: str, given: argparse.Namespace, peak: Any, missing: Any
) -> Any:
    """Runs all sides of a system at a shape alternately; returns their numbers."""
    from scalelab.resources import flops

    sizes = {name: getattr(given, name) for name in ("batch_size", "length", "vocab_size")}
    run = common.abstract_run(system, shape, **sizes)
    sides, left_out = make_sides(run, given, missing)
    count = run.phases[0].forward
    found: dict[str, Any] = {
        "system": system,
        "shape": shape,
        "parameters": flops.count_parameters(run.state.params),
        "flops": {"body": count.body, "attention": count.attention, "head": count.head,
                  "train": count.train},
        "losses": check_losses(sides),
        "left_out": left_out,
    }  # fmt: skip
    for _ in range(UNTIMED):
        for side in sides.values():
            side(1)
    calls = collections.defaultdict(list)
    for _ in range(given.repeats):
        peak()
        for name, side in sides.items():
            calls[name].append(common.timed(side, given.steps))
    for name, side in sides.items():
        wall, cpu = (
            statistics.median(getattr(call, clock) for call in calls[name]) / given.steps
            for clock in common.Spent._fields
        )
        ours = found.get("ours", {"step_secs": wall, "step_cpu_secs": cpu})
        found[name] = {
            "step_secs": wall,
            "step_cpu_secs": cpu,
            "each": [call.wall / given.steps for call in calls[name]],
            "tokens_per_sec": given.batch_size * given.length / wall,
            "over_ours": wall / ours["step_secs"],
            "over_ours_cpu": cpu / ours["step_cpu_secs"],
            "of_peak": count.train / wall / peak.wall,
            "of_peak_cpu": count.train / cpu / peak.cpu,
            "compile_secs": side.compile_secs,
        }
    return found


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measures every system at every shape."""
    about = common.describe_machine()
    from benchmarks import floor

    peak, cases = floor.Peak(), []
    for system in given.systems:
        for shape in given.shapes:
            cases.append(measure_case(system, shape, given, peak, about["missing_peer"]))
            gc.collect()
    names = ("vocab_size", "batch_size", "length", "steps", "repeats", "threads")
    return about | {name: getattr(given, name) for name in names} | {
        "cases": cases,
        "peak_flops_per_sec": peak.wall,
        "peak_flops_per_cpu_sec": peak.cpu,
        "measured": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip


def report(found: dict[str, Any]) -> None:
    """Prints a Markdown table for each system and shape."""
    print(
        f"\n{found['batch_size']} x {found['length']}, {found['vocab_size']:,} tokens, float32;"
        f" {found['repeats']} repetitions of {found['steps']} step(s)\n{common.heading(found)}\n"
        f"largest matrix products: {found['peak_flops_per_sec'] / 1e9:,.0f} GFLOP/s,"
        f" {found['peak_flops_per_cpu_sec'] / 1e9:,.0f} per CPU second"
    )
    for case in found["cases"]:
        count = case["flops"]
        terms = (f"{k} {3 * count[k] / count['train']:.0%}" for k in ("body", "attention", "head"))
        print(
            f"\n{case['system']} {case['shape']}: {case['parameters']:,} parameters,"
            f" {count['train'] / 1e9:,.1f} GFLOP a step ({', '.join(terms)})\n"
        )
        print("| |" + "|".join(f" {column} " for column in COLUMNS) + "|")
        print("|---" * (len(COLUMNS) + 1) + "|")
        for name in ("ours", "floor", *PEERS):
            if name in case:
                made = case[name]
                cells = [f"{made[key] * 1e3:,.1f}" for key in ("step_secs", "step_cpu_secs")]
                cells.append(f"{made['tokens_per_sec']:,.0f}")
                keys = ("over_ours", "over_ours_cpu", "of_peak", "of_peak_cpu")
                cells += [f"{made[key]:.2f}" for key in keys]
                cells.append(f"{made['compile_secs']:.1f} s")
                print(f"| {name} | " + " | ".join(cells) + " |")
        for name, reason in case["left_out"].items():
            print(f"{name} is left out: {reason}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = common.make_parser("step", __doc__, repeats=5)
    systems = common.comma_list(common.choice("system", module_names("systems")))
    made.add_argument("--systems", type=systems, default=["bert"])
    made.add_argument("--shapes", type=common.comma_list(common.shape), default=SHAPES,
                      help="heads x width x layers")  # fmt: skip
    common.add_sizes(made)
    peers = common.comma_list(common.choice("peer", PEERS))
    made.add_argument("--peers", type=peers, default=list(PEERS), help=", ".join(PEERS))
    made.add_argument("--steps", type=common.count(), default=1, help="of a repetition")
    return common.parse(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Measures and prints."""
    found = measure(given)
    common.write_json(found, given.json)
    report(found)


if __name__ == "__main__":
    common.start(parse, main)
