"""What benchmarks beside a peer in PyTorch share."""

import gc
import importlib.util
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from scalelab.config import cli
from scalelab.resources import malloc

SELF = resource.RUSAGE_SELF
BUSY = ": others use the cores, so these numbers say little"


def pin(threads: int) -> None:
    """Gives this process so many cores; XLA has a thread for each. Call before JAX starts.

    Raises:
      Stopped: there are not so many.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if threads > len(cores):
            raise cli.Stopped(f"--threads={threads}: this process may use {len(cores)} core(s)")
        os.sched_setaffinity(0, set(cores[:threads]))


def peer_left_out() -> str | None:
    """Why the peer cannot be measured; None: it can."""
    import jax

    if jax.default_backend() != "cpu":
        return f"it is measured on CPU, not beside {jax.devices()[0].device_kind}"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed (pip install '.[parity]')"
    return None


def peer_versions() -> str:
    """Of what it is made with."""
    import torch
    import transformers

    return f"transformers {transformers.__version__}, torch {torch.__version__}"


def give_weights(model: Any, system: str, params: Any) -> None:
    """Copies our parameters into a class of transformers of the same net.

    Args:
      model: the class's instance, of as many tokens as ours.
      system: the family.
      params: ours.
    """
    import torch

    from scalelab.interop import convert, maps
    from scalelab.interop.transforms import Sizes

    family, config = maps.load(system), model.config
    name = type(model).__name__
    rows = family.rows(next(a for a in family.architectures if a.name == name))
    sizes = Sizes(
        config.num_attention_heads, config.num_hidden_layers, config.vocab_size, config.vocab_size
    )
    found = convert.to_theirs(rows, convert.flatten(params), sizes)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(torch.tensor(found.pop(name)))
    assert not found, found.keys()


def keep(found: Any, path: str | None) -> None:
    """Writes the numbers as JSON where --json names a file."""
    if path:
        Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def start(
    parse: Callable[[], Any],
    main: Callable[[Any], None],
    *,
    only_tells: bool = True,
    when_interrupted: str = "what was measured is lost",
) -> None:
    """A benchmark as a program, on as many cores as --threads says, if it has that flag.

    Args:
      parse: reads the command line.
      main: is given what it read.
      only_tells: as of cli.one_message; numbers are written before they are printed.
      when_interrupted: what is said then.
    """
    smaller = "measure a smaller shape or --batch_size"
    with cli.one_message(when_interrupted, only_tells=only_tells, when_full=smaller):
        asked = parse()
        if hasattr(asked, "threads"):
            if not getattr(asked, "default_malloc", False):
                malloc.keep()
            pin(asked.threads)
        main(asked)


class Spent(NamedTuple):
    """What a call took: all but the first of all threads of the process.

    Attributes:
      wall: seconds by the clock.
      cpu: seconds of CPU time, the kernel's included.
      kernel: seconds of that in the kernel; pages that a program is given are cleared there.
      faults: pages that had to be given.
    """

    wall: float
    cpu: float
    kernel: float
    faults: float


def timed(call: Callable[[int], Any], count: int) -> Spent:
    """What call(count) takes of this process."""
    gc.collect()
    before, usage = (time.perf_counter(), time.process_time()), resource.getrusage(SELF)
    call(count)
    after, now = (time.perf_counter(), time.process_time()), resource.getrusage(SELF)
    wall, cpu = (b - a for a, b in zip(before, after, strict=True))
    return Spent(wall, cpu, now.ru_stime - usage.ru_stime, now.ru_minflt - usage.ru_minflt)
