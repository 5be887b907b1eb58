"""The fine-tuning of one seed, as `train.train` drives it."""

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

from scalelab import objectives
from scalelab.config import exits
from scalelab.data.store import Layout, Row
from scalelab.finetuning import results
from scalelab.finetuning.progress import Progress
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import TASK, Compiled, compiled
from scalelab.objectives import Pass
from scalelab.optim import adamw
from scalelab.records import metrics, run_folder
from scalelab.resources import flops, host
from scalelab.state import TrainState
from scalelab.step import BlockParts, Blocks, make_train_step
from scalelab.training.checkpoint import Checkpoints

MOST_STEPS = 8  # most steps of a block, whose batches have one length


@flax.struct.dataclass
class Saved:
    """The arrays of a checkpoint."""

    state: TrainState
    best: ArrayPytree  # parameters with the best dev score, for early stopping; {} without it

    @property
    def step(self) -> jax.Array:
        """Steps taken so far."""
        return self.state.step


class Finetuning:
    """One seed of a task.

    Args:
      run: the task, prepared for a model.
      seed: of order, head and dropout.
      checkpoints: where it saves; None: other tasks train the same body, so that whoever trains
        them saves all, and the scores after the last step are taken once all have ended.

    Attributes:
      num_steps: steps of the whole training.
      progress: how far the seed has come.
    """

    blocks: Blocks
    _writer: metrics.Writer  # from `open` on

    def __init__(self, run: TaskRun, seed: int, checkpoints: Checkpoints | None = None) -> None:
        self.run, self.seed, self.config, self.checkpoints = run, seed, run.config, checkpoints
        self.name = f"{run.task.name} seed {seed}"
        self.progress, self.steps_per_sec = Progress(), 0.0
        self.num_steps = run.num_steps
        self.interrupt, self.say = exits.Interrupt(), functools.partial(print, flush=True)
        self.result = None  # each seed writes its own
        self.most_steps, self.blocks_ahead = self.config.machine.steps_per_dispatch, 1
        self.step, self._rate = 0, np.float32(0)  # steps that were started; rate of the last
        self._batches = run.batches(seed)
        self._schedule = adamw.SCHEDULES[self.config.optim.schedule]
        self._program = compiled(run.trained, run.mesh)
        params = run.first_params(seed)
        self._table = None if run.rows is None else np.asarray(run.rows.table(params))
        self.state = jax.device_put(run.first_state(seed, params), self._program.shardings)
        self._best = jax.tree.map(jnp.copy, self.state.params) if self.config.patience else {}
        self._outputs: results.Outputs = {}  # outputs of the last evaluation
        self._evaluated = -1  # its step

    def open(self) -> None:
        """Writes config.json and opens metrics.jsonl; `close` closes it."""
        run, folder = self.run, self.run.folder(self.seed)
        run.claim(self.seed)
        run_folder.write_description(folder, run.describe(self.seed))
        tracker, clocks = self.config.machine.tracker, self.progress.clocks
        self._writer = metrics.Writer(folder, clocks.steps, self.progress.num_lines, tracker)

    def close(self) -> None:
        """Closes metrics.jsonl."""
        self._writer.close()

    # --- Position ----------------

    @property
    def over(self) -> bool:
        """Whether all steps were started, or early stopping or a failure has ended the seed."""
        return self.step == self.num_steps or self.progress.over

    @property
    def done(self) -> float:
        """The share of the steps that were started."""
        return self.step / self.num_steps

    def is_due(self, num_steps: int) -> bool:
        """Whether an event is due that happens every `num_steps` and at the end."""
        return self.step % num_steps == 0 or self.step == self.num_steps

    @property
    def _evaluates(self) -> bool:
        every = max(1, round(self.config.eval_every_epochs * self.run.steps_per_epoch))
        is_last_of_several = self.checkpoints is None and self.step == self.num_steps
        return self.is_due(every) and not is_last_of_several

    def is_anything_due(self) -> bool:
        """Whether a line, an evaluation or a checkpoint is due."""
        machine = self.config.machine
        saves = self.step % machine.checkpoint_every_steps == 0
        return self.is_due(machine.log_every_steps) or self._evaluates or saves

    # --- Programs and steps ----------------

    @property
    def _length(self) -> int:
        """The length of the next batch."""
        return self._batches.length(self.step)

    def _batch(self) -> dict[str, np.ndarray]:
        """Returns the next batch."""
        batch = self._batches(self.step)
        return batch if self.run.rows is None else self.run.rows.renumber(batch)

    def _key(self, length: int) -> tuple[int, int, int]:
        """Returns the key of the program for batches of a length, padded for the devices."""
        size = self.config.batch_size + -self.config.batch_size % self._batches.ways
        return size, length, self.most_steps or MOST_STEPS

    def next_program(self) -> tuple[Blocks, ArrayPytree] | None:
        """Returns the program for the length of the next batch; None: it is not compiled."""
        found = self._program.compiled.get(self._key(self._length))
        return found and (found.blocks, {})

    @contextlib.contextmanager
    def compiling(self) -> Iterator[BlockParts]:
        """Yields what the program for the length of the next batch is compiled from."""
        cache, program = self.config.machine.compile_cache_dir, self._program
        learner, net, length = program.learner, self.run.start.opened.config.model, self._length
        what = f"{self.run.task.name}, {net.shape}, length {length}"
        with host.compiling(cache, what) as note:
            self.say(f"{self.name}: compiling for length {length}{note}")
            batch, key = self._batch(), self._key(length)
            size, _, most = key
            layout = Layout(batch, size)
            row = {"packed": layout.pack(batch)}
            made = make_train_step(learner.net, learner.all_terms, learner.optimizer)
            given = program.mesh, program.shardings, self.state, {}, row, most, size
            # The host starts each step: a block has few, because the lengths of batches change.
            yield BlockParts(made, layout.batch, *given, has_loop=False)
            cost = flops.of_program(
                lambda params, frozen, row, key: objectives.forward(
                    learner.net, params, layout.batch({}, row), learner.all_terms,
                    Pass(key, train=True, frozen=frozen),
                ),
                self.state.params, self.state.frozen, row, jax.random.key(0),
            )  # fmt: skip
            program.compiled[key] = Compiled(self.blocks, layout, cost.train)

    def plan_block(self, most: int) -> tuple[list[Row], list[np.float32]]:
        """Starts the next steps: those of one length, up to the first after which something is due.

        Returns:
          The row and the learning rate of each step.
        """
        length = self._length
        layout = self._program.compiled[self._key(length)].layout
        optim, rows, rates = self.config.optim, [], []
        while not rows or not (self.is_anything_due() or len(rows) == most):
            if self._length != length:
                break
            warmup = optim.warmup_rate * self.num_steps
            factor = self._schedule(self.step, warmup, self.num_steps)
            self._rate = np.float32(optim.learning_rate * factor)
            rates.append(self._rate)
            rows.append({"packed": layout.pack(self._batch())})
            self.step += 1
        return rows, rates

    def settle(self, steps: Sequence[metrics.Pairs], secs: float) -> None:
        """Adds the metrics and the seconds of a block that was waited for."""
        if self.progress.failed:  # no step is taken after the one that failed
            return
        clocks = self.progress.clocks
        clocks.secs += secs
        self.steps_per_sec = len(steps) / secs
        for pairs in steps:
            place = clocks.steps
            key = self._key(self._batches.length(place))
            clocks.steps += 1
            clocks.tokens += self._batches.num_tokens(place)
            share = self.config.batch_size / key[0]  # the rest is padding for the devices
            clocks.flops += self._program.compiled[key].flops * share
            if not pairs["finite"][0]:
                self.progress.fail(f"loss or gradient not finite at step {clocks.steps}")
                return
            named = {name: pair for name, pair in pairs.items() if name != f"{TASK}_loss"}
            named["loss"] = pairs[f"{TASK}_loss"]  # without the objectives beside it
            self.progress.add(named, self.run.steps_per_epoch)

    # --- What may follow a step ----------------

    def validate_and_save(self, say: Callable[[str], object] = print) -> None:
        """Writes a line and evaluates, if these are due; no step may be in flight."""
        del say
        if self.is_due(self.config.machine.log_every_steps):
            given, rate = (self.progress.clocks, self.progress.totals), float(self._rate)
            self._writer.write_means(*given, learning_rate=rate)
            self.progress.totals = {}
        if self._evaluates:
            self.evaluate()
        self.progress.num_lines = self._writer.num_lines
        saves = self.step % self.config.machine.checkpoint_every_steps == 0
        if self.checkpoints is not None and saves:
            self.save()

    def evaluate(self) -> None:
        """Scores the dev splits, writes the scores, and keeps the parameters if they are best."""
        self._outputs, self._evaluated = self.predict(self.state.params), self.step
        better, values = results.judge(self.run, self.progress, self.step, self._outputs)
        self._writer.write(self.progress.clocks, values)
        if self.config.patience and better:
            self._best = jax.tree.map(jnp.copy, self.state.params)

    def predict(self, params: ArrayPytree) -> results.Outputs:
        """Computes the outputs on the dev splits; not a number after a failure."""
        run, predict = self.run, self._program.predict

        def of_batch(batch: dict[str, np.ndarray]) -> jax.Array:
            narrow = batch if run.rows is None else run.rows.renumber(batch)
            return predict(params, self.state.frozen, narrow)

        found = {split: run.predict(of_batch, own) for split, own in run.dev_there.items()}
        if self.progress.failed:
            return {split: np.full_like(outputs, np.nan) for split, outputs in found.items()}
        return found

    def describe_progress(self, time_left: str) -> str:
        """Returns the progress line."""
        loss = self.progress.loss(self.config.machine.log_every_steps)
        shown = "" if loss is None else f" | loss {loss:.4f}"
        return f"{self.name} | step {self.step}/{self.num_steps}{shown} | ETA {time_left}"

    # --- Checkpoints and the end ----------------

    def saved(self) -> Saved:
        """Returns the arrays of a checkpoint."""
        return Saved(self.state.replace(frozen={}), self._best)

    def save(self) -> None:
        """Saves a checkpoint from which the same command continues; no step may be in flight."""
        assert self.checkpoints is not None
        self.checkpoints.save(self.saved(), {"progress": dataclasses.asdict(self.progress)})

    def restore(self, saved: Saved, progress: dict[str, Any]) -> None:
        """Continues from the arrays and the progress of a checkpoint."""
        self.state, self._best = saved.state.replace(frozen=self.state.frozen), saved.best
        self.progress = Progress.from_json(progress)
        self.step = self.progress.clocks.steps

    def finish(self) -> None:
        """Keeps the parameters and writes the results."""
        run, params = self.run, self._best if self.config.patience else self.state.params
        if self.config.patience or self._evaluated != self.step or self.progress.failed:
            self._outputs = self.predict(params)
        broken = any(np.isnan(outputs).any() for outputs in self._outputs.values())
        if broken and not self.progress.failed:
            self.progress.fail(f"outputs not finite after step {self.progress.clocks.steps}")
        whole = {**params, **self.state.frozen}
        if run.rows is not None:
            assert self._table is not None
            whole = run.rows.widen(whole, self._table)
        run.save(self.seed, self.progress.clocks.steps, whole)
        results.write(run, self.seed, self.progress, self._outputs, whole)
