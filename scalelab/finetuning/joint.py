"""Fine-tuning as `train.train` drives it: one seed of one task, or of several on one body.

With several tasks a block has batches of one task. An epoch has the batches of all tasks in random
order (Liu et al. 2019, MT-DNN, algorithm 1). The body and its moments pass from the task that was
trained to all others; each task keeps its head, dropout, rates and number of steps, and leaves the
run folder that it leaves alone. With config.mixing the task of each batch is drawn (Raffel et al.
2020, T5, 3.5.2, where a batch mixes tasks).
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree

from scalelab.config import exits
from scalelab.config.finetuning import FinetuneConfig
from scalelab.data.store import Row
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.training import Finetuning, Saved
from scalelab.records import metrics
from scalelab.state import TrainState
from scalelab.step import BlockParts, Blocks
from scalelab.training.checkpoint import Checkpoints


@flax.struct.dataclass
class JointSaved:
    """The arrays of a checkpoint."""

    step: jax.Array  # int32 [], steps of all tasks together
    tasks: dict[str, Saved]


class Joint:
    """One seed of one or several tasks.

    Args:
      runs: the tasks, prepared for one model.
      seed: of the order of tasks and examples, of heads and dropout.
      checkpoints: where all tasks are saved.
    """

    blocks: Blocks

    def __init__(self, runs: Sequence[TaskRun], seed: int, checkpoints: Checkpoints) -> None:
        self.members = [Finetuning(run, seed) for run in runs]
        self._order, self.step, self.steps_per_sec = draw_order(runs, seed), 0, 0.0
        counts = np.bincount(self._order, minlength=len(runs)).tolist()
        for member, count in zip(self.members, counts, strict=True):
            member.num_steps = count
        self.config, self.checkpoints = runs[0].config, checkpoints
        self.name = f"{'+'.join(run.task.name for run in runs)} seed {seed}"
        self.interrupt, self.say = exits.Interrupt(), functools.partial(print, flush=True)
        self.result = None  # each task writes its own
        self.most_steps, self.blocks_ahead = self.config.machine.steps_per_dispatch, 1
        self._now = self.members[self._order[0]]  # the task that takes the next steps
        self._in_flight: collections.deque[Finetuning] = collections.deque()
        self.state = self._now.state

    @property
    def state(self) -> TrainState:
        """The state of the task in training; setting it gives its body to all others."""
        return self._now.state

    @state.setter
    def state(self, state: TrainState) -> None:
        for member in self.members:
            member.state = state if member is self._now else take_body(member.state, state)

    @property
    def over(self) -> bool:
        """Whether all steps were started, or a task has failed or stopped early."""
        return self.step == len(self._order) or any(m.progress.over for m in self.members)

    @property
    def _failed(self) -> str | None:
        """The reason why a task has failed; None: none has."""
        return next(filter(None, (member.progress.failed for member in self.members)), None)

    @property
    def done(self) -> float:
        """The share of the steps that were started."""
        return self.step / len(self._order)

    def is_due(self, num_steps: int) -> bool:
        """Whether an event is due that happens every `num_steps` and at the end."""
        return self.step % num_steps == 0 or self.step == len(self._order)

    def is_anything_due(self) -> bool:
        """Whether a line, an evaluation or a checkpoint is due."""
        return self._now.is_anything_due() or self.is_due(
            self.config.machine.checkpoint_every_steps
        )

    def _take_turn(self) -> int:
        """Makes the task of the next step the one in training; returns how many steps it has."""
        place = self._order[self.step]
        self._now = self.members[place]
        others = np.flatnonzero(self._order[self.step :] != place)
        return int(others[0]) if len(others) else len(self._order) - self.step

    def next_program(self) -> tuple[Blocks, ArrayPytree] | None:
        """Returns the program of the next step; None: it is not compiled."""
        self._take_turn()
        return self._now.next_program()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[BlockParts]:
        """Yields what the program of the next step is compiled from."""
        with self._now.compiling() as parts:
            yield parts
            self._now.blocks = self.blocks

    def plan_block(self, most: int) -> tuple[list[Row], list[np.float32]]:
        """Starts the next steps of one task."""
        saves = self.config.machine.checkpoint_every_steps
        most = min(most, self._take_turn(), saves - self.step % saves)
        rows, rates = self._now.plan_block(most)
        self.step += len(rows)
        self._in_flight.append(self._now)
        return rows, rates

    def settle(self, steps: Sequence[metrics.Pairs], secs: float) -> None:
        """Adds the metrics and the seconds of a block that was waited for."""
        member = self._in_flight.popleft()
        if not self._failed:  # no step is taken after the one that failed
            member.settle(steps, secs)
            self.steps_per_sec = len(steps) / secs

    def validate_and_save(self, say: Callable[[str], object] = print) -> None:
        """Writes a line, evaluates and saves, if these are due; no step may be in flight."""
        del say
        if self._now.is_anything_due():
            self._now.log_and_evaluate()
        if self.step % self.config.machine.checkpoint_every_steps == 0:
            self.save()

    def describe_progress(self, time_left: str) -> str:
        """Returns the progress line."""
        loss = self._now.progress.loss(self.config.machine.log_every_steps)
        task = f"{self._now.run.task.name} " * (len(self.members) > 1)
        shown = "" if loss is None else f" | {task}loss {loss:.4f}"
        return f"{self.name} | step {self.step}/{len(self._order)}{shown} | ETA {time_left}"

    # --- Checkpoints and the end ----------------

    def saved(self) -> JointSaved:
        """Returns the arrays of a checkpoint."""
        tasks = {member.run.task.name: member.saved() for member in self.members}
        return JointSaved(jnp.int32(self.step), tasks)

    def save(self) -> None:
        """Saves a checkpoint from which the same command continues; no step may be in flight."""
        progress = [dataclasses.asdict(member.progress) for member in self.members]
        self.checkpoints.save(self.saved(), {"progress": progress})

    def restore(self, saved: JointSaved, progress: Sequence[dict[str, Any]]) -> None:
        """Continues from the arrays and the progress of a checkpoint."""
        self.step = int(saved.step)
        for member, values in zip(self.members, progress, strict=True):
            member.restore(saved.tasks[member.run.task.name], values)

    def open(self) -> None:
        """Opens the run folder of each task."""
        for member in self.members:
            # Of an end that was interrupted.
            (member.run.folder(member.seed) / "result.json").unlink(missing_ok=True)
            member.open()

    def close(self) -> None:
        """Closes the files of each task."""
        for member in self.members:
            member.close()

    def finish(self) -> None:
        """Scores all tasks by the last body, and writes their results."""
        for member in self.members:
            member.progress.failed = self._failed
            if member.step == member.num_steps and not self._failed:
                member.evaluate()
        for member in self.members:
            member.finish()


def draw_order(runs: Sequence[TaskRun], seed: int) -> np.ndarray:
    """Returns the place of each step's task in `runs`: int [steps].

    Every epoch mixes its batches anew.

    Raises:
      ValueError: a mixture never draws one of the tasks, or their batch sizes differ.
    """
    config = runs[0].config
    rng = np.random.default_rng(seed if config.order_seed is None else config.order_seed)
    order, left = [], np.array([run.num_steps for run in runs])
    if config.mixing:
        return _draw_mixture(runs, int(left.sum()), rng)
    while left.any():
        now = np.minimum(left, [run.steps_per_epoch for run in runs])
        order.append(rng.permutation(np.repeat(np.arange(len(runs)), now)))
        left = left - now
    return np.concatenate(order)


def mixing_rates(sizes: Sequence[int], config: FinetuneConfig) -> np.ndarray:
    """Returns the rate of each task in a mixture: float64 [tasks] that sum to 1.

    With e examples of a task, limit K and temperature T its rate is proportional to
    min(e, K)^(1/T): Raffel et al. 2020, 3.5.2.
    """
    if config.mixing == "equal":
        return np.full(len(sizes), 1 / len(sizes))
    counts = np.minimum(np.array(sizes, np.float64), config.mixing_limit or np.inf)
    weights = (counts / counts.max()) ** (1 / (config.mixing_temperature or 1.0))
    return weights / weights.sum()


def _draw_mixture(runs: Sequence[TaskRun], num_steps: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the place in `runs` of the task of each step: int64 [num_steps]."""
    if len({run.config.batch_size for run in runs}) > 1:
        raise ValueError("config.mixing: config.batch_size must be equal for all tasks")
    rates = mixing_rates([len(run.train) for run in runs], runs[0].config)
    order = rng.choice(len(runs), size=num_steps, p=rates)
    if absent := [run.task.title for i, run in enumerate(runs) if not (order == i).any()]:
        raise ValueError(
            f"config.mixing: {', '.join(absent)} has no batch among the {num_steps} of the mixture:"
            " raise config.epochs, or lower config.mixing_limit"
        )
    return order


def take_body(state: TrainState, other: TrainState) -> TrainState:
    """Returns `state` with the body of `other`, and its moments."""
    in_body = lambda path: any(getattr(key, "key", None) == "body" for key in path)  # noqa: E731
    theirs = {path: x for path, x in jax.tree_util.tree_leaves_with_path(other) if in_body(path)}
    return jax.tree_util.tree_map_with_path(lambda path, x: theirs.get(path, x), state)
