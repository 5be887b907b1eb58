"""Accelerators by name, and how much memory they have.

Makers' numbers for one device as JAX counts them (a core of TPU v2 and v3, a chip of later ones).
Memory of GPUs is about what the driver reports.
"""

import dataclasses
import os

from scalelab.helpers.names import check_names, prefix_errors

GIB = 2**30
# Of a GPU's memory JAX takes this share at its start, and a program has no more;
# XLA_PYTHON_CLIENT_MEM_FRACTION sets another.
GPU_SHARE = 0.75


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator."""

    name: str
    kind: str  # what `jax.Device.device_kind` begins with, without "NVIDIA " or "Tesla "
    gibibytes: float  # memory

    @property
    def platform(self) -> str:
        """As JAX calls it: "gpu" or "tpu"."""
        return "tpu" if self.name.startswith("tpu") else "gpu"

    @property
    def num_bytes(self) -> int:
        """What a program may use."""
        variable = "XLA_PYTHON_CLIENT_MEM_FRACTION"
        with prefix_errors(f"{variable}: expected a share such as 0.75"):
            share = float(os.environ.get(variable) or GPU_SHARE) if self.platform == "gpu" else 1.0
        return int(self.gibibytes * GIB * share)


DEVICES = (
    Device("t4", "T4", 15),
    Device("v100-16", "V100-SXM2-16GB", 15.8),
    Device("v100-32", "V100-SXM2-32GB", 31.7),
    Device("a10g", "A10G", 22.5),
    Device("l4", "L4", 22.5),
    Device("a100-40", "A100-SXM4-40GB", 40),
    Device("a100-80", "A100-SXM4-80GB", 80),
    Device("h100", "H100 80GB HBM3", 79.6),
    Device("h200", "H200", 140.4),
    Device("rtx3090", "GeForce RTX 3090", 24),
    Device("rtx4090", "GeForce RTX 4090", 24),
    Device("tpu-v2", "TPU v2", 8),
    Device("tpu-v3", "TPU v3", 16),
    Device("tpu-v4", "TPU v4", 32),
    Device("tpu-v5e", "TPU v5 lite", 16),
    Device("tpu-v5p", "TPU v5", 95),
    Device("tpu-v6e", "TPU v6 lite", 32),
)


def named(name: str) -> Device:
    """The device of that name.

    Raises:
      ValueError: there is none; the message names the nearest.
    """
    known = {device.name: device for device in DEVICES}
    check_names([name.lower()], known, "unknown device")
    return known[name.lower()]


def find_kind(kind: str) -> Device | None:
    """The device that JAX calls `kind`; None: it is not in the table."""
    kind = kind.removeprefix("NVIDIA ").removeprefix("Tesla ")
    # "TPU v5 lite" also begins with "TPU v5": the longest wins.
    found = [device for device in DEVICES if kind.startswith(device.kind)]
    return max(found, key=lambda device: len(device.kind), default=None)
