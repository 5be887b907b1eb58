"""Speed of a training step: ours, PyTorch's, and the floor of its matrix products.

  python -m benchmarks.step [--systems=bert] [--shapes=2x128x2,2x256x9,7x448x4] [--batch_size=64]
      [--length=128] [--vocab_size=30000] [--dropout_rate=0.1]
      [--peers=stock,tuned,compiled,stock_apart,tuned_apart]
      [--steps=1] [--repeats=5] [--threads=2] [--memory] [--default_malloc] [--json=FILE] [--quick]

A step is forward, backward and update: the system's own objectives on a batch without padding, 15%
of the tokens predicted where it masks, dropout, clipping, AdamW, in float32. For each system and
shape, alternately in one process, medians of the repetitions:

  ours      the step that scalelab.train runs, masking included
  floor     its matrix products alone, forward and backward, each gradient in the net's form,
            at most shapes the faster (floor.py)
  by_jax    the same in the form that JAX's own derivative has: the floor that targets speak of
  stock     the class of `transformers`: its attention and loss, clip_grad_norm_, fused AdamW
  tuned     the same with the head on the predicted positions alone
  compiled  that through torch.compile
  stock_apart, tuned_apart
            as their users start them: in a process of their own, without JAX, malloc as it is

PyTorch is given batches that are masked already, and starts from our weights; that without dropout
all losses are equal is checked. Compiling stands apart, and three steps of each go untimed. "Of
peak" are the useful FLOPs of flops.py over the largest rate of a square matrix product in the same
process, measured before each repetition. Each ratio is given by wall and by CPU time of all
threads: on a machine that others use, the second says more, though PyTorch's threads wait spinning
for each other. Beside CPU time stands what of it the kernel takes, and how many pages it has to
give a step: what one costs depends on the machine, and changes where that is a virtual one.

All sides of this process have what scalelab.train tells malloc, to keep freed memory, from which
PyTorch gains too; with --default_malloc none has.

--memory starts a process for each side and gives what a step has resident at most, less what the
process had before the net. `--shapes=12x768x12 --batch_size=8 --vocab_size=30522` is BERT-base.

Targets at 64 x 128, two cores: 8x, 2.9x and 3.7x stock; 0.75, 0.85 and 0.85 of the floor as JAX has
it; 1.3x the tuned and the compiled step.
"""

import argparse
import collections
import functools
import gc
import os
import statistics
import time
from typing import Any

from benchmarks import arguments as command_line
from benchmarks import side_by_side, step_memory, step_report
from benchmarks.floor import Floor, Peak
from benchmarks.side_by_side import Spent
from benchmarks.step_case import Case, Ours
from scalelab.runs import environment

SHAPES = ("2x128x2", "2x256x9", "7x448x4")
PEERS = ("stock", "tuned", "compiled", "stock_apart", "tuned_apart")
APART = "_apart"
UNTIMED = 3  # steps: in its first few, a process that keeps freed memory meets new pages
QUICK = {
    "shapes": ["2x8x2"], "vocab_size": 97, "batch_size": 4, "length": 16, "repeats": 2,
}  # fmt: skip
QUICK_PEERS = {"peers": ["stock", "tuned", "stock_apart"]}


