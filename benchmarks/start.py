"""How long until something happens: `--help`, and the first step of a training with warm caches.

  python -m benchmarks.start [--shape=2x128x2] [--corpus=builtin] [--repeats=3] [--json=FILE]
      [--quick]

A first run fills the caches (prepared data, compiled programs) and is timed as well; then the same
run is started in a new folder, and the time from its launch to its first logged step counts.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import NoReturn

from benchmarks import arguments as command_line
from benchmarks import side_by_side
from scalelab.config import cli, files

QUICK = {"shape": "2x16x1", "repeats": 1, "vocab_size": 2_000}


def seconds_to_first_step(arguments: list[str], workdir: pathlib.Path, limit: float) -> float:
    """Starts a training and returns the seconds until it has logged a step."""
    command = [sys.executable, "-m", "scalelab.train", f"--workdir={workdir}", *arguments]
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            log = workdir / "metrics.jsonl"
            while time.perf_counter() - begun < limit:
                if log.exists() and log.stat().st_size:
                    return time.perf_counter() - begun
                if process.poll() is not None:
                    output.seek(0)
                    refuse(output.read().decode(), process.returncode)
                time.sleep(0.05)
            raise SystemExit(f"no step within {limit:.0f} s")
        finally:
            process.kill()
            process.wait()


def seconds_of_help() -> float:
    """Times `python -m scalelab.train --help`."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "scalelab.train", "--help"], capture_output=True, check=False
    )
    return time.perf_counter() - begun


def refuse(output: str, exit_code: int) -> NoReturn:
    """Ends the program as the training ended that took no step."""
    message = output.rpartition("error: ")[2].strip()
    if exit_code == cli.FAILED and message:
        raise cli.Stopped(message)
    raise SystemExit(output)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("start", __doc__)
    made.add_argument("--shape", type=command_line.shape, default="2x128x2",
                      help="heads x width x layers")  # fmt: skip
    made.add_argument("--corpus", default="builtin", help="reader:argument")
    made.add_argument("--repeats", type=command_line.count(), default=3)
    command_line.add_json(made, "one repetition, a tiny shape and vocabulary")
    made.set_defaults(vocab_size=None)
    return command_line.read(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Measures and prints."""
    config = f"{files.FOLDER}/pretrain.py:system=bert,shape={given.shape}"
    arguments = [
        f"--config={config},corpus={given.corpus},steps=100",
        "--config.machine.log_every_steps=1",
    ]
    if given.vocab_size:
        arguments.append(f"--config.tokenizer.vocab_size={given.vocab_size}")
    with tempfile.TemporaryDirectory() as folder:
        cold = seconds_to_first_step(arguments, pathlib.Path(folder) / "cold", 600)
        warm = [
            seconds_to_first_step(arguments, pathlib.Path(folder) / str(i), 300)
            for i in range(given.repeats)
        ]
    result = {
        "help_secs": sorted(seconds_of_help() for _ in range(given.repeats)),
        "first_step_cold_secs": cold,
        "first_step_warm_secs": sorted(warm),
    }
    side_by_side.keep(result, given.json)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    side_by_side.start(parse, main)
