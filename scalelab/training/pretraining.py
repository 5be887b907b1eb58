"""A pre-training in progress: its steps, clocks, metrics and checkpoints."""

import collections
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax.typing import ArrayPytree
from jax.sharding import Mesh

from scalelab.config import exits
from scalelab.config.durations import Plan
from scalelab.config.pretraining import Config
from scalelab.data.loading import Data
from scalelab.data.phases import PhaseData
from scalelab.data.store import Row
from scalelab.helpers.progress import timed
from scalelab.optim import adamw
from scalelab.records import metrics, run_folder
from scalelab.records.metrics import Progress
from scalelab.resources import flops
from scalelab.state import Model, TrainState
from scalelab.step import Blocks
from scalelab.training import feeding
from scalelab.training.checkpoint import Checkpoints
from scalelab.training.feeding import PhaseProgram
from scalelab.training.pretrained import Pretrained

LONG_SECS = 5.0  # a validation that takes longer is announced
LATER_PHASE = 1e6  # losses of other lengths do not compare: checkpoints of a later phase win


@dataclasses.dataclass(frozen=True)
class _Planned:
    """A block that was started."""

    clocks: metrics.Clocks  # after it, but for the seconds
    tokens: int
    advance: float  # progress in the unit of the budget; for seconds an estimate
    rate: float  # the last learning rate
    logs: bool  # whether a line follows it


class Reached(NamedTuple):
    """The marks that a step reached."""

    words: range  # multiples of eval.pairs_every_words, as 1, 2, ...
    shares: Sequence[float]  # machine.kept_shares
    # Whether the step's checkpoint is never deleted: at the shares, and at N, 2 N, ... 10 N, 20 N,
    # ... 100 N, ... words for N = eval.pairs_every_words, as the BabyLM Challenge asks for.
    is_kept: bool


