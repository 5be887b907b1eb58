"""Speed of runs that train as one program, beside the same runs one by one.

  python -m benchmarks.population [--members=4] [--shape=2x32x2] [--batch_size=64] [--length=128]
      [--vocab_size=30000] [--steps=4] [--repeats=5] [--threads=2] [--json=FILE] [--quick]

A step is that of `scalelab.population` on BERT: masking, MLM and NSP, dropout 0.1, clipping, AdamW,
float32, on batches from the host, another for each member. One by one is the step of
`scalelab.train`: the steps of one member, then of the next. Both run alternately in one process;
the numbers are medians of the repetitions, and compiling is timed apart.

--threads=1 is how `scalelab.study` trains on CPU: one process a core.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import common

QUICK = {
    "shape": "2x8x1", "vocab_size": 97, "batch_size": 4, "length": 16, "repeats": 2, "members": 2,
}  # fmt: skip


class Members:
    """Runs of one net, each with its own state and batch.

    Args:
      given: the command line.
      size: how many members one program trains.
    """

    def __init__(self, given: argparse.Namespace, size: int) -> None:
        from scalelab import sharding, state, step
        from scalelab.runs import vmapped

        sizes = {name: getattr(given, name) for name in ("batch_size", "length", "vocab_size")}
        run = common.abstract_run("bert", given.shape, **sizes)
        self.mesh, self.size, self.batch_size = sharding.make_mesh(), size, given.batch_size
        begun = [
            state.create(run.net, run.objectives, run.tx, max_len=given.length, seed=seed,
                         mesh=self.mesh)
            for seed in range(given.members)
        ]  # fmt: skip
        batch = run.random_batch(given.length, given.batch_size)
        batches = [
            batch | {"tokens": np.roll(batch["tokens"], seed, axis=0)}
            for seed in range(given.members)
        ]
        parts = [slice(k, k + size) for k in range(0, given.members, size)]
        self.states = [vmapped.stack([now for now, _ in begun[part]]) for part in parts]
        self.batches = [vmapped.stack_host(batches[part]) for part in parts]
        rate = np.float32(run.config.optim.learning_rate)
        self.rate = vmapped.stack_host([rate] * size)
        since = time.perf_counter()
        train = step.make_train_step(run.net, run.objectives, run.tx)
        self.compiled = step.compile_train(
            vmapped.train_step(train, state.TrainState, size), self.mesh,
            vmapped.shardings(begun[0][1], size), self.states[0],
            self.put(self.batches[0]), size,
        )  # fmt: skip
        self.compile_secs = time.perf_counter() - since

    def put(self, batch: Any) -> Any:
        """Puts a batch on the devices."""
        from scalelab import sharding

        return sharding.put_batch(batch, self.mesh, self.batch_size, self.size)

    def __call__(self, steps: int) -> None:
        """Takes `steps` steps of every member, and waits for the last."""
        import jax

        for k, batch in enumerate(self.batches):
            for _ in range(steps):
                self.states[k], _ = self.compiled(self.states[k], self.put(batch), self.rate)
            jax.block_until_ready(self.states[k])


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Runs both sides alternately."""
    about = common.describe_machine() | {"missing_peer": None}
    sides = {"vmapped": Members(given, given.members), "one_by_one": Members(given, 1)}
    calls: dict[str, list[common.Spent]] = {name: [] for name in sides}
    for side in sides.values():
        side(1)
    for _ in range(given.repeats):
        for name, side in sides.items():
            calls[name].append(common.timed(side, given.steps))
    pairs = zip(calls["one_by_one"], calls["vmapped"], strict=True)
    names = ("shape", "members", "vocab_size", "batch_size", "length", "steps", "repeats")
    return about | {name: getattr(given, name) for name in (*names, "threads")} | {
        "sides": {
            name: common.rates(given.steps * given.members, each)
            | {"compile_secs": sides[name].compile_secs}
            for name, each in calls.items()
        },
        "ratio": statistics.median(single.wall / joint.wall for single, joint in pairs),
    }  # fmt: skip


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"\nbert {found['shape']}, {found['vocab_size']:,} tokens, float32\n"
        f"{common.heading(found)}\nbatches of {found['batch_size']} x {found['length']};"
        f" {found['repeats']} repetitions of {found['steps']} steps of {found['members']} members\n"
    )
    print(f"{'':14}{'member steps/s':>16}{'/CPU s':>10}{'compiled in':>14}")
    for name, made in found["sides"].items():
        print(
            f"{name:14}{made['per_sec']:16,.2f}{made['per_cpu_sec']:10,.2f}"
            f"{made['compile_secs']:12,.1f} s"
        )
    print(f"\none program takes 1/{found['ratio']:.2f} of the time of one by one")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = common.make_parser("population", __doc__, repeats=5)
    made.add_argument("--members", type=common.count(), default=4, help="runs of one program")
    made.add_argument("--shape", type=common.shape, default="2x32x2")
    common.add_sizes(made)
    made.add_argument("--steps", type=common.count(), default=4, help="of each member")
    return common.parse(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Measures and prints."""
    found = measure(given)
    common.write_json(found, given.json)
    report(found)


if __name__ == "__main__":
    common.start(parse, main)
