"""Runs that train in one program: their parameters, their batches, a step of all of them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.finetuning.rows import table_of
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import compiled
from scalelab.optim import schedules
from scalelab.runs import environment, vmapped


class Group:
    """Some runs of a task that differ in seed or learning rate, from their first parameters on.

    Args:
      runs: each one's task, prepared; they may differ in learning rate and folder alone.
      seeds: each one's seed.

    Attributes:
      run: the task, prepared; what all have in common is taken from it.
      runs: each one's task.
      seeds: each one's seed.
      batches: of each.
      state: a FinetuneState of all of them.
      train_step: (state, batch, learning rates) -> (state, metrics), compiled when it is called.
    """

    def __init__(self, runs: Sequence[TaskRun], seeds: Sequence[int]) -> None:
        environment.drop_programs_if_many()  # of the tasks before
        run = runs[0]
        self.run, self.runs, self.seeds = run, runs, seeds
        self.batches = [run.batches(seed) for seed in seeds]
        example = self.batches[0](0)
        start = run.start.bodies or (lambda seed: None)
        learner, rows = run.narrow_learner, run.rows
        drawn = [run.weights_seed(seed) for seed in seeds]
        first = [
            run.learner.first_params(own, start(seed), example, run.head)
            for own, seed in zip(drawn, seeds, strict=True)
        ]
        if rows is not None:
            self._first_tables = [np.asarray(table_of(params)) for params in first]
            first = [rows.narrow(params) for params in first]
        states = [learner.init(own, params) for own, params in zip(drawn, first, strict=True)]
        self.state = vmapped.stack(states)
        self.train_step, self._predict = compiled(learner, len(seeds))
        self._schedule = schedules.get(run.config.optim.schedule)

    def __len__(self) -> int:
        return len(self.seeds)

    def length(self, step: int) -> int:
        """To which the batches of a step are padded."""
        return max(batches.length(step) for batches in self.batches)

    def rates(self, step: int) -> list[np.float32]:
        """The learning rate of a step, of each run."""
        optim, num_steps = self.run.config.optim, self.run.num_steps
        factor = self._schedule(step, optim.warmup_rate * num_steps, num_steps)
        return [np.float32(run.config.optim.learning_rate * factor) for run in self.runs]

    def given(self, step: int, length: int) -> tuple[Any, Any]:
        """Batches and learning rates of a step of all runs, for `train_step`."""
        batch = vmapped.stack_host([self._seen(batches(step, length)) for batches in self.batches])
        return batch, vmapped.stack_host(self.rates(step))

    def advance(self, step: int) -> Any:
        """Starts step `step` of every run; returns its metrics, to be waited for."""
        self.state, pairs = self.train_step(self.state, *self.given(step, self.length(step)))
        return pairs

    def flops(self, length: int) -> float:
        """Of a step of one seed on a batch padded to `length`."""
        return self.run.flops(self.of_seed(self.state.params | self.state.fixed, 0), length)

    def of_seed(self, tree: Any, index: int) -> Any:
        """One seed's part of what is there for all."""
        return vmapped.unstack(tree, index, len(self))

    def whole(self, params: Any, index: int) -> Any:
        """One seed's {"body", "head"}, as it is kept.

        Args:
          params: of all seeds: the state's, or its best.
          index: which seed.
        """
        own, rows = self.of_seed(params | self.state.fixed, index), self.run.rows
        return own if rows is None else rows.widen(own, self._first_tables[index])

    def _seen(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A batch as the net that is trained reads it."""
        return batch if self.run.rows is None else self.run.rows.renumber(batch)

    def _scores(self, params: Any, fixed: Any, batch: dict[str, np.ndarray]) -> jax.Array:
        return self._predict(params, fixed, self._seen(batch))

    def keep(self, better: list[bool]) -> None:
        """Makes the parameters of these seeds their best."""
        chosen = jnp.array(better) if len(self) > 1 else better[0]

        def choose(new: jax.Array, old: jax.Array) -> jax.Array:
            ones = (1 for _ in new.shape[1:])
            return jnp.where(chosen if len(self) == 1 else chosen.reshape(-1, *ones), new, old)

        self.state = self.state.replace(
            best=jax.tree.map(choose, self.state.params, self.state.best)
        )

    def outputs(self, params: Any) -> list[dict[str, np.ndarray]]:
        """Of the head, for each seed: dev split that is there -> [n, C].

        Args:
          params: of all seeds: the state's, or its best.
        """
        found = {
            split: self.run.predict(self._scores, params, self.state.fixed, examples, len(self))
            for split, examples in self.run.dev.items()
            if examples is not None
        }
        return [{split: each[k] for split, each in found.items()} for k in range(len(self))]
