"""Does it fit? What a config's training step needs in memory, and the largest batch that fits.

  python -m scalelab.fit --config=configs/pretrain.py:system=bert,shape=13x832x5
      [--device=h100 | --memory=24GiB]

Compiles the real training step of each phase: its numbers are the compiler's own plan, and nothing
has to run. It needs neither corpus nor tokenizer: the vocabulary is the config's. The step is
compiled for the local device. For another device the answer is an estimate, and says so, because
that device's compiler plans by other rules. A GPU counts with the three quarters of its memory that
JAX takes (XLA_PYTHON_CLIENT_MEM_FRACTION).

Activations are the memory that grows with the batch, from a second compilation; gradients and
scratch are the rest, on CPU with a measured allowance for memory that the compiler does not count.
On CPU training keeps freed buffers while memory is plentiful; the program prints the largest total.
"""

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.resources import host

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh

    from scalelab.training.blueprint import Blueprint

HEADER = (
    "phase", "batch", "parameters", "optimizer", "activations", "gradients, scratch", "in all",
)  # fmt: skip
# On CPU a process takes this much more than its compiled step: perhaps what products pack their
# operands into, and gaps that the allocator leaves. Measured: LOG.md.
BESIDE_ON_CPU = 72 * 2**20
UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
MOST_TRIES = 8
LARGEST = 16384  # batch size that is worth asking for


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes of one training step on one device."""

    batch_size: int  # examples of the whole batch
    params: int
    optimizer: int
    batch: int  # the batch, and results that do not take the place of an argument
    between: int  # what exists only within the step: gradients, activations, scratch
    beside: int = 0  # what the compiled program does not count

    @property
    def total(self) -> int:
        """All of it."""
        return self.params + self.optimizer + self.batch + self.between + self.beside

    @property
    def kept(self) -> int:
        """Upper bound for training on CPU, which keeps freed memory."""
        return self.total + (host.GAPS - 1) * self.between


def measure_step(
    plan: "Blueprint", length: int, batch_size: int, mesh: "Mesh", platform: str | None = None
) -> StepMemory:
    """Compiles the training step of a batch and returns its memory need.

    Args:
      plan: the run in the abstract.
      length: tokens of an example.
      batch_size: examples.
      mesh: the devices.
      platform: "cpu", "gpu" or "tpu", whose program is laid out by this machine's compiler; None:
        the platform of the devices.
    """
    import jax

    from scalelab import sharding
    from scalelab.objectives import xent

    platform = platform or mesh.devices.flat[0].platform
    with xent.as_on(platform):
        found = plan.compile(length, batch_size, mesh).memory_analysis()
    assert found is not None
    placed = sharding.shardings(plan.boxed, mesh)
    params, optimizer = (
        sum(
            math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf, where in zip(jax.tree.leaves(tree), jax.tree.leaves(places), strict=True)
        )
        for tree, places in (
            (plan.state.params, placed.params),
            (plan.state.opt_state, placed.opt_state),
        )
    )
    arguments = found.argument_size_in_bytes + found.output_size_in_bytes
    rest = arguments - found.alias_size_in_bytes - params - optimizer
    beside = BESIDE_ON_CPU if platform == "cpu" else 0
    return StepMemory(batch_size, params, optimizer, rest, found.temp_size_in_bytes, beside)


def slope(a: StepMemory, b: StepMemory) -> float:
    """Returns the bytes per additional example, from a smaller batch and a larger one."""
    return max(0.0, (b.total - a.total) / (b.batch_size - a.batch_size))


def largest_batch(
    measure: Callable[[int], StepMemory],
    known: Sequence[StepMemory],
    capacity: float,
    quantum: int = 1,
) -> tuple[StepMemory | None, StepMemory | None]:
    """Searches the largest batch that fits: linear extrapolation, checked by compiling.

    Args:
      measure: compiles for a batch size.
      known: of two batch sizes or more.
      capacity: bytes there are.
      quantum: batch sizes are multiples of it.

    Returns:
      The largest that was compiled and fits, None if not even `quantum` does; and the smallest
      that was compiled and does not, which is the next one unless the search was given up.
    """
    seen = sorted(known, key=lambda m: m.batch_size)
    for attempt in range(MOST_TRIES + 1):
        at = next((i for i, m in enumerate(seen) if m.total > capacity), len(seen))
        fits, beyond = seen[at - 1] if at else None, seen[at] if at < len(seen) else None
        low = fits.batch_size if fits else 0
        certain = beyond is not None and beyond.batch_size - low <= quantum
        if certain or low >= LARGEST or attempt == MOST_TRIES:
            break
        if beyond and attempt % 2 and beyond.batch_size - low > low / 8:
            guess = (low + beyond.batch_size) / 2  # a line creeps where memory is not linear
        else:
            at = min(max(at, 1), len(seen) - 1)
            a, grows = seen[at - 1], slope(seen[at - 1], seen[at])
            guess = a.batch_size + (capacity - a.total) / grows if grows else 2.0 * low
        size = max(int(min(guess, LARGEST) // quantum) * quantum, low + quantum)
        if beyond:
            size = min(size, beyond.batch_size - quantum)
        seen = sorted([*seen, measure(size)], key=lambda m: m.batch_size)
    return fits, beyond


def parse_bytes(text: str) -> int:
    """Reads "24GiB" or "16000MB"; raises ValueError for another form."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?i?B)", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise ValueError(f"--memory={text!r}: expected a number with its unit, such as 24GiB")
    return int(float(found[1]) * UNITS[found[2].upper()])


