"""The fine-tuning of one seed on one task; `joint.Joint` has one or several of them."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree

from scalelab import objectives
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

MOST_STEPS = 8  # most steps of a block, whose batches have one length


@flax.struct.dataclass
class Saved:
    """The arrays of a task in a checkpoint."""

    state: TrainState
    best: ArrayPytree  # parameters with the best dev score, for early stopping; {} without it


class Finetuning:
    """One seed of a task.

    Args:
      run: the task, prepared for a model.
      seed: of order, head and dropout.
    """

    blocks: Blocks
    _writer: metrics.Writer  # from `open` on

    def __init__(self, run: TaskRun, seed: int) -> None:
        self.run, self.seed, self.config = run, seed, run.config
        self.progress = Progress()  # how far the seed has come
        self.num_steps = run.num_steps  # steps of the whole training
        self.step, self._rate = 0, np.float32(0)  # steps that were started; rate of the last
        self._batches = run.batches(seed)
        self._schedule = adamw.SCHEDULES[self.config.optim.schedule]
        self._program = compiled(run.trained, run.mesh)
        params = run.first_params(seed)
        self._table = None if run.rows is None else np.asarray(run.rows.table(params))
        self.state = jax.device_put(run.first_state(seed, params), self._program.shardings)
        self._best = jax.tree.map(jnp.copy, self.state.params) if self.config.patience else {}
        self._outputs: results.Outputs = {}  # outputs of the last evaluation

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

    def is_due(self, num_steps: int) -> bool:
        """Whether an event is due that happens every `num_steps` and at the end."""
        return self.step % num_steps == 0 or self.step == self.num_steps

    @property
    def _evaluates(self) -> bool:
        """Whether an evaluation is due; the last one waits for the end of all tasks."""
        every = max(1, round(self.config.eval_every_epochs * self.run.steps_per_epoch))
        return self.step % every == 0 and self.step < self.num_steps

    def is_anything_due(self) -> bool:
        """Whether a line or an evaluation is due."""
        return self.is_due(self.config.machine.log_every_steps) or self._evaluates

    # --- Programs and steps ----------------

    @property
    def _length(self) -> int:
        """The length of the next batch."""
        return self._batches.length(self.step)

    def _renumber(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a batch whose tokens are the rows of the trained token table."""
        return batch if self.run.rows is None else self.run.rows.renumber(batch)

    def _key(self, length: int) -> tuple[int, int, int]:
        """Returns the key of the program for batches of a length, padded for the devices."""
        size = self.config.batch_size + -self.config.batch_size % self._batches.ways
        return size, length, self.config.machine.steps_per_dispatch or MOST_STEPS

    def next_program(self) -> tuple[Blocks, ArrayPytree] | None:
        """Returns the program for the length of the next batch; None: it is not compiled."""
        found = self._program.compiled.get(self._key(self._length))
        return found and (found.blocks, {})

    @contextlib.contextmanager
    def compiling(self) -> Iterator[BlockParts]:
        """Yields what the program for the length of the next batch is compiled from."""
        cache, program = self.config.machine.compile_cache_dir, self._program
        learner, net, length = self.run.trained, self.run.start.opened.config.model, self._length
        what = f"{self.run.task.name}, {net.shape}, length {length}"
        with host.compiling(cache, what) as note:
            seed = f"{self.run.task.name} seed {self.seed}"
            print(f"{seed}: compiling for length {length}{note}", flush=True)
            batch, key = self._renumber(self._batches(self.step)), self._key(length)
            size, _, most = key
            layout = Layout(batch, size)
            row = {"packed": layout.pack(batch)}
            made = make_train_step(learner.net, learner.all_terms, learner.optimizer)
            given = self.run.mesh, program.shardings, self.state, {}, row, most, size
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
            rows.append({"packed": layout.pack(self._renumber(self._batches(self.step)))})
            self.step += 1
        return rows, rates

    def settle(self, steps: Sequence[metrics.Pairs], secs: float) -> None:
        """Adds the metrics and the seconds of a block that was waited for."""
        clocks = self.progress.clocks
        clocks.secs += secs
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

    def log_and_evaluate(self) -> None:
        """Writes a line and evaluates, if these are due; no step may be in flight."""
        if self.is_due(self.config.machine.log_every_steps):
            given, rate = (self.progress.clocks, self.progress.totals), float(self._rate)
            self._writer.write_means(*given, learning_rate=rate)
            self.progress.totals = {}
        if self._evaluates:
            self.evaluate()
        self.progress.num_lines = self._writer.num_lines

    def evaluate(self) -> None:
        """Scores the dev splits, writes the scores, and keeps the parameters if they are best."""
        self._outputs = self.predict(self.state.params)
        dev, patience = results.measure(self.run, self._outputs), self.config.patience
        score = functools.partial(results.main_score, self.run.task)
        better = self.progress.judge(self.step, dev, score, patience)
        named = {f"eval/{split}/{m}": x for split, found in dev.items() for m, x in found.items()}
        known = {name: value for name, value in named.items() if value is not None}
        self._writer.write(self.progress.clocks, known)
        if patience and better:
            self._best = jax.tree.map(jnp.copy, self.state.params)

    def predict(self, params: ArrayPytree) -> results.Outputs:
        """Computes the outputs on the dev splits; not a number after a failure."""

        def score(batch: dict[str, np.ndarray]) -> jax.Array:
            return self._program.predict(params, self.state.frozen, self._renumber(batch))

        found = {k: self.run.predict(score, own) for k, own in self.run.dev_there.items()}
        if self.progress.failed:
            return {split: np.full_like(outputs, np.nan) for split, outputs in found.items()}
        return found

    # --- Checkpoints and the end ----------------

    def saved(self) -> Saved:
        """Returns the arrays of a checkpoint."""
        return Saved(self.state.replace(frozen={}), self._best)

    def restore(self, saved: Saved, progress: dict[str, Any]) -> None:
        """Continues from the arrays and the progress of a checkpoint."""
        self.state, self._best = saved.state.replace(frozen=self.state.frozen), saved.best
        self.progress = Progress.from_json(progress)
        self.step = self.progress.clocks.steps

    def finish(self) -> None:
        """Keeps the parameters and writes the results."""
        run, params = self.run, self._best if self.config.patience else self.state.params
        if self.config.patience or self.progress.failed:
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
