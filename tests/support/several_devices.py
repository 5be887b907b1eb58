"""One train step of each system on simulated devices; a program, as start-up fixes their number.

  python tests/support/several_devices.py OUT NUM_DEVICES MICROBATCHES REMAT DxFxT ... -- SYSTEM ...

writes OUT/<system>-<DxFxT>.npz: loss, gradients and updated parameters by name.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import tiny


def start(out: pathlib.Path, *arguments: object) -> subprocess.Popen:
    """Starts the program."""
    return subprocess.Popen(
        [sys.executable, __file__, str(out), *map(str, arguments)],
        cwd=tiny.ROOT,
        env=os.environ | {"PYTHONPATH": str(tiny.ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    """Waits for the program, which must have gone well."""
    _, errors = process.communicate(timeout=550)
    assert process.returncode == 0, errors[-3000:]


def main(out: str, num_devices: str, num_microbatches: str, remat: str, *rest: str) -> None:
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={num_devices} {os.environ.get('XLA_FLAGS', '')}"
    )
    os.environ["JAX_PLATFORMS"] = "cpu"
    import guests
    import jax
    import pytest
    import subjects

    from scalelab import sharding, systems

    assert jax.device_count() == int(num_devices)
    guests.add(pytest.MonkeyPatch(), "halves")
    split = rest.index("--")
    for system in rest[split + 1 :]:
        for ways in rest[:split]:
            sizes = tuple(map(int, ways.split("x")))
            devices = np.asarray(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
            mesh = jax.sharding.Mesh(devices, sharding.MESH_AXES)
            # A model with a memory takes its batch whole.
            parts = 1 if systems.load(system).ORDER == "contiguous" else int(num_microbatches)
            machine = {"num_microbatches": parts, "remat": remat}
            given = {f"machine__{name}": value for name, value in machine.items()}
            made = subjects.Subject(system, mesh, **given).arrays(1)
            # Complete or absent: the file appears under its name once it is whole.
            partial = pathlib.Path(out) / f"{system}-{ways}.partial.npz"
            np.savez(partial, **made)
            partial.rename(pathlib.Path(out) / f"{system}-{ways}.npz")


if __name__ == "__main__":
    main(*sys.argv[1:])
