"""Speed of a training step: ours, PyTorch's, and the floor of its matrix products.

  python -m benchmarks.step [--systems=bert] [--shapes=2x128x2,2x256x9,7x448x4] [--batch_size=64]
      [--length=128] [--vocab_size=30000] [--peers=stock,tuned] [--repeats=5] [--threads=2]
      [--json=FILE]

A step is forward, backward and update in float32: the system's own objectives on a batch without
padding, 15% of the tokens predicted where it masks, dropout 0.1, clipping, AdamW. All sides run
alternately in one process; the numbers are medians of the repetitions.

  ours   the step that scalelab.train runs, masking included
  floor  its matrix products alone, forward and backward (floor.py)
  stock  the class of `transformers`: its attention and loss, clip_grad_norm_, fused AdamW
         lstm and gcnn: a model of torch.nn's layers, without floor and `tuned`
  tuned  the same with the head on the predicted positions alone; with a source, which has no
         others, by torch.compile

PyTorch gets batches that are masked already and starts from our weights; the program checks that
all losses without dropout are equal. Compiling is timed apart, and three steps of each side go
untimed. "Of peak" divides the useful FLOPs by the rate of a square matrix product in the same
process. On a busy machine CPU time says more than wall time, though PyTorch's
threads spin while they wait. All sides keep freed memory (resources/host.py).

`--shapes=12x768x12 --batch_size=8 --vocab_size=30522` is BERT-base. For the memory of a step see
`python -m scalelab.fit`.
"""

import argparse
import functools
import gc
import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import common
from scalelab.config import exits
from scalelab.helpers.names import nearest

if TYPE_CHECKING:
    from scalelab.training.blueprint import Blueprint

SHAPES = ["2x128x2", "2x256x9", "7x448x4"]
PEERS = ["stock", "tuned"]
WITH_PEERS = ("bert", "roberta", "gpt", "gpt2", "t5")  # transformers computes their losses
UNTIMED = 3  # a process that keeps freed memory meets new pages in its first few steps
COLUMNS = ("ms a step", "CPU ms", "tokens/s", "over ours", "by CPU", "of peak", "compile")


class Ours:
    """The step of scalelab.train, on one batch over and over; of a run with one phase."""

    def __init__(self, run: "Blueprint") -> None:
        import jax

        from scalelab import sharding

        self.run, self.key, mesh = run, jax.random.key(1), sharding.make_mesh()
        size = run.config.short.max_len, run.config.short.batch_size
        self.batch = jax.device_put(run.random_batch(*size), sharding.batch_sharding(mesh))
        self.state, self.rate = run.start(mesh), np.float32(run.config.optim.learning_rate)
        begun = time.perf_counter()
        self.compiled = run.compile(*size, mesh)
        self.compile_secs = time.perf_counter() - begun

    def masked_batch(self) -> dict[str, np.ndarray]:
        """Returns the batch as the objectives prepare it."""
        import jax

        from scalelab import objectives

        masks = objectives.named_key(self.key, "mask")
        return jax.device_get(objectives.prepare(self.batch, self.run.terms, masks))

    def loss(self) -> float:
        """Returns the summed loss of the masked batch, without dropout."""
        import jax

        from scalelab import step

        evaluate = jax.jit(step.make_eval_step(self.run.net, self.run.terms))
        found, _ = evaluate(self.state.params, self.batch, self.key)
        return sum(
            float(total / weight) for k, (total, weight) in found.items() if k.endswith("_loss")
        )

    def __call__(self, steps: int) -> None:
        """Takes steps and waits for the last."""
        import jax

        for _ in range(steps):
            self.state, _ = self.compiled(self.state, self.batch, self.rate)
        jax.block_until_ready(self.state)


