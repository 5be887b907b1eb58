"""Does it fit? What a config's training step needs in memory, and the largest batch that fits.

  python -m scalelab.fit --config=configs/pretrain.py:system=bert,shape=13x832x5
      [--device=h100 | --memory=24GiB] [--measure]

Compiles the real training step of each phase: its numbers are the compiler's own plan. It needs
neither corpus nor tokenizer: the vocabulary is the config's. The step is compiled for what JAX
runs on here; another device's compiler plans by other rules, so that for a device that is not here
the answer is an estimate, and says so; scores come in that device's chunks. A GPU counts with the
three quarters of its memory that JAX takes (XLA_PYTHON_CLIENT_MEM_FRACTION).

Activations are what grows with the batch, told by compiling for a second batch size; gradients and
scratch are what does not, on CPU with a measured allowance for what the compiler does not count.
--measure also takes three steps of the config's batch in a process of its own, and tells their real
peak. On CPU training keeps freed buffers while there is plenty of memory, and takes more than its
plan then: what that comes to at most is said.
"""

import os
import sys
from typing import Any

from absl import flags

from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.runs import environment

flags.adopt_module_key_flags(cli)
DEVICE = flags.DEFINE_string(
    "device",
    None,
    "An accelerator, such as v100-16, a100-40, h100, tpu-v5e; default: what is here.",
)
MEMORY = flags.DEFINE_string("memory", None, "Or the memory itself, such as 24GiB.")
MEASURE = flags.DEFINE_bool("measure", False, "Also take steps here and measure their peak.")

HEADER = (
    "phase",
    "batch",
    "parameters",
    "optimizer",
    "activations",
    "gradients, scratch",
    "in all",
)


def capacity(device: str | None, memory: str | None) -> tuple[float, str]:
    """Bytes there are for a step, and what has them.

    Args:
      device: a name of devices.DEVICES.
      memory: or bytes, as "24GiB".

    Raises:
      ValueError: both are given, or what is given is not known.
    """
    import jax

    from scalelab.resources import devices
    from scalelab.resources import memory as memory_lib

    if device and memory:
        raise ValueError("--device and --memory both say how much memory there is: give one")
    if memory:
        return memory_lib.parse_bytes(memory), f"--memory={memory}"
    if device:
        found = devices.named(device)
        return found.num_bytes, f"{found.name}: {_gib(found.num_bytes)} for a program"
    here = jax.devices()[0]
    if here.platform == "cpu":
        total, own = memory_lib.of_this_machine(), environment.peak_memory_bytes()
        return total - own, (
            f"this machine: {_gib(total)} less {_gib(own)} of the process with its libraries"
        )
    num_bytes = here.memory_stats()["bytes_limit"]
    return num_bytes, f"{here.device_kind}: {_gib(num_bytes)} for a program"