@dataclasses.dataclass(eq=False, repr=False)
class Pretraining:
    """A pre-training, as `train.train` drives it."""

    workdir: pathlib.Path  # the run folder
    config: Config
    data: Data  # training and validation data
    model: Model  # the parts of the program
    nets: Mapping[str, Pretrained]  # the frozen models by their names
    mesh: Mesh  # the devices
    placed: TrainState  # shardings of the state
    costs: Sequence[flops.Flops]  # FLOPs of one step of each phase
    plan: Plan  # the budget, and where its phases end
    checkpoints: Checkpoints  # checkpoints of the folder
    say: Callable[[str], object]  # prints a line
    state: TrainState  # after the last step that was started
    progress: Progress

    def __post_init__(self) -> None:
        config, plan, clocks = self.config, self.plan, self.progress.clocks
        self.name = run_folder.name(config)
        self.clocks, self._rate = clocks, np.float32(0)
        self.now = clocks.at(plan.clock)  # on the budget's clock, blocks in flight included
        self._schedule = adamw.SCHEDULES[config.optim.schedule]
        # Seconds beside training.
        self.timers = {f"{what}_secs": 0.0 for what in ("setup", "compile", "eval", "save")}
        # Of the last blocks that were waited for; the loss is the mean of the last one.
        self.loss, self.tokens_per_sec, self.steps_per_sec = math.nan, 0.0, 0.0
        self.most_steps = config.machine.steps_per_dispatch
        # On the clock of seconds, a learning rate depends on when the steps before ended.
        self.blocks_ahead = 0 if plan.clock == "secs" else 1
        if jax.process_count() > 1:  # all take the same blocks, however fast each is
            self.most_steps = self.most_steps or feeding.MOST_STEPS
        self._recent: collections.deque[tuple[float, int, int]] = collections.deque(maxlen=20)
        self._planned: collections.deque[_Planned] = collections.deque()  # not settled yet
        self._before = clocks.tokens, self.now  # clocks before the last step
        self.program: PhaseProgram | None = None
        self.blocks: Blocks | None = None
        self.interrupt, self.result = exits.Interrupt(), {}
        self._peak = flops.device_peak(jax.devices()[0].device_kind)
        self._validation_secs = 0.0  # what the last validation took
        # Evaluates and writes the minimal pairs of config.eval.pairs; returns a line on them.
        self.judge: Callable[[], str] | None = None
        self._writer: metrics.Writer | None = None
        if jax.process_index() == 0:  # writes; all processes save checkpoints
            given = clocks.steps, self.progress.num_lines, config.machine.tracker
            self._writer = metrics.Writer(self.workdir, *given)

    # --- Position ----------------

    @property
    def step(self) -> int:
        """The number of steps that were started."""
        return self.clocks.steps

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.now >= self.plan.total

    @property
    def phase_over(self) -> bool:
        """Whether the phase in progress is over."""
        return self.now >= self.plan.ends[self.progress.phase]

    @property
    def done(self) -> float:
        """The share of the budget that is used."""
        return self.now / self.plan.total

    @property
    def phase(self) -> PhaseData:
        """The data of the phase in progress."""
        return self.data.phases[self.progress.phase]

    # --- The program of a phase ----------------

    def next_program(self) -> tuple[Blocks, ArrayPytree] | None:
        """Returns the program of the next steps and its examples; None: it is not compiled."""
        while self.phase_over and not self.over:
            self.progress.phase += 1
            self.progress.phase_start, self.progress.best = self.clocks.steps, math.inf
        if self.program is None or self.program.phase != self.progress.phase:
            return None
        return self.program.blocks, self.program.arrays

    compiling = feeding.compiling  # yields what that program is compiled from

    # --- Steps, and what may follow them ----------------

    def plan_block(self, most: int) -> tuple[list[Row], list[np.float32]]:
        """Advances the clocks by the next steps, up to the first after which something is due.

        Returns:
          The row and the learning rate of each step.
        """
        assert self.program is not None
        rows, rates, clocks, plan = [], [], self.clocks, self.plan
        tokens, begun = clocks.tokens, self.now
        secs_per_step = 1 / self.steps_per_sec if self.steps_per_sec else 0.0
        log_every = self.config.machine.log_every_steps
        while len(rows) < most and not (
            rows and (self.is_due(log_every) or self.is_anything_due())
        ):
            factor = self._schedule(self.now, plan.warmup, plan.total)
            self._rate = np.float32(self.config.optim.learning_rate * factor)
            rates.append(self._rate)
            num_tokens, row = next(self.program.stream)
            rows.append(row)
            self._before = clocks.tokens, self.now
            clocks.tokens += num_tokens
            clocks.flops += self.costs[self.progress.phase].train
            clocks.steps += 1
            by_secs = plan.clock == "secs"
            self.now = self.now + secs_per_step if by_secs else clocks.at(plan.clock)
        given = clocks.tokens - tokens, self.now - begun, float(self._rate), self.is_due(log_every)
        self._planned.append(_Planned(dataclasses.replace(clocks), *given))
        return rows, rates

    def settle(self, steps: Sequence[metrics.Pairs], secs: float) -> None:
        """Adds the metrics of a block that was waited for, and its seconds.

        Raises:
          exits.Stopped: loss or gradient were not finite; the run is closed as it was last saved.
        """
        planned, clocks = self._planned.popleft(), self.clocks
        clocks.secs += secs
        if self.plan.clock == "secs":
            self.now += secs - planned.advance
        for step, pairs in enumerate(steps, planned.clocks.steps - len(steps) + 1):
            if not pairs["finite"][0]:
                loss, norm = (float(pairs[name][0]) for name in ("loss", "grad_norm"))
                raise self._diverged(f"step {step} had loss {loss} and gradient norm {norm}")
        self._recent.append((secs, planned.tokens, len(steps)))
        total, tokens, count = map(sum, zip(*self._recent, strict=True))
        self.tokens_per_sec, self.steps_per_sec = tokens / total, count / total
        new = metrics.sum_pairs(steps)
        self.loss = metrics.divide(new)["loss"]
        metrics.add(self.progress.unlogged, new)
        if planned.logs:
            after, progress = dataclasses.replace(planned.clocks, secs=clocks.secs), self.progress
            more = {"learning_rate": planned.rate, "tokens_per_sec": self.tokens_per_sec}
            if self._writer is not None:
                self._writer.write_means(after, progress.unlogged, **more)
            progress.unlogged.clear()

    def is_due(self, num_steps: int) -> bool:
        """Whether an event is due that happens every `num_steps` and at the end of a phase."""
        return self.step % num_steps == 0 or self.phase_over

    def is_anything_due(self) -> bool:
        """Whether a validation or a checkpoint is due, for which all steps must have ended."""
        every = self.config.eval.every_steps, self.config.machine.checkpoint_every_steps
        return any(map(self.is_due, every)) or any(self.reached)

    @property
    def reached(self) -> Reached:
        """The marks that the last step reached."""
        (tokens, before), asked = self._before, self.config.eval.pairs_every_words
        words = range(0)
        if asked is not None:
            per_token = self.data.words_per_token
            last, now = (int(num * per_token) // asked for num in (tokens, self.clocks.tokens))
            words = range(last + 1, now + 1)
        shares = self.config.machine.kept_shares or ()
        shares = [share for share in shares if before < share * self.plan.total <= self.now]
        round_words = any(len(str(count).rstrip("0")) == 1 for count in words)
        return Reached(words, shares, bool(shares) or round_words)

    def validate_and_save(self, say: Callable[[str], object] = print) -> None:
        """Validates and saves, if these are due; no step may be in flight."""
        machine = self.config.machine
        if self.reached.words and self.judge is not None:
            say(self.judge())
        for share in self.reached.shares:  # `kept_step` of studies/jobs.py reads the step
            self.write_line({"eval/share": share})
        if self.is_due(self.config.eval.every_steps):
            if self._validation_secs > LONG_SECS:
                say(f"step {self.step}: validating, {self._validation_secs:.0f} s")
            say(self._validate())
        if self.is_due(machine.checkpoint_every_steps) or self.reached.is_kept:
            self.save()

    def _validate(self) -> str:
        """Validates at the length of the phase in progress, writes the metrics, and saves."""
        progress, length, begun = self.progress, self.phase.max_len, time.perf_counter()
        with timed(self.timers, "eval_secs"):
            assert self.program is not None
            sums = metrics.sum_pairs(self.program.evaluate(self.state))
            means = metrics.summarize_eval(sums, self.model.loss_weights, self.model.token_losses)
        self._validation_secs = time.perf_counter() - begun
        if not math.isfinite(means["loss"]):
            raise self._diverged(f"the validation after step {self.step} has loss {means['loss']}")
        progress.best = min(progress.best, means["loss"])
        facts = {"step": self.step, "best_loss": progress.best}
        progress.evals[str(length)] = means | facts | {"batch_size": self.phase.batch_size}
        self.write_line({f"eval/{k}": v for k, v in means.items()} | {"eval/max_len": length})
        self.save(rank=means["loss"] - LATER_PHASE * progress.phase)
        found = ", ".join(f"{k} {v:.4g}" for k, v in means.items())
        return f"step {self.step}: validation at length {length}: {found}"

    def _diverged(self, found: str) -> exits.Stopped:
        """Closes the run as it was last saved, and returns the error."""
        self.close()
        return exits.Stopped(
            f"not finite: {found}. The parameters of step {self.checkpoints.steps()[-1]} are kept"
            f" in {self.workdir}/checkpoints; start in a new workdir, usually with a lower"
            " --config.optim.learning_rate"
        )

    def write_line(self, values: dict[str, float]) -> None:
        """Writes a line of metrics.jsonl."""
        if self._writer is not None:
            self._writer.write(self.clocks, values)

    def save(self, rank: float | None = None) -> None:
        """Saves a checkpoint; no step may be in flight.

        Args:
          rank: the lower the better; the best is kept beside the last ones.
        """
        if self._writer is not None:
            self.progress.num_lines = self._writer.num_lines
        with timed(self.timers, "save_secs"):
            state, values = self.state.replace(frozen={}), dataclasses.asdict(self.progress)
            self.checkpoints.save(state, values, rank, keep=self.reached.is_kept)

    def close(self) -> None:
        """Waits until all is on disk."""
        self.checkpoints.close()
        if self._writer is not None:
            self._writer.close()

    def describe_progress(self, time_left: str) -> str:
        """Returns the progress line."""
        rate = self.steps_per_sec * self.costs[self.progress.phase].train / jax.device_count()
        mfu = f" | MFU {rate / self._peak:.0%}" if self._peak else ""
        return (
            f"{self.name} | step {self.step} ({self.done:.0%}) | loss {self.loss:.4f}"
            f" | {self.tokens_per_sec:,.0f} tokens/s{mfu} | ETA {time_left}"
        )
