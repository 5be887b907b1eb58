"""What XLA makes of a training step for a GPU, without having one: kernels, bytes, a model of time.

  python -m benchmarks.kernels [--device=h100] [--shapes=2x128x2,2x256x9,13x832x5]
      [--dtype=bfloat16] [--batch_size=64] [--length=128] [--vocab_size=30000] [--seeds=1]
      [--candidate=fused_attention] [--top=0] [--json=FILE] [--quick]

BERT's step (as scalelab.train takes it) is compiled ahead of time for the GPU named, which takes a
minute a shape and needs `pip install '.[cuda]'`, but no GPU. XLA then cannot try kernels as it does
on the device: this is a stand-in for the program that runs there. Kernels are counted by what XLA's
names say of them, and the bytes of the arrays that each reads and writes, as if no cache held any.
The memory that XLA plans is told, too: of a GPU that is not here `scalelab.fit` has a CPU's plan.

Two times of a step follow. "At the table's rates" each kernel takes as long as the larger of its
bytes and its products' FLOPs do at the makers' rates. That is no bound: what a kernel leaves in the
cache (50 MB) the next one reads faster. "Expected" is the same at 3/4 of the bandwidth and 0.67 of
the FLOP/s, and 1.5 us for each kernel, numbers that fit what an H100 was measured to take
(RESULTS.md has both beside each other). Use it to see what a change of the program would bring.
Products within a kernel of our own are not counted, nor what the host does.

With --device=here the step is compiled for the CPU, to see that the program runs; no times.
"""

import argparse
import collections
import dataclasses
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks import accelerator, hlo, side_by_side
from benchmarks import arguments as command_line
from scalelab.config import cli
from scalelab.resources import devices
from scalelab.runs import environment

SHAPES = ("2x128x2", "2x256x9", "13x832x5")
QUICK = {
    "shapes": ["2x8x1"], "vocab_size": 97, "batch_size": 4, "length": 16, "device": "here",
}  # fmt: skip
# Shares of a device's rates, and seconds to start a kernel, that are expected.
OF_BANDWIDTH, OF_PEAK, START_SECS = 0.75, 0.67, 1.5e-6


@dataclasses.dataclass(frozen=True)
class Target:
    """A GPU as XLA is told of it; makers' numbers.

    Attributes:
      bandwidth: bytes a second of its memory.
      num_cores: streaming multiprocessors.
      l2_bytes: of the cache that they share.
      gigahertz: of the clock.
      capability: of CUDA.
    """

    bandwidth: float
    num_cores: int
    l2_bytes: int
    gigahertz: float
    capability: int

    def told(self, device: devices.Device) -> str:
        """In the words of XLA's GpuTargetConfigProto; constants are those of capability 9."""
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
              shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
              shared_memory_per_core: 233472
              registers_per_block_limit: 65536 registers_per_core_limit: 65536
              block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
              fpus_per_core: 128 core_count: {self.num_cores} clock_rate_ghz: {self.gigahertz}
              memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.l2_bytes}
              device_memory_size: {device.gibibytes * devices.GIB:.0f}
              cuda_compute_capability {{ major: {self.capability} }}
            }}
            platform_name: "CUDA" device_description_str: "NVIDIA {device.kind}"
            runtime_version {{ major: 12 minor: 8 }} dnn_version_info {{ major: 9 minor: 7 }}
        """


TARGETS = {
    "h100": Target(3.35e12, 132, 50 * 2**20, 1.98, 9),
    "h200": Target(4.8e12, 132, 50 * 2**20, 1.98, 9),
}


def place_on(device: str) -> Any:
    """Where a program is compiled for, as a sharding; None: the CPU that is here.

    Raises:
      cli.Stopped: JAX's part for CUDA is not installed, or what is here is no CPU.
    """
    import jax
    from jax.experimental import topologies

    if device == "here":
        if jax.default_backend() != "cpu":
            raise cli.Stopped("--device=here is the CPU; on a GPU run benchmarks.accelerator")
        return None
    text = TARGETS[device].told(devices.named(device))
    try:
        found = topologies.get_topology_desc("", "cuda", target_config=text, topology="1x1x1")
    except Exception as error:
        raise cli.Stopped(
            f"--device={device} needs JAX's part for CUDA, though no GPU:"
            f" pip install '.[cuda]' ({(str(error) or repr(error)).splitlines()[0][:120]})"
        ) from error
    return jax.sharding.SingleDeviceSharding(found.devices[0])


def compiled_for(device: str, function: Callable[..., Any], given: Any) -> Any:
    """Compiles function(*given) for a device; the first argument is donated."""
    import jax

    from scalelab.objectives import xent

    place = place_on(device)
    like = lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=place)  # noqa: E731
    with xent.as_on(None if device == "here" else "gpu"):
        run = jax.jit(function, donate_argnums=0, out_shardings=place)
        return run.lower(*jax.tree.map(like, given)).compile()


def compiled_case(case: accelerator.Case, vocab_size: int, device: str) -> tuple[Any, Any]:
    """A case's plan, and its step compiled."""
    import jax

    with accelerator.exactly(case.dtype):
        made = accelerator.program(case, vocab_size)
        given = jax.eval_shape(made.fresh, made.seeds), made.batches, np.float32(0)
        return made.plan, compiled_for(device, made.block, given)


def without_device(device: str) -> None:
    """Tells XLA, before it starts, that there is nothing to try kernels on."""
    if device != "here":
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
        import jax

        jax.config.update("jax_platforms", "cpu")


def rates(device: str, dtype: str) -> tuple[float, float] | None:
    """Bytes and FLOP a second by the makers' tables; None: the model does not know them."""
    if device == "here" or dtype != "bfloat16":
        return None
    return TARGETS[device].bandwidth, devices.named(device).narrow_peak


