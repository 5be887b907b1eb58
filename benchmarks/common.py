"""What the benchmarks share: command lines, cores and clocks."""

import argparse
import gc
import importlib.util
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scalelab.config import cli
from scalelab.resources import malloc

SIZES = ("batch_size", "length", "vocab_size")


def make_parser(
    name: str, text: str | None, *, repeats: int | None = None, threads: bool = True
) -> cli.Parser:
    """Makes the command line of `python -m benchmarks.<name>`, with the flags that all have.

    Args:
      name: the benchmark's module.
      text: its docstring, which is the help.
      repeats: the default of --repeats; None: there is no such flag.
      threads: whether there is --threads.
    """
    made = cli.Parser(f"python -m benchmarks.{name}", text)
    if repeats is not None:
        made.add_argument("--repeats", type=int, default=repeats)
    if threads:
        made.add_argument("--threads", type=int, default=2, help="of all sides, on CPU")
    made.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the numbers there")
    return made


def add_sizes(made: cli.Parser) -> None:
    """Adds the sizes of a batch."""
    made.add_argument("--batch_size", type=int, default=64)
    made.add_argument("--length", type=int, default=128, help="tokens of an example")
    made.add_argument("--vocab_size", type=int, default=30_000)


def comma_list(text: str) -> list[str]:
    """Reads values joined by commas."""
    return [part for part in text.split(",") if part]


def start(
    parser: cli.Parser,
    measure: Callable[[argparse.Namespace], Any],
    report: Callable[[Any], None],
) -> None:
    """Runs a benchmark as a program: measures on --threads cores, writes --json and prints."""
    with cli.one_message("what was measured is lost"):
        given = parser.parse_args()
        if hasattr(given, "threads"):
            malloc.keep_freed()
            pin_to_cores(given.threads)
        found = measure(given)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        report(found)


def pin_to_cores(threads: int) -> None:
    """Gives this process that many cores; XLA has a thread for each. Call before JAX starts.

    Raises:
      Stopped: the process may use fewer.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if not 0 < threads <= len(cores):
            raise cli.Stopped(f"--threads={threads}: this process may use {len(cores)} core(s)")
        os.sched_setaffinity(0, set(cores[:threads]))


def missing_peer() -> str | None:
    """Returns why PyTorch cannot be measured beside us, or None if it can."""
    import jax

    if jax.default_backend() != "cpu":
        return f"the peer is measured on CPU, not beside {jax.devices()[0].device_kind}"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed (pip install '.[parity]')"
    return None


def describe(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments, device, load and versions; call before measuring."""
    import jax

    from scalelab.runs import environment

    load = os.getloadavg()[0]
    environment.configure_jax(None, "float32")
    return {name: value for name, value in vars(given).items() if name != "json"} | {
        "device": jax.devices()[0].device_kind,
        "load": load,
        "environment": environment.describe(),
        "missing_peer": missing_peer(),
    }


def heading(found: dict[str, Any]) -> str:
    """Formats device, threads and load, with a warning where others used the machine."""
    busy = ": other processes use the cores, so these numbers say little" * (found["load"] > 0.5)
    missing = f"\npeer left out: {found['missing_peer']}" if found["missing_peer"] else ""
    return (
        f"\n{found['device']}, {found['threads']} thread(s), load {found['load']:.1f} at the start"
        f"{busy}{missing}"
    )


class Spent(NamedTuple):
    """Time that a call took.

    Attributes:
      wall: seconds by the clock.
      cpu: CPU seconds of all threads of this process.
    """

    wall: float
    cpu: float


def timed(call: Callable[..., Any], *arguments: Any) -> Spent:
    """Calls, and returns the time that it took."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    call(*arguments)
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def rates(amount: float, each: Sequence[Spent]) -> dict[str, float]:
    """Returns medians of `amount` per second of wall and of CPU time."""
    return {
        "per_sec": amount / statistics.median(spent.wall for spent in each),
        "per_cpu_sec": amount / statistics.median(spent.cpu for spent in each),
    }
