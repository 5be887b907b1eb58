"""Speed of runs that train together, beside the same runs one by one.

  python -m benchmarks.population [--members=4] [--shape=2x32x2] [--batch_size=64] [--length=128]
      [--steps=4] [--repeats=5] [--threads=2] [--json=FILE] [--quick]

A step is that of `scalelab.population` on BERT: masking, MLM and NSP, dropout 0.1, clipping, AdamW,
float32, on batches from the host, another for each member. One by one is the step of
`scalelab.train`, so many steps of one member, then of the next. Alternately in one process; medians
of the repetitions. Compiling stands apart.

--threads=1 is how `scalelab.study` trains on CPU: a process a core.
"""

import argparse
import os
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import arguments as command_line
from benchmarks import side_by_side, step_case
from benchmarks.side_by_side import BUSY
from scalelab.runs import environment

SYSTEM, DROPOUT_RATE = "bert", 0.1
QUICK = {"shape": "2x8x1", "vocab_size": 97, "batch_size": 4, "length": 16, "repeats": 2,
         "members": 2}  # fmt: skip


class Members:
    """Runs of one net, each with its own state and batch.

    Args:
      arguments: the command line.
      together: how many a program trains.
    """

    def __init__(self, arguments: argparse.Namespace, together: int) -> None:
        from scalelab import sharding, state, step
        from scalelab.optim import adamw
        from scalelab.runs import vmapped as together_lib

        self._put, self._count = sharding.put_batch, together
        case = step_case.Case.of(arguments, SYSTEM, arguments.shape)
        net, made = case.net(), tuple(case.objectives)
        self._mesh, tx = sharding.make_mesh(), adamw.adamw(**step_case.ADAMW)
        begun = [
            state.create(net, made, tx, max_len=arguments.length, seed=seed, mesh=self._mesh)
            for seed in range(arguments.members)
        ]
        batch = case.batch()
        batches = [
            batch | {"tokens": np.roll(batch["tokens"], seed, axis=0)}
            for seed in range(arguments.members)
        ]
        chunks = [slice(k, k + together) for k in range(0, arguments.members, together)]
        self.states = [together_lib.stack([now for now, _ in begun[chunk]]) for chunk in chunks]
        self._batches = [together_lib.stack_rows(batches[chunk]) for chunk in chunks]
        self._rate = together_lib.stack_rows([np.float32(step_case.LEARNING_RATE)] * together)
        since = time.perf_counter()
        one = step.make_train_step(net, made, tx)
        self._run = step.compile_train(
            together_lib.train_step(one, state.TrainState, together), self._mesh,
            together_lib.placed(begun[0][1], together), self.states[0],
            self._on_device(self._batches[0]), together,
        )  # fmt: skip
        self.compile_secs = time.perf_counter() - since

    def _on_device(self, batch: Any) -> Any:
        size = batch["tokens"].shape[-2]
        return self._put(batch, self._mesh, size, self._count)

    def __call__(self, steps: int) -> None:
        """Takes so many steps of every member, and waits for the last."""
        import jax

        for k, batch in enumerate(self._batches):
            for _ in range(steps):
                put = self._on_device(batch)
                self.states[k], _ = self._run(self.states[k], put, self._rate)
            jax.block_until_ready(self.states[k])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs both, alternately."""
    import jax

    from scalelab.resources import flops

    load = os.getloadavg()[0]
    environment.configure_jax(None, "float32")
    sides = {
        "together": Members(arguments, arguments.members),
        "one_by_one": Members(arguments, 1),
    }
    calls: dict[str, list[side_by_side.Spent]] = {name: [] for name in sides}
    for side in sides.values():
        side(1)
    for _ in range(arguments.repeats):
        for name, side in sides.items():
            calls[name].append(side_by_side.timed(side, arguments.steps))
    per = arguments.steps * arguments.members
    found: dict[str, Any] = {
        name: {
            "step_secs": statistics.median(call.wall for call in each) / per,
            "step_cpu_secs": statistics.median(call.cpu for call in each) / per,
            "compile_secs": sides[name].compile_secs,
            "each": [call.wall / per for call in each],
        }
        for name, each in calls.items()
    }
    pairs = zip(found["one_by_one"]["each"], found["together"]["each"], strict=True)
    names = ("shape", "members", "vocab_size", "batch_size", "length", "steps", "repeats")
    return found | {name: getattr(arguments, name) for name in (*names, "threads")} | {
        "ratio": statistics.median(alone / together for alone, together in pairs),
        "parameters": flops.count_parameters(sides["one_by_one"].states[0].params),
        "device": jax.devices()[0].device_kind,
        "load": load,
    }  # fmt: skip


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"\n{SYSTEM} {found['shape']}, {found['vocab_size']:,} tokens,"
        f" {found['parameters']:,} parameters, float32\n{found['device']}, {found['threads']}"
        f" thread(s), load {found['load']:.1f} at the start{BUSY if found['load'] > 0.5 else ''}\n"
        f"batches of {found['batch_size']} x {found['length']}; {found['repeats']} repetitions of"
        f" {found['steps']} steps of {found['members']} members\n"
    )
    print(f"{'a step of one member':22}{'time':>13}{'CPU time':>13}{'compiled in':>13}{'ratio':>9}")
    for title, name in (("one by one", "one_by_one"), ("in one program", "together")):
        made = found[name]
        ratio = f"{found['ratio']:.2f}x" if name == "together" else ""
        print(
            f"{title:22}{made['step_secs'] * 1e3:10,.1f} ms{made['step_cpu_secs'] * 1e3:10,.1f} ms"
            f"{made['compile_secs']:11,.1f} s{ratio:>9}"
        )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("population", __doc__)
    made.add_argument("--members", type=command_line.count(), default=4,
                      help="runs that train together")  # fmt: skip
    made.add_argument("--shape", type=command_line.shape, default="2x32x2",
                      help="heads x width x layers")  # fmt: skip
    command_line.add_batch(made)
    made.add_argument("--steps", type=command_line.count(), default=4,
                      help="a repetition, of each member")  # fmt: skip
    command_line.add_common(made, repeats=5, quick="a tiny net and short examples")
    made.set_defaults(dropout_rate=DROPOUT_RATE)
    return command_line.read(made, argv, QUICK)


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    found = measure(arguments)
    side_by_side.keep(found, arguments.json)
    report(found)


if __name__ == "__main__":
    side_by_side.start(parse, main)
