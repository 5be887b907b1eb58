"""A run in the abstract: net, state and batches as shapes alone, and the program of its step.

Nothing here computes or reads data: the vocabulary is the config's, a batch is what every format
makes. What a step takes, in bytes (`memory.py`) or seconds (`time_steps`), starts here.
"""

import dataclasses
import statistics
import time
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from scalelab import formats, sharding, state, step, systems
from scalelab import objectives as objectives_lib
from scalelab.config.pretraining import Config
from scalelab.nn import stack
from scalelab.optim import adamw
from scalelab.resources import flops
from scalelab.resources.flops import Flops
from scalelab.state import TrainState


@dataclasses.dataclass(frozen=True)
class Phase:
    """What a batch of a phase is.

    Attributes:
      batch_size: B.
      length: n, tokens of every example, padding included.
      predicted: positions of an example that pass through the token head.
      forward: FLOPs of the forward pass.
    """

    batch_size: int
    length: int
    predicted: int
    forward: Flops


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A run's parts, unbound, and the shapes of its state.

    Attributes:
      config: the run's.
      system: the module of its family.
      net: the net.
      objectives: what is minimised.
      tx: the optimizer.
      boxed: the state in the abstract, its parameters boxed with the names of their axes.
      phases: the short one, and the long one where there is one.
    """

    config: Config
    system: systems.System
    net: nn.Module
    objectives: tuple[Any, ...]
    tx: Any
    boxed: TrainState
    phases: tuple[Phase, ...]

    @property
    def state(self) -> TrainState:
        """The state in the abstract."""
        return jax.eval_shape(nn.unbox, self.boxed)

    def batch(self, length: int, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """A batch [B, ...] in the abstract, as training gives it to the step."""
        pairs = any(objective.needs_pairs for objective in self.objectives)
        return jax.eval_shape(lambda: objectives_lib.example_batch(length, pairs, batch_size))

    def random_batch(self, length: int, batch_size: int) -> dict[str, np.ndarray]:
        """A batch of full length, its tokens random but for the special ones."""
        first, last = len(self.system.SPECIAL_TOKENS), self.config.tokenizer.vocab_size
        full = np.full(batch_size, length, np.int32)
        known = {
            "tokens": np.random.default_rng(0).integers(
                first, last, (batch_size, length), np.int32
            ),
            "lengths": full,
            "boundaries": full // 2,
            "examples": np.arange(batch_size, dtype=np.int32),
        }
        shapes = self.batch(length, batch_size)
        return {k: known.get(k, np.zeros(v.shape, v.dtype)) for k, v in shapes.items()}

    def compile(self, length: int, batch_size: int, mesh: Mesh) -> Any:
        """Compiles the training step for a batch: run(state, batch, learning_rate)."""
        placed = sharding.shardings(self.boxed, mesh)
        made = step.make_train_step(
            self.net, self.objectives, self.tx, self.config.machine.num_microbatches
        )
        return step.compile_train(made, mesh, placed, self.state, self.batch(length, batch_size))

    def start(self, mesh: Mesh) -> TrainState:
        """A fresh state on the devices."""
        made, _ = state.create(
            self.net, self.objectives, self.tx,
            max_len=self.config.short.max_len, seed=self.config.seed, mesh=mesh,
        )  # fmt: skip
        return made


def draw(config: Config) -> Blueprint:
    """Draws up a run; nothing is computed and no data is read.

    Args:
      config: the run's.

    Raises:
      ValueError: system, objective and format do not go together, or heads do not divide width.
    """
    system = systems.load(config.system)
    objectives_lib.check(
        config.objectives,
        served=system.OBJECTIVES,
        causal=system.CAUSAL,
        has_pairs=formats.load(config.data.format).HAS_PAIRS,
    )
    vocab_size, o = config.tokenizer.vocab_size, config.optim
    net = systems.make_net(system, config.net, vocab_size=vocab_size, remat=config.machine.remat)
    objectives = objectives_lib.make(
        config.objectives,
        vocab_size=vocab_size,
        special_ids=systems.special_ids(system),
        mask_rate=config.mask_rate,
    )
    tx = adamw.adamw(
        beta1=o.beta1, beta2=o.beta2, eps=o.eps, weight_decay=o.weight_decay, clip_norm=o.clip_norm
    )
    boxed = jax.eval_shape(
        lambda key: state.fresh(key, net, objectives, tx, max_len=config.short.max_len),
        jax.random.key(0),
    )
    params = jax.eval_shape(nn.unbox, boxed.params)
    phases = tuple(
        Phase(
            p.batch_size,
            p.max_len,
            sum(objective.num_predicted(p.max_len) for objective in objectives),
            flops.of_step(
                params,
                objectives,
                config.net,
                causal=system.CAUSAL,
                batch_size=p.batch_size,
                length=p.max_len,
            ),
        )
        for p in config.phases
    )
    return Blueprint(config, system, net, objectives, tx, boxed, phases)


def in_a_loop(config: Config) -> bool:
    """Whether training runs the layers of a run's net in a loop."""
    return stack.in_a_loop(config.net.num_layers, config.machine.remat)


def num_params(plan: Blueprint) -> int:
    """Parameters of the net."""
    return flops.count_parameters(plan.state.params)


@dataclasses.dataclass(frozen=True)
class StepTime:
    """A training step, measured.

    Attributes:
      secs: median seconds of a step.
      compile_secs: of compiling it.
      num_bytes: state, batch and temporary buffers, as the compiler lays them out.
    """

    secs: float
    compile_secs: float
    num_bytes: int


UNTIMED, TIMED = 2, 3  # steps: in its first few, a process meets new pages of memory


def time_steps(plan: Blueprint, length: int, batch_size: int, mesh: Mesh) -> StepTime:
    """Compiles the training step of a batch and times three steps on random tokens."""
    begun = time.perf_counter()
    run = plan.compile(length, batch_size, mesh)
    compile_secs = time.perf_counter() - begun
    now = plan.start(mesh)
    batch = sharding.put_batch(plan.random_batch(length, batch_size), mesh, batch_size)
    each = []
    for _ in range(UNTIMED + TIMED):
        begun = time.perf_counter()
        now, metrics = run(now, batch, np.float32(1e-4))
        jax.block_until_ready((now, metrics))
        each.append(time.perf_counter() - begun)
    planned = run.memory_analysis()
    num_bytes = planned.argument_size_in_bytes + planned.temp_size_in_bytes
    return StepTime(statistics.median(each[UNTIMED:]), compile_secs, num_bytes)
