"""Continual multi-task learning: the other objectives of the sum are tasks that come one by one.

Sun et al. 2020, "ERNIE 2.0", 3.2 and table 7. Stage t trains tasks 1 ... t of a sum such as
knowledge_mlm+capitals+sentence_distance+continual: tasks enter in the order of the sum. A step
trains one task. A task with N steps in all has N // (k + 1) steps in each stage after its own and
the rest in its own stage, as in the paper's table (k = 4 tasks: the first task's 50K steps are 20K,
10K, 10K, 10K). Within a stage the steps of the tasks are interleaved in proportion. After the last
stage its steps are repeated.

| schedule | difference |
|---|---|
| continual | nothing |
| sequential | all steps of a task are in its own stage |
| joint | all steps are in the last stage, the only one |

The task of a step is a pure function of the step. Every loss is computed at each step, the losses
of other tasks with weight 0. A model with task ids reads `task_ids`, 0 for the first task. A
validation scores all tasks, each with its own id.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.config.fields import Count, choice
from scalelab.objectives import Baseline, Batch, Objective, Pairs, Pass, Setting, Term

NEEDS: tuple[str, ...] = ()
HEADS: tuple[str, ...] = ()
SEES = None
BASELINE = Baseline("loss", 0.0, 0.0)  # the schedule has no loss


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the objective."""

    task_steps: tuple[Count, ...] = (1000,)  # total steps of each task, or one for all
    schedule: Annotated[str, choice("continual", "sequential", "joint")] = "continual"


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """An objective with weight 0 at the steps of other tasks."""

    objective: Objective
    task: int
    steps: bytes  # the task of each step of the plan
    last: int  # steps of the last stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the objective's losses; zeros at steps of other tasks."""
        if ctx.step is None:
            task = batch | {"task_ids": jnp.int32(self.task)}
            return self.objective.losses(model, task, ctx)
        before = len(self.steps) - self.last
        again = before + (ctx.step - before) % self.last
        step = jnp.where(ctx.step < before, ctx.step, again)
        now = jnp.asarray(np.frombuffer(self.steps, np.uint8))[step].astype(jnp.int32)
        shared, on = ctx.extend(batch, task_ids=now), (now == self.task).astype(jnp.float32)
        found = self.objective.losses(model, shared, ctx)
        return {name: (total * on, weight * on) for name, (total, weight) in found.items()}


@dataclasses.dataclass(frozen=True)
class Continual:
    """The schedule as an objective without a loss; `objectives.Objective` documents the methods."""

    options: Options
    name: ClassVar[str] = "continual"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = None

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns a loss of 0."""
        return {"loss": (jnp.zeros(()), jnp.ones(()))}

    def schedule(self, terms: Sequence[Term]) -> list[Term]:
        """Returns the terms; every task's objective is replaced by a `Scheduled` one."""
        tasks = [term for term in terms if term.name != self.name]
        counts = ledger(len(tasks), self.options)
        plan = order(counts), int(counts[-1].sum())
        made = {t.name: Scheduled(t.objective, i, *plan) for i, t in enumerate(tasks)}
        return [
            dataclasses.replace(term, objective=made.get(term.name, term.objective))
            for term in terms
        ]


def ledger(num_tasks: int, options: Options) -> np.ndarray:
    """Returns the number of steps in each stage (row) of each task (column): int64 [k, k].

    Args:
      num_tasks: k.
      options: the steps of each task.

    Raises:
      ValueError: there is no task, or `task_steps` has neither one number nor one per task.
    """
    given = options.task_steps * (num_tasks if len(options.task_steps) == 1 else 1)
    if not num_tasks or len(given) != num_tasks:
        raise ValueError(
            f"config.objective_options.task_steps has {len(given)} numbers, but the sum has"
            f" {num_tasks} tasks beside continual: give one number, or one for each task"
        )
    found = np.zeros((num_tasks, num_tasks), np.int64)
    for task, steps in enumerate(given):
        later = steps // (num_tasks + 1) if options.schedule == "continual" else 0
        found[task + 1 :, task] = later
        own = task if options.schedule != "joint" else num_tasks - 1
        found[own, task] = steps - found[:, task].sum()
    return found


def order(ledger: np.ndarray) -> bytes:
    """Returns the task of each step, one byte per step, from a `ledger` [k, k].

    In a stage each task's steps are spread evenly; ties go to the earlier task.
    """
    made = []
    for stage in ledger:
        tasks = np.repeat(np.arange(len(stage)), stage)
        places = np.concatenate([(np.arange(n) + 0.5) / n for n in stage if n] or [np.zeros(0)])
        made.append(tasks[np.argsort(places, kind="stable")])
    return np.concatenate(made).astype(np.uint8).tobytes()


def make(setting: Setting, options: Options) -> Continual:
    """Makes the objective."""
    del setting
    return Continual(options)