def fit(config: Config, device: str | None, memory: str | None, measure: bool) -> str:
    """Says what a config's steps need.

    Args:
      config: the run's.
      device: a name of devices.DEVICES, or None.
      memory: "24GiB", or None.
      measure: whether to take steps.

    Raises:
      ValueError: config or device do not allow it.
    """
    import jax

    from scalelab import sharding
    from scalelab.lab import tables
    from scalelab.resources import blueprint, devices, flops
    from scalelab.resources import memory as memory_lib

    machine = config.machine
    environment.configure_jax(machine.compile_cache_dir, config.net.dtype)
    mesh = sharding.make_mesh(machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel)
    plan = blueprint.draw(config)
    sizes = [phase.batch_size for phase in plan.phases]
    sharding.check_batches(mesh, sizes, machine.num_microbatches)
    quantum = sharding.batch_ways(mesh) * machine.num_microbatches
    available, where = capacity(device, memory)
    platform = devices.named(device).platform if device else None
    here = jax.devices()[0]
    keeps = here.platform == "cpu" and not device and not memory
    rows, said = [], []
    for i, phase in enumerate(plan.phases):

        def of(batch_size: int, length: int = phase.length) -> Any:
            _say(f"compiling for {batch_size} x {length}")
            return memory_lib.of_step(plan, length, batch_size, mesh, platform)

        asked = of(phase.batch_size)
        other = of(memory_lib.another_size(phase.batch_size, quantum))
        growing = min(asked.between, memory_lib.slope(asked, other) * phase.batch_size)
        rest = asked.between - growing + asked.beside
        parts = (asked.params, asked.optimizer, growing, rest, asked.total)
        name = f"{phase.batch_size} x {phase.length}"
        rows.append([str(i + 1), name, *map(_gib, parts)])
        fits, beyond = memory_lib.largest_batch(of, [asked, other], available, quantum)
        verdict = "fits" if asked.total <= available else "does NOT fit"
        most = _largest(fits, beyond, quantum)
        said.append(f"{name} {verdict}: {_gib(asked.total)} of {_gib(available)}; {most}")
        if measure and asked.total > available:
            said.append(f"{name} not measured: it would not fit")
        elif measure:
            _say(f"measuring {name}")
            said.append(f"{name} measured: {_measured(config, phase, asked)}")
        if keeps:
            said.append(f"{name} {_kept(asked, available)}")
    net = config.net
    head = (
        f"{config.system} {net.num_heads}x{net.width}x{net.num_layers}, {net.dtype}, vocabulary"
        f" {config.tokenizer.vocab_size:,}, {flops.count_parameters(plan.state.params):,}"
        f" parameters; remat {machine.remat}, {machine.num_microbatches} microbatch(es); each of"
        f" {jax.device_count()} device(s)\ncompiled for {here.device_kind};"
        f" {where}{_estimate(device, memory, here)}\n\n"
    )
    return head + tables.plain(HEADER, rows) + "\n".join(said)


def _measured(config: Config, phase: Any, asked: Any) -> str:
    """The real peak of a phase's steps beside the plan, in words."""
    from scalelab.resources import memory_measured

    real = memory_measured.peak(config, phase.length, phase.batch_size)
    if real is None:
        return "this system does not tell"
    return f"{_gib(real)}, {real / asked.total - 1:+.1%} of the plan"


def _kept(asked: Any, available: float) -> str:
    """Describes what training takes while it keeps freed buffers; see resources/malloc.py."""
    if 2 * asked.kept > available:
        return f"in training: freed buffers go back, since {_gib(asked.kept)} is over half of that"
    return f"in training: up to {_gib(asked.kept)}, freed buffers being kept while as much is left"


def _largest(fits: Any, beyond: Any, quantum: int) -> str:
    """What the search found, in words."""
    if fits is None:
        return (
            f"not even a batch of {beyond.batch_size} fits: try --config.machine.remat=full"
            " or more --config.machine.num_microbatches"
        )
    certain = beyond is not None and beyond.batch_size - fits.batch_size <= quantum
    found = f"the largest batch that fits has {'' if certain else 'at least '}{fits.batch_size}"
    found += f" ({_gib(fits.total)})"
    return found + (f", {beyond.batch_size} takes {_gib(beyond.total)}" if beyond else "")


def _estimate(device: str | None, memory: str | None, here: Any) -> str:
    """The warning for a device that is not here."""
    from scalelab.resources import devices

    if memory and here.platform == "cpu":
        return "\ncounted as a CPU's; for a GPU or TPU, name one that is like it with --device"

    own = devices.of_kind(here.device_kind)
    if device and (own is None or own.name != device.lower()):
        return f"\nan estimate: the compiler of {device} plans by other rules than that of this one"
    return ""


def _gib(num_bytes: float) -> str:
    """Bytes for people."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: list[str]) -> None:
    """Reads the flags and answers."""
    del argv
    if MEASURE.value:  # else this process would take what the measuring one needs
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    print(fit(cli.read_config(), DEVICE.value, MEMORY.value, MEASURE.value))


if __name__ == "__main__":
    cli.run(main, when_interrupted="nothing was kept")