def make_sides(run: "Blueprint", given: argparse.Namespace, missing: str | None) -> dict[str, Any]:
    """Builds all sides: name -> side, a call of which takes steps; without peers if `missing`.

    Raises:
      Stopped: an unknown peer, or losses without dropout that differ.
    """
    from benchmarks import floor

    system, able = run.config.system, (*WITH_PEERS, *common.OF_LAYERS)
    if given.peers and not missing and system not in able:
        raise exits.Stopped(f"{system} has no peer: {', '.join(able)} have; add --peers=")
    ours = Ours(run)
    sides: dict[str, Any] = {"ours": ours}
    if system not in common.OF_LAYERS:
        sides["floor"] = floor.Floor(run)
    for name in given.peers:
        if name not in PEERS:
            raise exits.Stopped(f"unknown peer {name!r}: {nearest(name, PEERS)}")
        if not missing and (name == "stock" or system not in common.OF_LAYERS):
            from benchmarks import peers

            make = {"stock": peers.Stock, "tuned": peers.Tuned}[name]
            sides[name] = make(run, ours.masked_batch(), ours.state.params, given.threads)
    losses = {name: side.loss() for name, side in sides.items() if name != "floor"}
    if any(abs(loss / losses["ours"] - 1) > 1e-4 for loss in losses.values()):
        raise exits.Stopped(f"these are not the same net: losses {losses}")
    return sides


def measure_case(
    case: tuple[str, str], given: argparse.Namespace, about: dict[str, Any]
) -> dict[str, Any]:
    """Runs all sides of a case, a system and its shape, alternately; returns their numbers."""
    from scalelab.resources import flops
    from scalelab.training import blueprint

    names, peak = ("batch_size", "length", "vocab_size"), about["peak_flops_per_sec"]
    run = blueprint.draw_alone(*case, **{name: getattr(given, name) for name in names})
    sides, count = make_sides(run, given, about["missing_peer"]), run.costs[0]
    for side in sides.values():
        side(UNTIMED)
    calls = {name: functools.partial(side, 1) for name, side in sides.items()}
    found = common.medians([calls] * given.repeats)
    return {
        "system": case[0],
        "shape": case[1],
        "parameters": flops.count_parameters(run.state.params),
        "flops": count.train,
    } | {
        name: {
            "step_secs": wall,
            "step_cpu_secs": cpu,
            "tokens_per_sec": given.batch_size * given.length / wall,
            "over_ours": wall / found["ours"].wall,
            "over_ours_cpu": cpu / found["ours"].cpu,
            "of_peak": count.train / wall / peak,
            "compile_secs": sides[name].compile_secs,
        }
        for name, (wall, cpu) in found.items()
    }


def measure_peak() -> float:
    """Measures the rate of float32 matrix products of one device, in FLOP/s; under a second."""
    import jax
    import jax.numpy as jnp

    size, square = 1024 if jax.default_backend() == "cpu" else 8192, jax.jit(lambda a: a @ a)
    a = jnp.ones((size, size))
    square(a).block_until_ready()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        square(a).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measures every system at every shape."""
    about, cases = common.describe(given), []
    about["peak_flops_per_sec"] = measure_peak()
    for case in itertools.product(given.systems, given.shapes):
        cases.append(measure_case(case, given, about))
        gc.collect()
    return about | {"cases": cases}


def report(found: dict[str, Any]) -> None:
    """Prints a Markdown table for each system and shape."""
    print(
        f"{common.heading(found)}\n{found['batch_size']} x {found['length']},"
        f" {found['vocab_size']:,} tokens, float32; {found['repeats']} repetitions\n"
        f"square matrix products: {found['peak_flops_per_sec'] / 1e9:,.0f} GFLOP/s"
    )
    for case in found["cases"]:
        print(
            f"\n{case['system']} {case['shape']}: {case['parameters']:,} parameters,"
            f" {case['flops'] / 1e9:,.1f} GFLOP a step\n"
        )
        rows = []
        for name in ("ours", "floor", *PEERS):
            if made := case.get(name):
                cells = [f"{made[key] * 1e3:,.1f}" for key in ("step_secs", "step_cpu_secs")]
                cells.append(f"{made['tokens_per_sec']:,.0f}")
                cells += [f"{made[key]:.2f}" for key in ("over_ours", "over_ours_cpu", "of_peak")]
                rows.append([name, *cells, f"{made['compile_secs']:.1f} s"])
        common.print_table(("", *COLUMNS), rows)


parser = functools.partial(
    common.make_parser, "step", __doc__, systems=["bert"], shapes=SHAPES, batch_size=64, length=128,
    vocab_size=30_000, peers=PEERS, repeats=5, threads=2,
)  # fmt: skip


if __name__ == "__main__":
    common.start(parser(), measure, report)
