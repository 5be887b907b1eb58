"""One train step of each system on simulated devices; a program, as start-up fixes their number.

  python tests/several_devices.py OUT NUM_DEVICES MICROBATCHES REMAT DxFxT ... -- SYSTEM ...

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


def arrays(metrics, after) -> dict[str, np.ndarray]:
    """Metrics, gradients and parameters after a step, as one flat dictionary."""
    import jax

    from scalelab.optim.adamw import parameter_name

    named = {f"metrics/{name}": np.array(pair) for name, pair in metrics.items()}
    for room, tree in (("gradients", after.opt_state[0]), ("params", after.params)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            named[f"{room}/{parameter_name(path)}"] = np.asarray(leaf)
    return named


def one_step(system: str, mesh, num_microbatches: int, remat: str) -> dict[str, np.ndarray]:
    import jax
    import jax.numpy as jnp

    from scalelab import sharding, state, step

    parts = tiny.parts(system, machine__remat=remat)
    tx = tiny.keep_gradients(tiny.optimizer(parts.config))
    fresh, placed = state.create(parts.net, parts.terms, tx, max_len=tiny.LENGTH, seed=0, mesh=mesh)
    batch = sharding.put_batch(tiny.batch(parts.module, 1), mesh, tiny.BATCH)
    made = step.make_train_step(parts.net, parts.terms, tx, num_microbatches)
    after, metrics = step.compile_train(made, mesh, placed, fresh, batch)(
        fresh, batch, jnp.float32(1e-3)
    )
    assert all(leaf.sharding.mesh.size == mesh.size for leaf in jax.tree.leaves(after.params))
    return arrays(*jax.device_get((metrics, after)))


def main(out: str, num_devices: str, num_microbatches: str, remat: str, *rest: str) -> None:
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={num_devices} {os.environ.get('XLA_FLAGS', '')}"
    )
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    from scalelab import sharding

    assert jax.device_count() == int(num_devices)
    split = rest.index("--")
    for system in rest[split + 1 :]:
        for ways in rest[:split]:
            sizes = tuple(map(int, ways.split("x")))
            devices = np.asarray(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
            mesh = jax.sharding.Mesh(devices, sharding.MESH_AXES)
            made = one_step(system, mesh, int(num_microbatches), remat)
            # Complete or absent: the file appears under its name once it is whole.
            partial = pathlib.Path(out) / f"{system}-{ways}.partial.npz"
            np.savez(partial, **made)
            partial.rename(pathlib.Path(out) / f"{system}-{ways}.npz")


if __name__ == "__main__":
    main(*sys.argv[1:])
