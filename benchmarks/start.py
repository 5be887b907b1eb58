"""How long until something happens: `--help`, and the first step of a training with warm caches.

  python -m benchmarks.start [--shape=2x128x2] [--corpus=builtin] [--quick] [--json=FILE]

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
                    raise SystemExit(output.read().decode())
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="2x128x2")
    parser.add_argument("--corpus", default="builtin")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="one repetition, a tiny shape")
    args = parser.parse_args()
    shape, repeats = ("2x16x1", 1) if args.quick else (args.shape, 3)
    config = (
        f"--config=configs/pretrain.py:system=bert,shape={shape},corpus={args.corpus},steps=100"
    )
    arguments = [config, "--config.machine.log_every_steps=1"]
    if args.quick:
        arguments.append("--config.tokenizer.vocab_size=2000")
    with tempfile.TemporaryDirectory() as folder:
        cold = seconds_to_first_step(arguments, pathlib.Path(folder) / "cold", 600)
        warm = [
            seconds_to_first_step(arguments, pathlib.Path(folder) / str(i), 300)
            for i in range(repeats)
        ]
    result = {
        "help_secs": sorted(seconds_of_help() for _ in range(repeats)),
        "first_step_cold_secs": cold,
        "first_step_warm_secs": sorted(warm),
    }
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
