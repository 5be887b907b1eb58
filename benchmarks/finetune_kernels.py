"""What fine-tuning several seeds in one program would gain on a GPU, without having one: a model.

  python -m benchmarks.finetune_kernels [--device=h100] [--task=sst2] [--data=../shared/data/glue]
      [--shape=2x128x2] [--seeds=8] [--json=FILE] [--quick]

The engine's own step in bfloat16 of one seed and of so many in one program, on batches of the
task's own recipe, each padded to the length in the middle of its epoch as on a GPU. Each is
compiled for the GPU named and counted as benchmarks.kernels does; times are that program's model,
of the device's work alone. Needs `pip install '.[cuda]'`, but no GPU.
"""

import argparse
import pathlib
import tempfile
from typing import Any
from unittest import mock

from benchmarks import arguments as command_line
from benchmarks import finetune, finetune_task, hlo, kernels, side_by_side
from scalelab.runs import environment
from scalelab.tasks import examples, task

QUICK = finetune.QUICK | {"device": "here", "seeds": 2}


def count(run: Any, num_seeds: int, device: str) -> dict[str, Any]:
    """Kernels, bytes and times of a step of so many seeds, as kernels.summary has them."""
    from scalelab.finetuning.group import Group

    group = Group([run] * num_seeds, list(range(num_seeds)))
    lengths = sorted((group.length(step), step) for step in range(run.steps_per_epoch))
    length, step = lengths[len(lengths) // 2]
    given = group.state, *group.given(step, length)
    compiled = kernels.compiled_for(device, group.train_step, given)
    known = kernels.rates(device, run.start.opened.config.net.dtype)
    return {"length": length} | kernels.summary(hlo.kernels(compiled.as_text()), known)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Counts alone and together."""
    padded_as_on_a_gpu = mock.patch.object(examples, "_on_accelerator", lambda: True)
    with tempfile.TemporaryDirectory() as folder, padded_as_on_a_gpu:
        run = finetune_task.prepare(given, pathlib.Path(folder))
        found = {
            "made_by": environment.describe(),
            "task": given.task, "shape": given.shape, "device": given.device,
            "dtype": run.start.opened.config.net.dtype, "batch_size": run.config.batch_size,
            "seeds": given.seeds, "alone": count(run, 1, given.device),
            "together": count(run, given.seeds, given.device),
        }  # fmt: skip
    if "expected_ms" in found["alone"]:
        alone, together = (found[key]["expected_ms"] for key in ("alone", "together"))
        found["expected_gain"] = given.seeds * alone / together
    return found


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(f"\n{found['task']}, {found['shape']}, {found['dtype']}, batches of"
          f" {found['batch_size']}, for {found['device']}\n")  # fmt: skip
    columns = "seeds | tokens of a text | kernels | GB | ms at the table's rates | ms expected"
    print(f"| {columns} |\n" + "|---" * 6 + "|")
    for seeds, row in ((1, found["alone"]), (found["seeds"], found["together"])):
        times = (f"{row[key]:.2f}" if key in row else "-" for key in ("table_ms", "expected_ms"))
        numbers = f"{row['length']} | {row['kernels']} | {row['gigabytes']:.2f}"
        print(f"| {seeds} | {numbers} | {' | '.join(times)} |")
    if "expected_gain" in found:
        print(f"\nexpected: {found['expected_gain']:.0f} times as fast as one after another")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("finetune_kernels", __doc__)
    kernels.add_device(made)
    tasks = command_line.one_of("task", task.task_names())
    made.add_argument("--task", type=tasks, default="sst2")
    made.add_argument("--data", default="../shared/data/glue", help="holds SST-2/, RTE/, ...")
    made.add_argument("--shape", type=command_line.shape, default="2x128x2",
                      help="heads x width x layers")  # fmt: skip
    made.add_argument("--seeds", type=command_line.count(2), default=8, help="in one program")
    command_line.add_json(made, "a tiny net, invented rows, the device that is here")
    made.set_defaults(run=None, dtype="bfloat16")
    return command_line.read(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Counts and prints."""
    kernels.without_device(given.device)
    found = measure(given)
    side_by_side.keep(found, given.json)
    report(found)


if __name__ == "__main__":
    side_by_side.start(parse, main)
