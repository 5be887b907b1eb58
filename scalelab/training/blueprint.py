"""A run in the abstract: model, state and batches as shapes alone, and the program of its step.

Nothing here computes or reads data: the vocabulary is the config's, a batch is what every format
makes. What a step takes, in bytes (`fit.py`) or seconds (`time_steps`), starts here.
"""

import dataclasses
import functools
import statistics
import time

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from scalelab import formats, objectives, sharding, state, step
from scalelab.config import files, pretraining
from scalelab.config.pretraining import Config, LongPhase, ShortPhase
from scalelab.resources import flops, host
from scalelab.resources.flops import Flops
from scalelab.state import Model, TrainState
from scalelab.training.pretrained import load_frozen


@dataclasses.dataclass(frozen=True)
class Blueprint(Model):
    """A run's parts, unbound, and the shapes of its state."""

    config: Config
    boxed: TrainState  # abstract; its parameters are boxed with the names of their axes

    @functools.cached_property
    def state(self) -> TrainState:
        """The state in the abstract."""
        return jax.eval_shape(nn.unbox, self.boxed)

    @functools.cached_property
    def costs(self) -> list[Flops]:
        """The FLOPs of a forward pass over a batch of each phase."""
        now = self.state
        return flops.count_phases(
            now.params, self.net, self.terms, self.config, now.carried, now.frozen
        )

    @functools.cached_property
    def mesh(self) -> Mesh:
        """All devices, as the config arranges them."""
        machine = self.config.machine
        ways = machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel
        return sharding.make_mesh(*ways)

    def batch(self, length: int, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """A batch [B, ...] of examples of T tokens in the abstract, as the step takes it."""
        arrays = formats.arrays_of(self.config.data.format, self.config.format_options)
        return jax.eval_shape(lambda: objectives.example_batch(length, arrays, batch_size))

    def random_batch(self, length: int, batch_size: int) -> dict[str, np.ndarray]:
        """A batch of full length, its tokens random but for the special ones."""
        first, last = len(self.system.SPECIAL_TOKENS), self.config.tokenizer.vocab_size
        rng, shapes = np.random.default_rng(0), self.batch(length, batch_size)
        made = {name: np.zeros(array.shape, array.dtype) for name, array in shapes.items()}
        made["examples"] = np.arange(batch_size, dtype=np.int32)
        for array in formats.load(self.config.data.format).ARRAYS:
            if array.kind == "ragged":
                shape, dtype = shapes[array.name].shape, shapes[array.name].dtype
                made[array.name] = rng.integers(first, last, shape, np.int32).astype(dtype)
                made[formats.lengths_name(array.name)][:] = shape[1]
        return made

    def compile(self, length: int, batch_size: int, mesh: Mesh) -> jax.stages.Compiled:
        """Compiles the training step for a batch: run(state, batch, learning_rate)."""
        placed = sharding.shardings(self.boxed, mesh)
        made = step.make_train_step(
            self.net, self.terms, self.tx, self.config.machine.num_microbatches
        )
        return step.compile_train(made, mesh, placed, self.state, self.batch(length, batch_size))

    def start(self, mesh: Mesh) -> TrainState:
        """A fresh state on the devices."""
        config = self.config
        return state.create(self, **vars(config.short), seed=config.seed, mesh=mesh)[0]


def draw(config: Config) -> Blueprint:
    """Draws up a run; nothing is computed and no data is read.

    Raises:
      ValueError: system, objective, format, phases and models of other runs do not go together.
    """
    model = state.make_model(config, frozen=load_frozen(config.machine.frozen))
    state.check_phases(model, config)
    fresh = functools.partial(state.fresh, model=model, **vars(config.short))
    boxed = jax.eval_shape(fresh, jax.random.key(0))
    return Blueprint(**vars(model), config=config, boxed=boxed)


def draw_alone(
    system: str, shape: str, *, batch_size: int, length: int, vocab_size: int,
    dtype: str = "float32",
) -> Blueprint:  # fmt: skip
    """Draws up a run of a system's own config at some sizes, with one phase and no padding.

    Args:
      system: name of the system.
      shape: heads x width x layers, such as "2x128x2".
      batch_size: B.
      length: tokens of an example.
      vocab_size: V.
      dtype: of the computation.
    """
    pretrain = files.load(files.FOLDER / "pretrain.py")
    config = pretrain.get_config(f"system={system},shape={shape},steps=1000")
    config.model.dtype, config.tokenizer.vocab_size = dtype, vocab_size
    config.model.max_len = max(config.model.max_len, length)
    config.short.max_len, config.short.batch_size = length, batch_size
    config.long.example_rate = 0.0
    return draw(pretraining.resolve(config.to_dict()))


@dataclasses.dataclass(frozen=True)
class StepTime:
    """A training step, measured."""

    secs: float  # median of a step
    compile_secs: float
    num_bytes: int  # state, batch and temporary buffers, as the compiler lays them out


UNTIMED, TIMED = 2, 3  # steps: in its first few, a process meets new pages of memory


def time_steps(plan: Blueprint, phase: ShortPhase | LongPhase) -> StepTime:
    """Compiles the training step of a phase and times three steps on random tokens.

    Raises:
      ValueError: the model needs more memory than there is.
    """
    mesh, size = plan.mesh, (phase.max_len, phase.batch_size)
    state.check_memory(plan, phase.max_len, mesh, host.available())
    begun = time.perf_counter()
    run = plan.compile(*size, mesh)
    compile_secs = time.perf_counter() - begun
    now = plan.start(mesh)
    batch = jax.device_put(plan.random_batch(*size), sharding.batch_sharding(mesh))
    each = []
    for _ in range(UNTIMED + TIMED):
        begun = time.perf_counter()
        now, metrics = run(now, batch, np.float32(1e-4))
        jax.block_until_ready((now, metrics))
        each.append(time.perf_counter() - begun)
    planned = run.memory_analysis()
    assert planned is not None
    num_bytes = planned.argument_size_in_bytes + planned.temp_size_in_bytes
    return StepTime(statistics.median(each[UNTIMED:]), compile_secs, num_bytes)
