"""The loop of scalelab.train beside its step: what a run takes that the step does not.

  python -m benchmarks.loop [--cases=2x16x1:512:16x32,2x128x2:8192:64x128] [--steps=1000]
      [--corpus=builtin] [--dtype=float32] [--glue=DIR --init=RUN] [--json=FILE]

A case is heads x width x layers : vocabulary : batch x length, of BERT. For each, in one process:

  bare   the compiled step alone, on one batch, dispatched one by one
  loop   `scalelab.train` on a prepared corpus with a line each 50 steps and no validation but the
         first and the last; the time between the first line and the last

Then whole programs (--programs=0: none), each started twice, the second of which counts:

  first step   from the command to the first step of 2x128x2
  200 steps    of 2x64x2 with 8,192 pieces: wall time over the seconds of training
  RTE          two seeds from the run --init, with the data of --glue: wall time
"""

import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from benchmarks import common, step

EVERY = 50  # steps between two lines
COLUMNS = ("case", "bare, ms a step", "loop, ms a step", "bare / loop", "compiled in, s")


class Case(NamedTuple):
    """A model and its batch."""

    shape: str
    vocab_size: int
    batch_size: int
    length: int

    @classmethod
    def read(cls, text: str) -> "Case":
        """Reads "2x16x1:512:16x32"."""
        shape, vocab, batch = text.split(":")
        return cls(shape, int(vocab), *map(int, batch.split("x")))

    def arguments(self, given: argparse.Namespace, steps: int) -> str:
        """Returns the arguments of configs/pretrain.py."""
        return f"system=bert,shape={self.shape},corpus={given.corpus},steps={steps}"

    def fields(self, given: argparse.Namespace) -> dict[str, Any]:
        """Returns the other fields of a run."""
        return {
            "tokenizer.vocab_size": self.vocab_size, "model.dtype": given.dtype,
            "short.batch_size": self.batch_size, "short.max_len": self.length,
            "long.example_rate": 0.0, "machine.checkpoint_every_steps": 10**6,
        }  # fmt: skip

    def command(self, given: argparse.Namespace, steps: int, workdir: pathlib.Path) -> list[str]:
        """Returns the command line of a run."""
        fields = [f"--config.{name}={value}" for name, value in self.fields(given).items()]
        config = f"--config=pretrain:{self.arguments(given, steps)}"
        return ["scalelab.train", config, *fields, f"--workdir={workdir}"]


def time_bare(case: Case, given: argparse.Namespace) -> float:
    """Returns the seconds of a step that is dispatched alone."""
    from scalelab.training import blueprint

    sizes = {"batch_size": case.batch_size, "length": case.length, "vocab_size": case.vocab_size}
    side = step.Ours(blueprint.draw_alone("bert", case.shape, dtype=given.dtype, **sizes))
    side(3)
    few = max(3, given.steps // 10)
    return statistics.median(common.timed(side, few).wall for _ in range(given.repeats)) / few


def time_loop(case: Case, given: argparse.Namespace, folder: pathlib.Path) -> dict[str, float]:
    """Returns the seconds of a step in a run, and those of its compilation."""
    from scalelab import train
    from scalelab.config import files, pretraining

    pretrain = files.load(files.FOLDER / "pretrain.py")
    config = pretrain.get_config(case.arguments(given, given.steps))
    own = {"eval.every_steps": 10**6, "eval.num_examples": case.batch_size}
    config.update_from_flattened_dict(case.fields(given) | own | {"machine.log_every_steps": EVERY})
    result = train.train(train.pretraining(pretraining.resolve(config.to_dict()), folder))
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = (line for line in lines if "train/loss" in line)
    steps, tokens, secs = (last[key] - first[key] for key in ("step", "tokens", "seconds"))
    return {
        "loop_secs": secs / steps,
        "loop_tokens_per_sec": tokens / secs,
        "compile_secs": result["compile_secs"],
    }


def time_program(flags: list[str], until: str | None = None) -> float:
    """Returns the seconds that `python -m FLAGS` takes, or takes to print `until`."""
    begun, found = time.perf_counter(), None
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", *flags],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    for line in process.stdout or ():
        if until is not None and until in line and found is None:
            found = time.perf_counter() - begun
    assert process.wait() == 0, flags
    return time.perf_counter() - begun if found is None else found


def time_programs(given: argparse.Namespace, folder: pathlib.Path) -> dict[str, float]:
    """Starts whole programs twice; returns the numbers of the second."""
    found = {}
    for turn in ("cold", "warm"):
        first = Case("2x128x2", 8192, 64, 128)
        flags = first.command(given, 2, folder / f"first-{turn}")
        found["first_step_secs"] = time_program(flags, "| step 1 ")
        many, work = Case("2x64x2", 8192, 64, 128), folder / f"many-{turn}"
        wall = time_program(many.command(given, 200, work))
        seconds = json.loads((work / "result.json").read_text())["seconds"]
        found |= {"wall_secs": wall, "wall_over_training": wall / seconds}
        if given.glue:
            flags = [f"--data={given.glue}", f"--init={given.init}", "--seeds=2"]
            task = ["scalelab.eval.rte", *flags, f"--workdir={folder}/rte-{turn}"]
            found["rte_secs"] = time_program(task)
    return found


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measures every case, then the programs."""
    about, cases = common.describe(given), []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for case in map(Case.read, given.cases):
            found = case._asdict() | {"bare_secs": time_bare(case, given)}
            found |= time_loop(case, given, folder / f"{case.shape}-{case.batch_size}")
            cases.append(found | {"bare_over_loop": found["bare_secs"] / found["loop_secs"]})
        return about | {"cases": cases} | (time_programs(given, folder) if given.programs else {})


def report(found: dict[str, Any]) -> None:
    """Prints a Markdown table."""
    print(f"{common.heading(found)}\n")
    rows = []
    for case in found["cases"]:
        size = f"V = {case['vocab_size']:,}, {case['batch_size']} x {case['length']}"
        times = [f"{1e3 * case[key]:.2f}" for key in ("bare_secs", "loop_secs")]
        ratio, compiled = f"{case['bare_over_loop']:.2f}", f"{case['compile_secs']:.1f}"
        rows.append([f"{case['shape']}, {size}", *times, ratio, compiled])
    common.print_table(COLUMNS, rows)
    for name, unit in (("first_step_secs", "s"), ("wall_over_training", ""), ("rte_secs", "s")):
        if name in found:
            print(f"{name}: {found[name]:.2f} {unit}")


parser = functools.partial(
    common.make_parser, "loop", __doc__, cases=["2x16x1:512:16x32", "2x128x2:8192:64x128"],
    steps=1000, corpus="builtin", dtype="float32", programs=1, repeats=5, threads=2, glue=None,
    init=None,
)  # fmt: skip


if __name__ == "__main__":
    common.start(parser(), measure, report)
