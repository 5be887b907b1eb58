"""A pre-training in progress: its steps, clocks, metrics, checkpoints and result."""

import collections
import contextlib
import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax.typing import ArrayPytree
from jax.sharding import Mesh

from scalelab import objectives, sharding, step, systems
from scalelab.config import cli
from scalelab.config.durations import Plan
from scalelab.config.pretraining import Config, science
from scalelab.data import Data
from scalelab.data.batches import Batches, evaluation_batches
from scalelab.data.phases import PhaseData
from scalelab.optim import adamw
from scalelab.records import baselines, json_files, metrics, run_files, run_folder
from scalelab.resources import flops, host
from scalelab.state import Model, TrainState
from scalelab.step import BlockParts, Blocks, Evaluate
from scalelab.training import feeding
from scalelab.training.checkpoint import Checkpoints
from scalelab.training.feeding import Row
from scalelab.training.pretrained import Pretrained

if TYPE_CHECKING:
    from scalelab.training.opening import Run

BeforeStep = Callable[[int, dict[str, np.ndarray]], None]
LONG_SECS = 5.0  # a validation that takes longer is announced
UNKNOWN = 2**31  # steps of a phase that ends on another clock
LATER_PHASE = 1e6  # losses of other lengths do not compare: checkpoints of a later phase win


@dataclasses.dataclass(frozen=True)
class _Phase:
    """The compiled programs of a phase, and its examples."""

    index: int
    blocks: Blocks
    arrays: ArrayPytree  # on the devices
    stream: Iterator[tuple[int, Row]]  # from the next step on
    evaluate: Evaluate


@dataclasses.dataclass(frozen=True)
class _Planned:
    """A block that was started."""

    clocks: metrics.Clocks  # after it, but for the seconds
    tokens: int
    secs: float  # the estimate by which the clock of seconds was advanced
    rate: float  # the last learning rate
    logs: bool  # whether a line follows it


