"""Times the steps of a study on this machine: each distinct training step, and fine-tuning."""

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.studies import finetunings
from scalelab.studies.expand import PlannedRun
from scalelab.studies.spec import StudySpec

WORD_PIECES, FRAME_TOKENS = 1.35, 3  # tokens of a word, and special ones, of a task's text


@dataclasses.dataclass(frozen=True)
class TaskSize:
    """How much a task's fine-tuning computes.

    Attributes:
      batch_size: of training.
      length: mean tokens of an example.
      steps: of training.
      evaluated: examples that all evaluations score.
    """

    batch_size: int
    length: float
    steps: float
    evaluated: float


def measure_task(splits: Any, spec: StudySpec, name: str) -> TaskSize:
    """Measures a task by its records and the study's recipe."""
    values = finetunings.config_values(spec.finetune, name)
    columns = (column[:500] for column in splits.train.texts)
    words = statistics.mean(len(" ".join(texts).split()) for texts in zip(*columns, strict=True))
    num_train = min(len(splits.train), values["max_train_examples"] or len(splits.train))
    num_dev = sum(len(records) for records in splits.dev.values() if records is not None)
    return TaskSize(
        values["batch_size"],
        min(words * WORD_PIECES + FRAME_TOKENS, values["max_len"]),
        values["epochs"] * num_train / values["batch_size"],
        math.ceil(values["epochs"] / values["eval_every_epochs"]) * num_dev,
    )


class StepClock:
    """Times the steps of a study: each distinct one once, when it is first asked for.

    Args:
      planned: the runs.
      tasks: what the nets are fine-tuned on.
    """

    def __init__(self, planned: Sequence[PlannedRun], tasks: Sequence[TaskSize]) -> None:
        from scalelab import sharding
        from scalelab.runs import environment

        machine = planned[0].config.machine
        self._mesh = sharding.make_mesh(
            machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel
        )
        self._tasks, self._process_bytes = tasks, environment.peak_memory_bytes()
        self._plans: dict[Any, Any] = {}
        self._known: dict[Any, Any] = {}
        nets = {net_key(run): run for run in planned}.values()
        self._total = sum(len(run.config.phases) + bool(tasks) for run in nets)

    def draw(self, run: PlannedRun) -> Any:
        """Returns a run's net and batches in the abstract."""
        from scalelab.resources import blueprint

        key = net_key(run)
        if key not in self._plans:
            self._plans[key] = blueprint.draw(run.config)
        return self._plans[key]

    def pretraining(self, run: PlannedRun) -> list[Any]:
        """Returns the StepTime of each phase of a run."""
        from scalelab.resources import blueprint

        found, plan = [], self.draw(run)
        for phase in plan.phases:
            key = (net_key(run), phase.batch_size, phase.length)
            if key not in self._known:
                self._show(f"{run.system} {run.shape}, {phase.batch_size} x {phase.length}")
                self._known[key] = blueprint.time_steps(
                    plan, phase.length, phase.batch_size, self._mesh
                )
            found.append(self._known[key])
        return found

    def finetuning(self, run: PlannedRun) -> float:
        """Returns seconds per token of a fine-tuning step of a run's net, timed at one batch."""
        key = (net_key(run), "fine-tuning")
        if key not in self._known:
            size = max(task.batch_size for task in self._tasks)
            length = 8 * math.ceil(max(task.length for task in self._tasks) / 8)
            length = min(length, run.config.net.max_len)
            self._show(f"{run.system} {run.shape}, fine-tuning, {size} x {length}")
            self._known[key] = time_finetuning(self.draw(run), size, length) / (size * length)
        return self._known[key]

    def peak_bytes(self, run: PlannedRun) -> float:
        """Returns what a process that trains a run takes: this one's libraries, and the step's."""
        return self._process_bytes + max(step.num_bytes for step in self.pretraining(run))

    def _show(self, text: str) -> None:
        done = len(self._known) + 1
        print(f"timing steps {done}/{self._total}: {text}", file=sys.stderr, flush=True)


def time_finetuning(plan: Any, batch_size: int, length: int) -> float:
    """Returns the seconds of one fine-tuning step: forward, backward and AdamW of a classifier."""
    import jax
    import optax
    from flax import linen as nn

    from scalelab.nets.classifier import Classifier
    from scalelab.nn.heads import OneLayerHead

    net = Classifier(
        plan.net, OneLayerHead(2, 0.1, nn.initializers.zeros), plan.system.ADAPTATION.reads
    )
    batch, tx = plan.random_batch(length, batch_size), optax.adamw(1e-5)
    shapes = jax.eval_shape(lambda: net.init(jax.random.key(0), batch, train=False)["params"])
    params = jax.tree.map(lambda x: np.full(x.shape, 0.01, x.dtype), nn.unbox(shapes))

    def loss(params: Any, key: Any) -> Any:
        scores, _ = net.apply({"params": params}, batch, train=True, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch["lengths"] * 0).mean()

    @jax.jit
    def step(params: Any, opt_state: Any, key: Any) -> Any:
        updates, opt_state = tx.update(jax.grad(loss)(params, key), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    state = (params, tx.init(params))
    for _ in range(2):  # the first compiles
        begun = time.perf_counter()
        state = jax.block_until_ready(step(*state, jax.random.key(0)))
        secs = time.perf_counter() - begun
    return secs


def net_key(run: PlannedRun) -> tuple[Any, ...]:
    """Returns what decides the programs of a run."""
    config = run.config
    phases = tuple((phase.batch_size, phase.max_len) for phase in config.phases)
    return run.system, config.net, config.objective, config.tokenizer, config.data.format, phases