def make_sides(case: Case, peers: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Builds all that is measured.

    Args:
      case: what is measured.
      peers: in PEERS.

    Returns:
      Name -> side, a call of which takes so many steps; and name -> why it is left out.
    """
    ours = Ours(case)
    sides: dict[str, Any] = {"ours": ours, "floor": Floor(case)}
    sides["by_jax"] = Floor(case, by_jax=True)
    left_out: dict[str, str] = {}
    reason = side_by_side.peer_left_out()
    for name in peers:
        if reason:
            left_out[name] = reason
            continue
        from benchmarks import step_apart, step_peers

        kind = name.removesuffix(APART)
        try:
            sides[name] = (
                step_peers.make(kind, ours) if kind == name else step_apart.Apart(ours, kind)
            )
        except Exception as error:  # whatever torch.compile meets on this machine
            if name != "compiled":
                raise
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return sides, left_out


def same_losses(sides: dict[str, Any]) -> dict[str, float]:
    """Of each side without dropout; ends the program where they differ."""
    losses = {name: side.loss() for name, side in sides.items() if hasattr(side, "loss")}
    if any(abs(loss / losses["ours"] - 1) > 1e-4 for loss in losses.values()):
        raise SystemExit(f"these are not the same net: losses {losses}")
    return losses


def summary(calls: list[Spent], case: Case, steps: int) -> dict[str, Any]:
    """Medians over the repetitions, and what a step of each took."""
    each = {name: [getattr(call, name) / steps for call in calls] for name in Spent._fields}
    median = {name: statistics.median(values) for name, values in each.items()}
    return {
        "step_secs": median["wall"],
        "step_cpu_secs": median["cpu"],
        "step_kernel_secs": median["kernel"],
        "step_faults": median["faults"],
        "tokens_per_sec": case.batch_size * case.length / median["wall"],
        "each": each["wall"],
        "each_cpu": each["cpu"],
        "each_kernel": each["kernel"],
    }


def measure_case(case: Case, arguments: argparse.Namespace, peak: Peak) -> dict[str, Any]:
    """Runs all sides of a case, alternately."""
    sides, left_out = make_sides(case, arguments.peers)
    try:
        return measure_sides(case, arguments, peak, sides, left_out)
    finally:
        for side in sides.values():
            getattr(side, "close", lambda: None)()


def measure_sides(
    case: Case,
    arguments: argparse.Namespace,
    peak: Peak,
    sides: dict[str, Any],
    left_out: dict[str, str],
) -> dict[str, Any]:
    """What `make_sides` made, alternately."""
    from scalelab.resources import flops

    ours = sides["ours"]
    count = case.flops(ours.state.params)
    found: dict[str, Any] = {
        "system": case.system,
        "shape": case.shape,
        "parameters": flops.count_parameters(ours.state.params),
        "flops": {
            "body": count.body, "attention": count.attention, "head": count.head,
            "train": count.train,
        },
        "losses": same_losses(sides),
        "left_out": left_out,
    }  # fmt: skip
    for _ in range(UNTIMED):
        for side in sides.values():
            side(1)
    calls = collections.defaultdict(list)
    for _ in range(arguments.repeats):
        peak()
        for name, side in sides.items():
            timed = getattr(side, "timed", functools.partial(side_by_side.timed, side))
            calls[name].append(timed(arguments.steps))
    for name, side in sides.items():
        made = summary(calls[name], case, arguments.steps)
        made["compile_secs"] = side.compile_secs
        made["of_peak"] = count.train / made["step_secs"] / peak.wall
        made["of_peak_cpu"] = count.train / made["step_cpu_secs"] / peak.cpu
        own = found.setdefault("ours", made)  # the first
        made["over_ours"] = made["step_secs"] / own["step_secs"]
        made["over_ours_cpu"] = made["step_cpu_secs"] / own["step_cpu_secs"]
        found[name] = made
    found["ours"]["buffer_bytes"] = ours.memory_bytes()
    if arguments.memory:
        for name in (name for name in sides if not name.endswith(APART)):
            found[name]["resident_bytes"] = step_memory.of_side(case, name)
    return found


def measure(arguments: argparse.Namespace, one: Any = measure_case) -> dict[str, Any]:
    """Measures every system at every shape by `one`, and says on what."""
    import jax

    load = os.getloadavg()[0]
    environment.configure_jax(None, "float32")
    peak, cases = Peak(), []
    for system in arguments.systems:
        for shape in arguments.shapes:
            cases.append(one(Case.of(arguments, system, shape), arguments, peak))
            gc.collect()
    described = environment.describe()
    names = ("vocab_size", "batch_size", "length", "dropout_rate", "steps", "repeats", "threads")
    return {name: getattr(arguments, name) for name in names} | {
        "cases": cases,
        "peak_flops_per_sec": peak.wall,
        "peak_flops_per_cpu_sec": peak.cpu,
        "device": jax.devices()[0].device_kind,
        "load": load,
        "peer_versions": None if side_by_side.peer_left_out() else side_by_side.peer_versions(),
        "environment": described,
        "measured": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("step", __doc__)
    command_line.add_case(made, list(SHAPES))
    peers = command_line.listed(command_line.one_of("peer", PEERS), least=0)
    made.add_argument("--peers", type=peers, default=list(PEERS), help=", ".join(PEERS))
    made.add_argument("--steps", type=command_line.count(), default=1, help="a repetition")
    made.add_argument("--memory", action="store_true", help="measure it, a process for each side")
    made.add_argument("--default_malloc", action="store_true", help="leave malloc as it is")
    command_line.add_common(made, repeats=5, quick="a tiny net and short examples")
    return command_line.read(made, argv, QUICK | QUICK_PEERS)


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    found = measure(arguments)
    side_by_side.keep(found, arguments.json)
    step_report.report(found)


if __name__ == "__main__":
    side_by_side.start(parse, main)
