"""The files of a run in training: clocks, metrics, checkpoints, result."""

import collections
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax.typing import ArrayPytree

from scalelab import objectives, systems
from scalelab.config import cli
from scalelab.config.durations import Plan
from scalelab.config.pretraining import Config, Shape, science
from scalelab.data import Data
from scalelab.data.batches import Batches, evaluation_batches
from scalelab.data.phases import PhaseData
from scalelab.optim import adamw
from scalelab.resources import flops
from scalelab.runs import environment, json_files, metrics, records, run_folder
from scalelab.runs.checkpoint import Checkpoints
from scalelab.runs.metrics import Run
from scalelab.runs.pretrained import Pretrained, load_frozen
from scalelab.state import Model, TrainState

Evaluate = Callable[[TrainState, Iterator[dict[str, np.ndarray]]], Sequence[metrics.Pairs]]
UNKNOWN = 2**31  # steps of a phase that ends on another clock
LATER_PHASE = 1e6  # losses of other lengths do not compare: checkpoints of a later phase win


class Recorder:
    """Keeps the records of a run.

    Args:
      workdir: the run folder.
      config: of the run.
      data: its training and validation data.
      costs: FLOPs of one step of each phase.
      plan: its budget, and where its phases end.
      run: the part that changes in training.
      checkpoints: of the folder.

    Attributes:
      data: its training and validation data.
      judge: parameters -> share of right minimal pairs, for config.eval.pairs.
      name: the run's name in messages.
      now: the reading of the budget's clock.
      timers: seconds beside training.
      loss: mean loss of the last steps that were waited for.
      tokens_per_sec: of the last steps that were waited for.
      steps_per_sec: likewise.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        config: Config,
        data: Data,
        costs: Sequence[flops.Flops],
        plan: Plan,
        run: Run,
        checkpoints: Checkpoints,
    ) -> None:
        self.workdir, self.config, self.data, self._costs = workdir, config, data, costs
        self.run, self._checkpoints, self.name = run, checkpoints, run_folder.name(config)
        self.plan, self.now, self._rate = plan, run.clocks.at(plan.clock), np.float32(0)
        self._schedule = adamw.get_schedule(config.optim.schedule)
        self.timers = {f"{what}_secs": 0.0 for what in ("setup", "compile", "eval", "save")}
        self.loss, self.tokens_per_sec, self.steps_per_sec = math.nan, 0.0, 0.0
        self._recent: collections.deque[tuple[float, int, int]] = collections.deque(maxlen=20)
        self._settled = run.clocks.tokens, run.clocks.steps  # at the last `settle`
        self._before = run.clocks.tokens, self.now  # clocks before the last step
        self.judge: Callable[[ArrayPytree], float] | None = None
        self._writer: metrics.Writer | None = None
        if jax.process_index() == 0:  # writes; all processes save checkpoints
            self._writer = metrics.Writer(
                workdir, run.clocks.steps, run.num_lines, config.machine.tracker
            )
            run.num_lines = self._writer.num_lines

    # --- Position ----------------

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.now >= self.plan.total

    @property
    def phase_over(self) -> bool:
        """Whether the phase in progress is over."""
        return self.now >= self.plan.ends[self.run.phase]

    @property
    def done(self) -> float:
        """The share of the budget that is used."""
        return self.now / self.plan.total

    @property
    def phase(self) -> PhaseData:
        """The data of the phase in progress."""
        return self.data.phases[self.run.phase]

    @property
    def last_step(self) -> int:
        """The step at which the current phase ends; a very large number if it is not known yet."""
        return int(self.plan.ends[self.run.phase]) if self.plan.clock == "steps" else UNKNOWN

    def learning_rate(self) -> np.float32:
        """Returns the learning rate of the next step."""
        factor = self._schedule(self.now, self.plan.warmup, self.plan.total)
        self._rate = np.float32(self.config.optim.learning_rate * factor)
        return self._rate

    def enter_phase(self) -> PhaseData:
        """Enters the next phase if the current one is over; returns the phase's data."""
        while self.phase_over and not self.over:
            self.run.phase += 1
            self.run.phase_start, self.run.best = self.run.clocks.steps, math.inf
        return self.phase

    def batches(self, rows: slice) -> Batches:
        """Returns the batches of the phase in progress: this process's rows, by the run's step."""
        phase, order = self.phase, self.config.data.order_seed
        seed = self.config.seed if order is None else order
        rule = systems.load(self.config.system).ORDER, phase.corrupt
        start, sizes = self.run.phase_start, (phase.batch_size, phase.max_len)
        return Batches(phase.train, *sizes, seed, rows, start, *rule, self.config.mask_copies)

    def is_due(self, num_steps: int) -> bool:
        """Whether an event is due that happens every `num_steps` and at the end of a phase."""
        return self.run.clocks.steps % num_steps == 0 or self.phase_over

    def is_anything_due(self) -> bool:
        """Whether a line, a validation or a checkpoint is due."""
        machine, evaluation = self.config.machine, self.config.eval
        every = machine.log_every_steps, evaluation.every_steps, machine.checkpoint_every_steps
        return any(map(self.is_due, every)) or bool(self._words_reached or self._shares_reached)

    @property
    def _words_reached(self) -> range:
        """The multiples of eval.pairs_every_words that the last step reached, as 1, 2, ..."""
        if (every := self.config.eval.pairs_every_words) is None:
            return range(0)
        tokens = self._before[0], self.run.clocks.tokens
        before, now = (int(num * self.data.words_per_token) // every for num in tokens)
        return range(before + 1, now + 1)

    @property
    def _shares_reached(self) -> list[float]:
        """The shares of machine.kept_shares that the last step reached."""
        shares, before = self.config.machine.kept_shares or (), self._before[1]
        return [share for share in shares if before < share * self.plan.total <= self.now]

    @property
    def _is_kept(self) -> bool:
        """Whether this step's checkpoint is never deleted.

        Kept are the shares of machine.kept_shares, and N, 2 N, ... 10 N, 20 N, ... 100 N, ... words
        for N = eval.pairs_every_words, as the BabyLM Challenge asks for.
        """
        by_words = any(len(str(count).rstrip("0")) == 1 for count in self._words_reached)
        return by_words or bool(self._shares_reached)

    # --- A step, and what may follow it ----------------

    def advance(self, num_tokens: int, secs_in_flight: float = 0.0) -> None:
        """Advances the clocks by a step that was started.

        Args:
          num_tokens: of its batch, without padding.
          secs_in_flight: seconds that the clock does not have yet.
        """
        clocks = self.run.clocks
        self._before = clocks.tokens, self.now
        clocks.tokens += num_tokens
        clocks.flops += self._costs[self.run.phase].train
        clocks.steps += 1
        self.now = clocks.at(self.plan.clock)
        if self.plan.clock == "secs":
            self.now += secs_in_flight

    def settle(self, steps: Sequence[metrics.Pairs], secs: float) -> None:
        """Adds the metrics and the training seconds of the last steps.

        Raises:
          cli.Stopped: loss or gradient were not finite; the run is closed as it was last saved.
        """
        clocks = self.run.clocks
        clocks.secs += secs
        for k, pairs in enumerate(steps):
            if not pairs["finite"][0]:
                self.close()
                raise cli.Stopped(
                    f"not finite: step {clocks.steps - len(steps) + k + 1} had loss"
                    f" {float(pairs['loss'][0])} and gradient norm {float(pairs['grad_norm'][0])}."
                    f" The parameters of step {self._checkpoints.steps()[-1]} are kept in"
                    f" {self.workdir}/checkpoints; start in a new workdir, usually with a lower"
                    " --config.optim.learning_rate"
                )
        if not steps:
            return
        before, self._settled = self._settled, (clocks.tokens, clocks.steps)
        self._recent.append((secs, clocks.tokens - before[0], clocks.steps - before[1]))
        total, tokens, count = map(sum, zip(*self._recent, strict=True))
        self.tokens_per_sec, self.steps_per_sec = tokens / total, count / total
        new = metrics.sum_pairs(steps)
        self.loss = metrics.divide(new)["loss"]
        metrics.add(self.run.unlogged, new)

    def attend(
        self, evaluate: Evaluate, model: Model, say: Callable[[str], object] = print
    ) -> None:
        """Writes a line, validates and saves, if these are due; no step may be in flight.

        Args:
          evaluate: (state, global batches) -> metrics of each batch, on the host.
          model: the parts of the program.
          say: prints the validation.
        """
        machine = self.config.machine
        if self.is_due(machine.log_every_steps):
            means = metrics.divide(self.run.unlogged)
            means.pop("finite", None)
            self.run.unlogged.clear()
            if means:
                values = {f"train/{k}": v for k, v in means.items()}
                values["train/learning_rate"] = float(self._rate)
                self._write(values | {"train/tokens_per_sec": self.tokens_per_sec})
        if self._words_reached and self.judge is not None:
            say(self._judge_pairs(self.judge))
        for share in self._shares_reached:  # `kept_step` of studies/jobs.py reads the step
            self._write({"eval/share": share})
        if self.is_due(self.config.eval.every_steps):
            say(self._validate(evaluate, model))
        if self.is_due(machine.checkpoint_every_steps) or self._is_kept:
            self.save()

    def _validate(self, evaluate: Evaluate, model: Model) -> str:
        """Validates at the length of the phase in progress, writes the metrics, and saves."""
        run, phase, length = self.run, self.phase, self.phase.max_len
        with metrics.timed(self.timers, "eval_secs"):
            count = math.ceil(self.config.eval.num_examples / phase.batch_size)
            batches = evaluation_batches(phase.valid, phase.batch_size, count, phase.corrupt)
            sums = metrics.sum_pairs(evaluate(run.state, batches))
            means = metrics.summarise_eval(sums, model.loss_weights, model.token_losses)
        run.best = min(run.best, means["loss"])
        run.evals[str(length)] = means | {"step": run.clocks.steps, "best_loss": run.best}
        self._write({f"eval/{k}": v for k, v in means.items()} | {"eval/max_len": length})
        self.save(rank=means["loss"] - LATER_PHASE * run.phase)
        found = ", ".join(f"{k} {v:.4g}" for k, v in means.items())
        return f"step {run.clocks.steps}: validation at length {length}: {found}"

    def open_net(self) -> Pretrained:
        """Returns the run as `pretrained.load` opens it, with the parameters of now."""
        config, state = self.config, self.run.state
        return Pretrained(
            self.workdir, config, systems.load(config.system), self.data.tokenizer, state.params,
            int(state.step), finished=False, frozen=load_frozen(config.machine.frozen),
        )  # fmt: skip

    def _judge_pairs(self, judge: Callable[[ArrayPytree], float]) -> str:
        """Evaluates minimal pairs, and writes the accuracy."""
        with metrics.timed(self.timers, "eval_secs"):
            accuracy = judge(self.run.state.params)
        words = self._words_reached[-1] * (self.config.eval.pairs_every_words or 0)
        self._write({"eval/pairs_accuracy": accuracy, "eval/words": words})
        text = f"step {self.run.clocks.steps}, {words:,} words: {100 * accuracy:.1f}% of the pairs"
        return text + ", kept for `hf export --step`" * self._is_kept

    def _write(self, values: dict[str, float]) -> None:
        if self._writer is not None:
            self._writer.write(self.run.clocks, values)
            self.run.num_lines = self._writer.num_lines

    def save(self, rank: float | None = None) -> None:
        """Saves a checkpoint; no step may be in flight.

        Args:
          rank: the lower the better; the best is kept beside the last ones.
        """
        with metrics.timed(self.timers, "save_secs"):
            state, meta = self.run.state.replace(frozen={}), self.run.meta()
            self._checkpoints.save(state, meta, rank, keep=self._is_kept)

    # --- The end ----------------

    def close(self) -> None:
        """Waits until all is on disk."""
        self._checkpoints.close()
        if self._writer is not None:
            self._writer.close()

    def finish(self) -> dict[str, Any]:
        """Writes result.json; returns its content."""
        config, run, clocks, data = self.config, self.run, self.run.clocks, self.data
        shape = Shape(config.net.num_heads, config.net.width, config.net.num_layers)
        system = systems.load(config.system)
        result = records.RunResult(
            system=config.system,
            shape=shape,
            n_model=systems.n_model(system, config.net, config.system_options),
            seed=config.seed,
            steps=clocks.steps,
            tokens=clocks.tokens,
            flops=clocks.flops,
            seconds=clocks.secs,
            params=flops.count_parameters(run.state.params),
            init=None if config.init is None else config.machine.init,
            init_digest=config.init,
            initialised=tuple(run.initialised),
            peak_memory_bytes=environment.peak_memory_bytes(),
            remarks=tuple(self._unlearnt()),
            eval=run.evals,
            data_hash=data.corpus_hash,
            unigram_nats=data.unigram_nats,
            corpus=records.Corpus(data.num_documents, data.num_tokens),
            phases=tuple(
                records.PhaseData(p.max_len, len(p.train), p.train.meta["num_tokens"])
                for p in data.phases
            ),
            departures=tuple(
                records.Departure(**departure)
                for departure in systems.active_departures(system.DEPARTURES, science(config))
            ),
            **self.timers,
        )
        if self._writer is not None:
            records.write_result(self.workdir, result)
        return json_files.dump(result)

    def _unlearnt(self) -> Iterator[str]:
        """Yields the objectives that are no better than a constant predictor at the end."""
        config, evals = self.config, self.run.evals
        last = {**evals[max(evals, key=int)], metrics.UNIGRAM: self.data.unigram_nats}
        found = metrics.check_baselines(
            config.objective_weights, config.objective_options, last, objectives.load_baselines(),
            with_margin=False,
        )  # fmt: skip
        for objective, failure, _ in found:
            if failure:
                yield f"{objective} has learnt no more than a constant predictor knows: {failure}"

    def describe_progress(self, peak: float, time_left: str) -> str:
        """Returns the progress line; `peak` is the FLOP/s of all devices."""
        rate = self.steps_per_sec * self._costs[self.run.phase].train
        return (
            f"{self.name} | step {self.run.clocks.steps} ({self.done:.0%}) | loss {self.loss:.4f}"
            f" | {self.tokens_per_sec:,.0f} tokens/s | MFU {rate / peak:.0%}"
            f" | ETA {time_left}"
        )
