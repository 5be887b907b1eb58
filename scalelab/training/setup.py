"""What is made ready before training: devices, data, net, objectives, optimizer, the two steps."""

import importlib.util
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from scalelab import build, sharding, state, step, systems
from scalelab import data as data_lib
from scalelab.config.pretraining import Config
from scalelab.optim import schedules
from scalelab.resources import flops, malloc
from scalelab.runs import environment, vmapped
from scalelab.runs.warm_start import Start


def devices(config: Config) -> Mesh:
    """The devices, as the config wants them arranged.

    Raises:
      ValueError: they cannot be arranged so, or the loader is not installed.
    """
    machine = config.machine
    if machine.loader == "tf" and importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            "config.machine.loader = 'tf' needs TensorFlow, which is not installed;"
            " --config.machine.loader=numpy makes the same batches without it"
        )
    if machine.distributed:
        sharding.join_processes()
    environment.configure_jax(machine.compile_cache_dir, config.net.dtype)
    return sharding.make_mesh(machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel)


class Setup:
    """What runs that train together share.

    Args:
      configs: of the runs; they differ in what one program can vary (see `training.members`).
      mesh: from `devices`.
      start: whose parameters they begin, or began, with; None: random ones.

    Attributes:
      config: of the first of them.
      mesh: the devices.
      start: as given.
      chief: whether this process writes and speaks.
      system: the module of the family.
      net: the unbound net.
      objectives: their mean losses are summed.
      schedule: (now, warm-up, total) -> share of the learning rate.
      data: of each run: examples, and with them the steps of an epoch, depend on the seed.
      token_losses: names of the losses of tokens.
      peak: FLOP/s that the largest matrix product seen has reached on a device.

    Raises:
      ValueError: config or data do not allow it.
    """

    def __init__(self, configs: Sequence[Config], mesh: Mesh, start: Start | None = None) -> None:
        self.config, self.mesh, self.start = configs[0], mesh, start
        config, machine = self.config, self.config.machine
        self.chief = jax.process_index() == 0
        self.system = systems.load(config.system)
        build.check_pairing(config, self.system)
        batch_sizes = tuple(phase.batch_size for phase in config.phases)
        sharding.check_batches(mesh, batch_sizes, machine.num_microbatches)
        self.schedule = schedules.get(config.optim.schedule)
        self.net = build.make_net(config, self.system)
        given = None if start is None else start.tokenizer_dir
        self.data = [
            data_lib.load_data(one, self.system, tokenizer_dir=given, progress=self.chief)
            for one in configs
        ]
        special_ids = self.data[0].tokenizer.special_ids
        self.objectives = build.make_objectives(config, special_ids)
        self.token_losses = [
            f"{o.name}_loss" for o in self.objectives if o.num_predicted(config.short.max_len)
        ]
        self.tx = build.make_optimizer(config)
        self.peak = 0.0
        self._compiled: dict[tuple[int, int], tuple[Any, Any]] = {}

    def measure_peak(self) -> None:
        """Measures it again: whoever shared the machine before may be gone."""
        self.peak = max(self.peak, flops.measure_peak(self.config.net.dtype))

    def fresh(self, seed: int) -> tuple[state.TrainState, state.TrainState]:
        """The state of a run before its first step, and its shardings."""
        made, placed = state.create(
            self.net,
            self.objectives,
            self.tx,
            max_len=self.config.short.max_len,
            seed=seed,
            mesh=self.mesh,
        )
        if self.start is not None:
            made = made.replace(params=self.start.put(made.params, placed.params))
        return made, placed

    def size(self, phase: int, count: int) -> int:
        """For how many runs the program is that trains `count`: in part it may run for nobody.

        Runs that end a few steps before others, by a budget in tokens, or that are lost, do not
        have the smaller program compiled while the larger one is less than twice as large.
        """
        compiled = [size for place, size in self._compiled if place == phase]
        return min((size for size in compiled if count <= size < 2 * count), default=count)

    def steps(
        self, phase: int, placed: Any, now: state.TrainState, batch: Any, keys: jax.Array
    ) -> tuple[Any, Any]:
        """The compiled train and eval step of a phase, for as many runs as there are keys.

        Args:
          phase: its index.
          placed: shardings of the state of one run.
          now: the state of the runs, stacked.
          batch: of each run, stacked, on the devices.
          keys: of the evaluations: [] for one run, else [K].
        """
        count = keys.size
        if (phase, count) not in self._compiled:
            train = step.make_train_step(
                self.net, self.objectives, self.tx, self.config.machine.num_microbatches
            )
            evaluate, shown = step.make_eval_step(self.net, self.objectives), batch
            if count > 1:
                train = vmapped.train_step(train, state.TrainState, count)
                evaluate = jax.vmap(evaluate, in_axes=(0, None, 0))
                shown = {name: v[0] for name, v in batch.items()}
                shown = jax.device_put(shown, sharding.batch_sharding(self.mesh))
            placed = vmapped.placed(placed, count)
            more = () if count == 1 else (count,)
            compiled = step.compile_train(train, self.mesh, placed, now, batch, *more)
            if self.mesh.devices.flat[0].platform == "cpu":
                scratch = compiled.memory_analysis().temp_size_in_bytes
                malloc.release_if_scarce(soon=malloc.GAPS * scratch)
            self._compiled[phase, count] = (
                compiled,
                step.compile_eval(evaluate, self.mesh, placed.params, now.params, shown, keys),
            )
        return self._compiled[phase, count]
