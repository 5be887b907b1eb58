"""What the benchmarks share: command lines, cores, clocks and tables."""

import argparse
import gc
import importlib.util
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.config import cli, exits
from scalelab.resources import host

OF_LAYERS = ("lstm", "gcnn")  # systems whose layers torch.nn has, and no class of transformers


def make_parser(name: str, text: str | None, **defaults: Any) -> cli.Parser:
    """Makes the command line of `python -m benchmarks.<name>`, with a flag for each default.

    A list is given joined by commas; None is a text.
    """
    setup = host.keep_freed if "threads" in defaults else None
    made = cli.Parser(f"python -m benchmarks.{name}", text, setup=setup)
    for flag, default in defaults.items():
        kind = {list: cli.comma_list, type(None): str}.get(type(default), type(default))
        made.add_argument(f"--{flag}", type=kind, default=default)
    made.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the numbers there")
    return made


def start(
    parser: cli.Parser,
    measure: Callable[[argparse.Namespace], Any],
    report: Callable[[Any], None],
) -> None:
    """Runs a benchmark as a program: measures on --threads cores, writes --json and prints."""

    def main(given: argparse.Namespace) -> None:
        if hasattr(given, "threads"):
            pin_to_cores(given.threads)
        found = measure(given)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        report(found)

    cli.run(main, parser)


def pin_to_cores(threads: int) -> None:
    """Gives this process that many cores; XLA has a thread for each. Call before JAX starts.

    Raises:
      Stopped: the process may use fewer.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if not 0 < threads <= len(cores):
            raise exits.Stopped(f"--threads={threads}: this process may use {len(cores)} core(s)")
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

    from scalelab.records import run_folder

    load = os.getloadavg()[0]
    host.configure_jax(None, "float32")
    return {name: value for name, value in vars(given).items() if name != "json"} | {
        "device": jax.devices()[0].device_kind,
        "load": load,
        "environment": run_folder.describe_environment(),
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


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a Markdown table."""
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(row)} |")


class Spent(NamedTuple):
    """Time that a call took: seconds by the clock, and CPU seconds of this process's threads."""

    wall: float
    cpu: float


def timed(call: Callable[..., Any], *arguments: Any) -> Spent:
    """Calls a function, and returns the time that it took."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    call(*arguments)
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def medians(calls: Sequence[Mapping[str, Callable[[], Any]]]) -> dict[str, Spent]:
    """Times the calls of each repetition, one after another; returns the medians by name."""
    each = [{name: timed(call) for name, call in repetition.items()} for repetition in calls]
    return {
        name: Spent(*map(statistics.median, zip(*(made[name] for made in each), strict=True)))
        for name in each[0]
    }


def rates(amount: float, spent: Spent) -> dict[str, float]:
    """Returns `amount` per second of wall and of CPU time."""
    return {"per_sec": amount / spent.wall, "per_cpu_sec": amount / spent.cpu}