def secs(kernel: hlo.Kernel, bandwidth: float, peak: float, start_secs: float = 0.0) -> float:
    """What a kernel takes at these rates, all its turns together."""
    return kernel.turns * (start_secs + max(kernel.num_bytes / bandwidth, kernel.flops / peak))


def summary(kernels: Iterable[hlo.Kernel], known: tuple[float, float] | None) -> dict[str, Any]:
    """Numbers of some kernels: how many, gigabytes, TFLOP, and where rates are known, times."""
    kernels = list(kernels)
    found: dict[str, Any] = {
        "kernels": sum(k.turns for k in kernels),
        "gigabytes": sum(k.turns * k.num_bytes for k in kernels) / 1e9,
        "tflop": sum(k.turns * k.flops for k in kernels) / 1e12,
    }
    if known:
        bandwidth, peak = known
        at_least = sum(secs(k, bandwidth, peak) for k in kernels)
        expected = (OF_BANDWIDTH * bandwidth, OF_PEAK * peak, START_SECS)
        found["table_ms"] = 1e3 * at_least
        found["expected_ms"] = 1e3 * sum(secs(k, *expected) for k in kernels)
    return found


def measure_case(case: accelerator.Case, given: argparse.Namespace) -> dict[str, Any]:
    """Compiles a case and sums its kernels up by kind."""
    begun = time.perf_counter()
    if given.candidate and not accelerator.takes(case, given.candidate):
        raise cli.Stopped(f"--candidate={given.candidate} does not fit {case.name}")
    with accelerator.with_candidate(given.candidate, interpret=given.device == "here"):
        plan, compiled = compiled_case(case, given.vocab_size, given.device)
    found, known = list(hlo.kernels(compiled.as_text())), rates(given.device, case.dtype)
    kinds = collections.defaultdict(list)
    for kernel in found:
        kinds[kernel.kind].append(kernel)
    total = summary(found, known)
    if known:
        useful = plan.phases[0].forward.train * case.seeds
        total["expected_share_of_peak"] = useful / (total["expected_ms"] / 1e3) / known[1]
    planned = compiled.memory_analysis()
    largest = sorted(found, key=lambda kernel: -kernel.turns * kernel.num_bytes)
    return dataclasses.asdict(case) | {
        "device": given.device,
        "candidate": given.candidate,
        "made_by": environment.describe(),
        "compile_secs": time.perf_counter() - begun,
        "memory_bytes": planned.argument_size_in_bytes + planned.temp_size_in_bytes,
        "total": total,
        "kinds": {kind: summary(kinds[kind], known) for kind, _ in hlo.KINDS if kinds[kind]},
        "largest": [dataclasses.asdict(kernel) for kernel in largest[: given.top]],
    }


def markdown(found: dict[str, Any]) -> str:
    """One case as a table."""
    title = f"{found['shape']} {found['dtype']} {found['batch_size']} x {found['length']}"
    title += f", {found['seeds']} seeds" if found["seeds"] > 1 else ""
    title += f", {found['candidate']}" if found["candidate"] else ""
    lines = [
        f"{title}, for {found['device']}: compiled in {found['compile_secs']:.0f} s", "",
        "| kernels that are | number | GB | TFLOP | ms at the table's rates | ms expected |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for kind, row in [*found["kinds"].items(), ("all", found["total"])]:
        times = (f"{row[k]:.2f}" if k in row else "-" for k in ("table_ms", "expected_ms"))
        numbers = f"{row['kernels']} | {row['gigabytes']:.2f} | {row['tflop']:.3f}"
        lines.append(f"| {kind} | {numbers} | {' | '.join(times)} |")
    lines += ["", f"memory as planned: {found['memory_bytes'] / 2**30:.2f} GiB"]
    if "expected_share_of_peak" in found["total"]:
        lines += ["", f"expected share of peak: {found['total']['expected_share_of_peak']:.3f}"]
    for kernel in found["largest"]:
        size = kernel["turns"] * kernel["num_bytes"] / 1e6
        lines.append(f"{size:9.1f} MB  {kernel['name']:36} {kernel['source'][-90:]}")
    return "\n".join(lines) + "\n"


def add_device(made: cli.Parser) -> None:
    """Adds --device."""
    known = command_line.one_of("device", [*TARGETS, "here"])
    made.add_argument("--device", default="h100", type=known, help=f"{', '.join(TARGETS)} or here")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("kernels", __doc__)
    add_device(made)
    made.add_argument("--shapes", type=command_line.listed(command_line.shape), default=SHAPES,
                      help="heads x width x layers, joined by commas")  # fmt: skip
    made.add_argument("--dtype", type=command_line.one_of("dtype", accelerator.DTYPES),
                      default="bfloat16", help="times are of bfloat16 alone")  # fmt: skip
    command_line.add_batch(made)
    made.add_argument("--seeds", type=command_line.count(), default=1, help="in one program")
    accelerator.add_candidate(made)
    made.add_argument("--top", type=command_line.count(0), default=0,
                      help="kernels to list, of those that move most")  # fmt: skip
    command_line.add_json(made, "a tiny net, for the device that is here")
    return command_line.read(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Compiles, and prints what was made."""
    without_device(given.device)
    cases = []
    for shape in given.shapes:
        case = accelerator.Case(shape, given.dtype, given.batch_size, given.length, 1, given.seeds)
        cases.append(measure_case(case, given))
        print(markdown(cases[-1]), flush=True)
        side_by_side.keep(cases, given.json)


if __name__ == "__main__":
    side_by_side.start(parse, main, when_interrupted="--json has the shapes that were done")