def capacity(device: str | None, memory: str | None, here: "jax.Device") -> tuple[float, str]:
    """Returns the bytes available to a step, and a description, which marks estimates.

    Args:
      device: a name of devices.DEVICES.
      memory: or bytes, as "24GiB".
      here: a device of this process.

    Raises:
      ValueError: an unknown device or number of bytes.
    """
    from scalelab.resources import devices

    if memory:
        note = "\nplanned as for a CPU; for a GPU or TPU, name a similar one with --device"
        return parse_bytes(memory), f"--memory={memory}{note * (here.platform == 'cpu')}"
    if device:
        found, own = devices.named(device), devices.find_kind(here.device_kind)
        where = f"{found.name}: {_gib(found.num_bytes)} for a program"
        note = f"\nan estimate: the compiler of {device} plans differently from the compiler here"
        return found.num_bytes, where + note * (own != found)
    if here.platform == "cpu":
        if (free := host.available()) is None:
            raise ValueError("the free memory of this machine is not known: give --memory")
        return free, f"this machine: {_gib(free)} available"
    num_bytes = here.memory_stats()["bytes_limit"]
    return num_bytes, f"{here.device_kind}: {_gib(num_bytes)} for a program"


def fit(config: Config, device: str | None, memory: str | None) -> str:
    """Describes what a config's steps need, and whether that fits.

    Raises:
      ValueError: config or device do not allow it.
    """
    import jax

    from scalelab import sharding
    from scalelab.lab import tables
    from scalelab.resources import devices, flops
    from scalelab.training import blueprint

    machine, net = config.machine, config.model
    host.configure_jax(machine.compile_cache_dir, net.dtype)
    plan = blueprint.draw(config)
    mesh = plan.mesh
    sharding.check_batches(mesh, [p.batch_size for p in config.phases], machine.num_microbatches)
    quantum = sharding.batch_ways(mesh) * machine.num_microbatches
    here = jax.devices()[0]
    available, where = capacity(device, memory, here)
    platform = devices.named(device).platform if device else None
    rows, lines = [], []
    for i, phase in enumerate(config.phases):

        def measure(batch_size: int, length: int = phase.max_len) -> StepMemory:
            print(f"compiling for {batch_size} x {length}", file=sys.stderr, flush=True)
            return measure_step(plan, length, batch_size, mesh, platform)

        asked = measure(phase.batch_size)
        half = phase.batch_size // 2 // quantum * quantum
        other = measure(half or 2 * phase.batch_size)
        growing = min(asked.between, slope(asked, other) * phase.batch_size)
        rest = asked.between - growing + asked.beside
        parts = (asked.params, asked.optimizer, growing, rest, asked.total)
        name = f"{phase.batch_size} x {phase.max_len}"
        rows.append([str(i + 1), name, *map(_gib, parts)])
        found = largest_batch(measure, [asked, other], available, quantum)
        verdict = "fits" if asked.total <= available else "does NOT fit"
        total = f"{_gib(asked.total)} of {_gib(available)}"
        lines.append(f"{name} {verdict}: {total}; {describe_largest(*found, quantum)}")
        if here.platform == "cpu" and not device and not memory:
            lines.append(f"{name} in training: up to {_gib(asked.kept)} while memory is plentiful")
    return (
        f"{config.system} {net.shape}, {net.dtype}, vocabulary"
        f" {config.tokenizer.vocab_size:,}, {flops.count_parameters(plan.state.params):,}"
        f" parameters; remat {machine.remat}, {machine.num_microbatches} microbatch(es); each of"
        f" {jax.device_count()} device(s)\ncompiled for {here.device_kind}; {where}\n\n"
        + tables.plain(HEADER, rows)
        + "\n".join(lines)
    )


def describe_largest(fits: StepMemory | None, beyond: StepMemory | None, quantum: int) -> str:
    """Describes what `largest_batch` found."""
    if fits is None:
        assert beyond is not None
        return (
            f"not even a batch of {beyond.batch_size} fits: try --config.machine.remat=full"
            " or more --config.machine.num_microbatches"
        )
    certain = beyond is not None and beyond.batch_size - fits.batch_size <= quantum
    found = f"the largest batch that fits has {'' if certain else 'at least '}{fits.batch_size}"
    found += f" ({_gib(fits.total)})"
    return found + (f", {beyond.batch_size} takes {_gib(beyond.total)}" if beyond else "")


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.fit", __doc__, config=Config)
    made.add_argument("--init", metavar="RUN", help=cli.INIT)
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "--device",
        metavar="NAME",
        help="an accelerator, such as v100-16, a100-40, h100, tpu-v5e; default: the local device",
    )
    where.add_argument("--memory", metavar="SIZE", help="or the memory itself, such as 24GiB")
    return made


def main(given: argparse.Namespace) -> None:
    """Prints what the steps need."""
    print(fit(cli.read_config(given), given.device, given.memory))


if __name__ == "__main__":
    cli.run(main, parser())