@dataclasses.dataclass(eq=False, repr=False)
class Pretraining:
    """A pre-training, as `scalelab.train.train` drives it.

    Attributes:
      judge: parameters -> share of right minimal pairs, for config.eval.pairs.
      name: the run's name in messages.
      now: the reading of the budget's clock, blocks in flight included.
      timers: seconds beside training.
      loss: mean loss of the last block that was waited for.
      tokens_per_sec: of the last blocks that were waited for.
      steps_per_sec: likewise.
      blocks: the compiled steps of a phase.
      interrupt: whether the user has stopped the run.
      result: the content of result.json, once the run is finished.
    """

    workdir: pathlib.Path  # the run folder
    config: Config
    data: Data  # training and validation data
    model: Model  # the parts of the program
    nets: Mapping[str, Pretrained]  # the frozen nets by their names
    mesh: Mesh  # the devices
    placed: TrainState  # shardings of the state
    costs: Sequence[flops.Flops]  # FLOPs of one step of each phase
    plan: Plan  # the budget, and where its phases end
    run: "Run"  # the part that changes in training
    checkpoints: Checkpoints  # checkpoints of the folder
    say: Callable[[str], object]  # prints a line
    before_step: BeforeStep | None = None  # called with (step, batch) before each step

    def __post_init__(self) -> None:
        config, plan, run, before_step = self.config, self.plan, self.run, self.before_step
        self.name = run_folder.name(config)
        self.now, self._rate = run.clocks.at(plan.clock), np.float32(0)
        self._schedule = adamw.get_schedule(config.optim.schedule)
        self.timers = {f"{what}_secs": 0.0 for what in ("setup", "compile", "eval", "save")}
        self.loss, self.tokens_per_sec, self.steps_per_sec = math.nan, 0.0, 0.0
        self.most_steps = 1 if before_step else config.machine.steps_per_dispatch
        # On the clock of seconds, a learning rate depends on when the steps before ended.
        self.blocks_ahead = 0 if plan.clock == "secs" or before_step else 1
        if jax.process_count() > 1:  # all take the same blocks, however fast each is
            self.most_steps = self.most_steps or feeding.MOST_STEPS
        self._recent: collections.deque[tuple[float, int, int]] = collections.deque(maxlen=20)
        self._planned: collections.deque[_Planned] = collections.deque()  # not settled yet
        self._num_settled = run.clocks.steps
        self._before = run.clocks.tokens, self.now  # clocks before the last step
        self._compiled: _Phase | None = None
        self.blocks: Blocks | None = None
        self.interrupt, self.result = cli.Interrupt(), {}
        self._peak = flops.device_peak(jax.devices()[0].device_kind)
        self._validation_secs = 0.0  # what the last validation took
        self.judge: Callable[[ArrayPytree], float] | None = None
        self._writer: metrics.Writer | None = None
        if jax.process_index() == 0:  # writes; all processes save checkpoints
            given = run.clocks.steps, run.num_lines, config.machine.tracker
            self._writer = metrics.Writer(self.workdir, *given)
            run.num_lines = self._writer.num_lines

    # --- Position ----------------

    @property
    def state(self) -> TrainState:
        """The state after the last step that was started."""
        return self.run.state

    @state.setter
    def state(self, state: TrainState) -> None:
        self.run.state = state

    @property
    def step(self) -> int:
        """The number of steps that were started."""
        return self.run.clocks.steps

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

    def batches(self, rows: slice) -> Batches:
        """Returns the batches of the phase in progress: this process's rows, by the run's step."""
        phase, order = self.phase, self.config.data.order_seed
        seed = self.config.seed if order is None else order
        rule = systems.load(self.config.system).ORDER, phase.corrupt
        start, sizes = self.run.phase_start, (phase.batch_size, phase.max_len)
        rule = *rule, self.config.mask_copies, phase.counted_arrays
        return Batches(phase.train, *sizes, seed, rows, start, *rule)

    # --- The program of a phase ----------------

    def next_program(self) -> tuple[Blocks, ArrayPytree] | None:
        """Returns the program of the next steps and its examples; None: it is not compiled."""
        while self.phase_over and not self.over:
            self.run.phase += 1
            self.run.phase_start, self.run.best = self.run.clocks.steps, math.inf
        if self._compiled is None or self._compiled.index != self.run.phase:
            return None
        return self._compiled.blocks, self._compiled.arrays

    @contextlib.contextmanager
    def compiling(self) -> Iterator[BlockParts]:
        """Places the examples of the phase in progress; yields what its steps are compiled from.

        Then compiles the validation, and validates the untrained net.
        """
        phase, machine, run = self.phase, self.config.machine, self.run
        what, cache = f"length {phase.max_len}, batch {phase.batch_size}", machine.compile_cache_dir
        program = f"{self.name}, {what}"
        alone = "; one step at a time, because a hook sees each" * (self.before_step is not None)
        self._compiled = self.blocks = None  # frees the examples of the phase before
        begun, model = time.perf_counter(), self.model
        with host.compiling(cache, program) as note, metrics.timed(self.timers, "compile_secs"):
            self.say(f"phase {run.phase + 1}: {what}{alone}; compiling{note}")
            batches = self.batches(sharding.host_rows(self.mesh, phase.batch_size))
            source = feeding.place(phase, batches, machine, self.mesh, self.say, self.before_step)
            size = self.most_steps or source.most_steps
            train_step = step.make_train_step(
                model.net, model.terms, model.tx, machine.num_microbatches
            )
            given = self.mesh, self.placed, run.state
            yield BlockParts(
                train_step, source.batch, *given, source.arrays, source.row, size,
                source.batch_size,
            )  # fmt: skip
            count = math.ceil(self.config.eval.num_examples / phase.batch_size)
            given_valid = phase.valid, phase.batch_size, count, phase.corrupt
            crosses = any(term.crosses_examples for term in model.terms)
            valid = evaluation_batches(*given_valid, model.system.ORDER, crosses)
            evaluate = step.compile_evaluation(model, *given, valid)
        assert self.blocks is not None
        stream = source.stream(run.clocks.steps, self.last_step)
        self._compiled = _Phase(run.phase, self.blocks, source.arrays, stream, evaluate)
        if self.mesh.devices.flat[0].platform == "cpu":
            scratch = self.blocks.compiled.memory_analysis().temp_size_in_bytes
            host.release_if_low(soon=host.GAPS * scratch)
        begins = not run.clocks.steps  # the untrained net is where curves begin
        validates = "; validating the untrained net" * begins
        self.say(f"compiled in {time.perf_counter() - begun:.1f} s{validates}")
        if begins:
            self.validate_and_save(self.say)

    # --- Steps, and what may follow them ----------------

    def learning_rate(self) -> np.float32:
        """Returns the learning rate of the next step."""
        factor = self._schedule(self.now, self.plan.warmup, self.plan.total)
        self._rate = np.float32(self.config.optim.learning_rate * factor)
        return self._rate

    def plan_block(self, most: int) -> tuple[list[Row], list[np.float32]]:
        """Advances the clocks by the next steps, up to the first after which something is due.

        Args:
          most: steps, at least 1.

        Returns:
          The row and the learning rate of each step.
        """
        assert self._compiled is not None
        rows, rates, before = [], [], (self.run.clocks.tokens, self.now)
        secs_per_step = 1 / self.steps_per_sec if self.steps_per_sec else 0.0
        log_every = self.config.machine.log_every_steps
        while len(rows) < most and not (
            rows and (self.is_due(log_every) or self.is_anything_due())
        ):
            rates.append(self.learning_rate())
            num_tokens, row = next(self._compiled.stream)
            rows.append(row)
            self._advance(num_tokens, secs_per_step)
        secs = self.now - before[1] if self.plan.clock == "secs" else 0.0
        clocks, logs = dataclasses.replace(self.run.clocks), self.is_due(log_every)
        tokens = clocks.tokens - before[0]
        self._planned.append(_Planned(clocks, tokens, secs, float(self._rate), logs))
        return rows, rates

    def _advance(self, num_tokens: int, secs: float) -> None:
        """Advances the clocks by a step of `num_tokens` that may take `secs`."""
        clocks = self.run.clocks
        self._before = clocks.tokens, self.now
        clocks.tokens += num_tokens
        clocks.flops += self.costs[self.run.phase].train
        clocks.steps += 1
        self.now = self.now + secs if self.plan.clock == "secs" else clocks.at(self.plan.clock)

    def settle(self, steps: Sequence[metrics.Pairs], secs: float) -> None:
        """Adds the metrics of a block that was waited for, and its seconds.

        Raises:
          cli.Stopped: loss or gradient were not finite; the run is closed as it was last saved.
        """
        planned, clocks = self._planned.popleft(), self.run.clocks
        clocks.secs += secs
        if self.plan.clock == "secs":
            self.now += secs - planned.secs
        for pairs in steps:
            self._num_settled += 1
            if not pairs["finite"][0]:
                loss, norm = (float(pairs[name][0]) for name in ("loss", "grad_norm"))
                found = f"step {self._num_settled} had loss {loss} and gradient norm {norm}"
                raise self._diverged(found)
        self._recent.append((secs, planned.tokens, len(steps)))
        total, tokens, count = map(sum, zip(*self._recent, strict=True))
        self.tokens_per_sec, self.steps_per_sec = tokens / total, count / total
        new = metrics.sum_pairs(steps)
        self.loss = metrics.divide(new)["loss"]
        metrics.add(self.run.unlogged, new)
        if planned.logs:
            self._log(dataclasses.replace(planned.clocks, secs=clocks.secs), planned.rate)

    def is_due(self, num_steps: int) -> bool:
        """Whether an event is due that happens every `num_steps` and at the end of a phase."""
        return self.step % num_steps == 0 or self.phase_over

    def is_anything_due(self) -> bool:
        """Whether a validation or a checkpoint is due, for which all steps must have ended."""
        every = self.config.eval.every_steps, self.config.machine.checkpoint_every_steps
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

    def _log(self, clocks: metrics.Clocks, rate: float) -> None:
        """Writes the means since the last line."""
        means = metrics.divide(self.run.unlogged)
        means.pop("finite", None)
        self.run.unlogged.clear()
        if means:
            values = {f"train/{k}": v for k, v in means.items()}
            values |= {"train/learning_rate": rate, "train/tokens_per_sec": self.tokens_per_sec}
            self._write(values, clocks)

    def validate_and_save(self, say: Callable[[str], object] = print) -> None:
        """Validates and saves, if these are due; no step may be in flight."""
        machine = self.config.machine
        if self._words_reached and self.judge is not None:
            say(self._judge_pairs(self.judge))
        for share in self._shares_reached:  # `kept_step` of studies/jobs.py reads the step
            self._write({"eval/share": share})
        if self.is_due(self.config.eval.every_steps):
            if self._validation_secs > LONG_SECS:
                say(f"step {self.run.clocks.steps}: validating, {self._validation_secs:.0f} s")
            say(self._validate())
        if self.is_due(machine.checkpoint_every_steps) or self._is_kept:
            self.save()

    def _validate(self) -> str:
        """Validates at the length of the phase in progress, writes the metrics, and saves."""
        run, length, begun = self.run, self.phase.max_len, time.perf_counter()
        with metrics.timed(self.timers, "eval_secs"):
            assert self._compiled is not None
            sums = metrics.sum_pairs(self._compiled.evaluate(run.state))
            means = metrics.summarise_eval(sums, self.model.loss_weights, self.model.token_losses)
        self._validation_secs = time.perf_counter() - begun
        if not math.isfinite(means["loss"]):
            raise self._diverged(
                f"the validation after step {run.clocks.steps} has loss {means['loss']}"
            )
        run.best = min(run.best, means["loss"])
        facts = {"step": run.clocks.steps, "best_loss": run.best}
        run.evals[str(length)] = means | facts | {"batch_size": self.phase.batch_size}
        self._write({f"eval/{k}": v for k, v in means.items()} | {"eval/max_len": length})
        self.save(rank=means["loss"] - LATER_PHASE * run.phase)
        found = ", ".join(f"{k} {v:.4g}" for k, v in means.items())
        return f"step {run.clocks.steps}: validation at length {length}: {found}"

    def _diverged(self, found: str) -> cli.Stopped:
        """Closes the run as it was last saved, and returns the error."""
        self.close()
        return cli.Stopped(
            f"not finite: {found}. The parameters of step {self.checkpoints.steps()[-1]} are kept"
            f" in {self.workdir}/checkpoints; start in a new workdir, usually with a lower"
            " --config.optim.learning_rate"
        )

    def open_net(self) -> Pretrained:
        """Returns the run as `pretrained.load` opens it, with the parameters of now."""
        config, state = self.config, self.run.state
        return Pretrained(
            self.workdir, config, systems.load(config.system), self.data.tokenizer, state.params,
            int(state.step), finished=False, frozen=self.nets,
        )  # fmt: skip

    def _judge_pairs(self, judge: Callable[[ArrayPytree], float]) -> str:
        """Evaluates minimal pairs, and writes the accuracy."""
        with metrics.timed(self.timers, "eval_secs"):
            accuracy = judge(self.run.state.params)
        words = self._words_reached[-1] * (self.config.eval.pairs_every_words or 0)
        notes = self.open_net().reading_notes
        marks = {"eval/pairs_untrained": 1.0} if notes else {}
        self._write({"eval/pairs_accuracy": accuracy, "eval/words": words} | marks)
        text = f"step {self.run.clocks.steps}, {words:,} words: {100 * accuracy:.1f}% of the pairs"
        return "; ".join([text + ", kept for `hf export --step`" * self._is_kept, *notes])

    def _write(self, values: dict[str, float], clocks: metrics.Clocks | None = None) -> None:
        if self._writer is not None:
            self._writer.write(clocks or self.run.clocks, values)
            self.run.num_lines = self._writer.num_lines

    def save(self, rank: float | None = None) -> None:
        """Saves a checkpoint; no step may be in flight.

        Args:
          rank: the lower the better; the best is kept beside the last ones.
        """
        with metrics.timed(self.timers, "save_secs"):
            state, meta = self.run.state.replace(frozen={}), self.run.meta()
            self.checkpoints.save(state, meta, rank, keep=self._is_kept)

    # --- The end ----------------

    def close(self) -> None:
        """Waits until all is on disk."""
        self.checkpoints.close()
        if self._writer is not None:
            self._writer.close()

    def finish(self) -> dict[str, Any]:
        """Writes result.json; returns its content."""
        config, run, clocks, data = self.config, self.run, self.run.clocks, self.data
        system = systems.load(config.system)
        result = run_files.RunResult(
            system=config.system,
            shape=config.net.shape,
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
            peak_memory_bytes=host.peak_memory_bytes(),
            remarks=tuple(self._unlearnt()),
            eval=run.evals,
            data_hash=data.corpus_hash,
            unigram_nats=data.unigram_nats,
            unigrams=self._unigrams,
            corpus=run_files.Corpus(data.num_documents, data.num_tokens),
            validation=run_files.Corpus(data.num_valid_documents, data.num_valid_tokens),
            phases=tuple(
                run_files.PhaseData(
                    p.max_len,
                    len(p.train),
                    p.epoch_tokens,
                    p.padding_share,
                    p.num_validated(config.eval.num_examples),
                )
                for p in data.phases
            ),
            departures=tuple(
                run_files.Departure(**departure)
                for departure in systems.active_departures(system.DEPARTURES, science(config))
            ),
            **self.timers,
        )
        if self._writer is not None:
            run_files.write_result(self.workdir, result)
        self.result = json_files.dump(result)
        return self.result

    @functools.cached_property
    def _unigrams(self) -> dict[str, float]:
        """The unigram entropies of arrays that are predicted in place of the text."""
        config = self.config
        arrays = objectives.predicted_arrays(config.objective_weights, config.objective_options)
        return {metrics.unigram_name(a): self.data.unigram_nats_of(a) for a in arrays}

    def _unlearnt(self) -> Iterator[str]:
        """Yields the objectives that are no better than a constant predictor at the end."""
        config, evals = self.config, self.run.evals
        last = evals[max(evals, key=int)] | self._unigrams
        last[metrics.UNIGRAM] = self.data.unigram_nats
        found = baselines.check_baselines(
            config.objective_weights, config.objective_options, last, objectives.load_baselines(),
            with_margin=False,
        )  # fmt: skip
        for check in found:
            if check.failure:
                name = check.objective
                yield f"{name} has learnt no more than a constant predictor knows: {check.failure}"

    def describe_progress(self, time_left: str) -> str:
        """Returns the progress line."""
        rate = self.steps_per_sec * self.costs[self.run.phase].train / jax.device_count()
        mfu = f" | MFU {rate / self._peak:.0%}" if self._peak else ""
        return (
            f"{self.name} | step {self.run.clocks.steps} ({self.done:.0%}) | loss {self.loss:.4f}"
            f" | {self.tokens_per_sec:,.0f} tokens/s{mfu} | ETA {time_left}"
        )
