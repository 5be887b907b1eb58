"""What the benchmarks share: command lines, cores, clocks, and runs made from sizes alone."""

import argparse
import gc
import importlib.util
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from scalelab.config import cli
from scalelab.helpers.names import nearest
from scalelab.resources import malloc

Reader = Callable[[str], Any]


# --- Command lines --------------------------------------------------------------------------------


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
    made = cli.Parser(
        prog=f"python -m benchmarks.{name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if repeats is not None:
        made.add_argument("--repeats", type=count(), default=repeats)
    if threads:
        made.add_argument("--threads", type=count(), default=2, help="of all sides, on CPU")
    made.add_argument("--json", type=writable_file, metavar="FILE", help="write the numbers there")
    made.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    return made


def add_sizes(made: cli.Parser) -> None:
    """Adds the sizes of a batch."""
    made.add_argument("--batch_size", type=count(), default=64)
    made.add_argument("--length", type=count(8), default=128, help="tokens of an example")
    made.add_argument("--vocab_size", type=count(16), default=30_000)


def parse(made: cli.Parser, argv: list[str] | None, quick: dict[str, Any]) -> argparse.Namespace:
    """Reads a command line; --quick takes the values of `quick` for flags that are not given."""
    given = made.parse_args(argv)
    if given.quick:
        made.set_defaults(**quick)
        given = made.parse_args(argv)
    return given


def count(least: int = 1) -> Reader:
    """Makes a reader of whole numbers of at least `least`."""

    def read_count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number >= {least}, got {text!r}")
        return int(text)

    return read_count


def shape(text: str) -> str:
    """Reads heads x width x layers, such as 2x128x2; heads must divide the width."""
    parts = [int(part) if part.isdecimal() else 0 for part in text.split("x")]
    if len(parts) != 3 or not all(parts) or parts[1] % parts[0]:
        raise argparse.ArgumentTypeError(
            f"expected heads x width x layers with heads dividing width, as 2x128x2, got {text!r}"
        )
    return text


def choice(what: str, names: Collection[str]) -> Reader:
    """Makes a reader of one of `names`; `what` they are is for the message."""

    def read_name(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"unknown {what} {text!r}: {nearest(text, names)}")
        return text

    return read_name


def comma_list(read: Reader) -> Reader:
    """Makes a reader of values joined by commas."""
    return lambda text: [read(part) for part in text.split(",") if part]


def writable_file(text: str) -> str:
    """Reads the name of a file in a folder that exists."""
    path = pathlib.Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in an existing folder, got {text!r}")
    return text


def start(parse_arguments: Callable[[], Any], main: Callable[[Any], None]) -> None:
    """Runs a benchmark as a program, on as many cores as --threads says."""
    with cli.one_message(
        "what was measured is lost", when_full="measure a smaller shape or --batch_size"
    ):
        asked = parse_arguments()
        if hasattr(asked, "threads"):
            malloc.keep_freed()
            pin_to_cores(asked.threads)
        main(asked)


def write_json(found: Any, path: str | None) -> None:
    """Writes the numbers where --json names a file."""
    if path:
        pathlib.Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# --- Machine and clocks ---------------------------------------------------------------------------


def pin_to_cores(threads: int) -> None:
    """Gives this process that many cores; XLA has a thread for each. Call before JAX starts.

    Raises:
      Stopped: the process may use fewer.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if threads > len(cores):
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


def describe_machine() -> dict[str, Any]:
    """Returns device, load and versions; call before measuring."""
    import jax

    from scalelab.runs import environment

    load = os.getloadavg()[0]
    environment.configure_jax(None, "float32")
    return {
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
        f"{found['device']}, {found['threads']} thread(s), load {found['load']:.1f} at the start"
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


def rates(amount: float, each: Sequence[Spent]) -> dict[str, Any]:
    """Returns medians of `amount` per second of wall and CPU time, and the wall seconds of each."""
    return {
        "per_sec": amount / statistics.median(spent.wall for spent in each),
        "per_cpu_sec": amount / statistics.median(spent.cpu for spent in each),
        "each_secs": [spent.wall for spent in each],
    }


# --- Runs -----------------------------------------------------------------------------------------


def split_shape(text: str) -> tuple[int, int, int]:
    """Returns heads, width, layers."""
    num_heads, width, num_layers = map(int, text.split("x"))
    return num_heads, width, num_layers


def abstract_run(
    system: str, text: str, *, batch_size: int, length: int, vocab_size: int, dtype: str = "float32"
) -> Any:
    """Returns the abstract run (`resources.blueprint`) of a system's own config at some sizes.

    Args:
      system: a file of scalelab/systems.
      text: the shape.
      batch_size: B of the only phase.
      length: T of the only phase; no example is padded.
      vocab_size: V.
      dtype: of the computation.
    """
    from scalelab.config import files
    from scalelab.config import pretraining as config_lib
    from scalelab.resources import blueprint

    pretrain = files.load(files.FOLDER / "pretrain.py")
    config = pretrain.get_config(f"system={system},shape={text},steps=1000")
    config.net.dtype, config.tokenizer.vocab_size = dtype, vocab_size
    config.net.max_len = max(config.net.max_len, length)
    config.short.max_len, config.short.batch_size = length, batch_size
    config.long.example_rate = 0.0
    return blueprint.draw(config_lib.resolve(config.to_dict()))
