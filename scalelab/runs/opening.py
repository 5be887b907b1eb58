"""Opens a run for training: its devices, its data, and its state, restored or made."""

import pathlib
from collections.abc import Callable

import jax
from jax.sharding import Mesh

from scalelab import data as data_lib
from scalelab import sharding, state, systems
from scalelab.config.pretraining import Config
from scalelab.resources import flops, malloc
from scalelab.runs import environment
from scalelab.runs.pretrained import Start
from scalelab.runs.run import Recorder
from scalelab.state import Model, TrainState


def set_up(config: Config, num_runs: int = 1) -> Mesh:
    """Configures JAX, arranges the devices, and checks that the config fits them.

    Raises:
      ValueError: the config does not suit the devices, or needs more memory than they have.
    """
    machine = config.machine
    environment.configure_jax(machine.compile_cache_dir, config.net.dtype)
    mesh = sharding.make_mesh(machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel)
    batch_sizes = [phase.batch_size for phase in config.phases]
    sharding.check_batches(mesh, batch_sizes, machine.num_microbatches)
    model, max_len = state.make_model(config), config.short.max_len
    state.check_memory(model, max_len, mesh, malloc.available(), num_runs)
    return mesh


def open_run(
    config: Config,
    start: Start | None,
    workdir: pathlib.Path,
    mesh: Mesh,
    say: Callable[[str], object] = print,
) -> tuple[Recorder, Model, TrainState]:
    """Loads a run's data, and restores or makes its state.

    Args:
      config: of the run.
      start: the run whose parameters it begins with; None: from the seed.
      workdir: its folder, locked.
      mesh: the devices.
      say: prints the run's sizes, costs and plan.

    Returns:
      The recorder, with the state in `recorder.run`; the parts of the program; the state's
      shardings.
    """
    system, max_len = systems.load(config.system), config.short.max_len
    tokenizer_dir, is_chief = start and start.tokenizer_dir, jax.process_index() == 0
    data = data_lib.load_data(config, system, tokenizer_dir=tokenizer_dir, progress=is_chief)
    model = state.make_model(config, data.tokenizer.special_ids)
    fresh, placed = state.create(
        model.net, model.objectives, model.tx, max_len=max_len, seed=config.seed, mesh=mesh
    )
    if start is not None:
        fresh = fresh.replace(params=start.put(fresh.params, placed.params))
    costs = flops.of_phases(fresh.params, model.objectives, config, causal=system.CAUSAL)
    recorder = Recorder(workdir, config, data, costs)
    run = recorder.restore(fresh, start)
    say(f"{recorder.name} in {workdir}\n{recorder.describe()}")
    if start is not None:
        say(start.describe())
    if run.clocks.steps:
        say(f"continuing from step {run.clocks.steps}")
    else:
        recorder.save()
    return recorder, model, placed
