"""One run in its folder while it trains: clocks, metrics, validation, checkpoints, result."""

import math
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from scalelab import build, sharding, systems
from scalelab.config import durations
from scalelab.config.pretraining import Config, science
from scalelab.data import Data
from scalelab.data.batches import Batches
from scalelab.helpers import files
from scalelab.lab import curves
from scalelab.resources import flops
from scalelab.runs import checkpoint, metrics, run_folder
from scalelab.training.setup import Setup

LATER_PHASE = 1e6  # lengths do not compare: in the ranking of checkpoints a later one is better


class Recorder:
    """Begins a run, or continues it from the newest sound checkpoint of its folder.

    Args:
      setup: what the run shares with those that train together with it.
      config: of the run.
      data: its examples.
      workdir: its folder.

    Attributes:
      config: of the run.
      workdir: its folder.
      run: what changes while it trains.
      placed: shardings of its state.
      name: what messages call it.
      budget: how long it trains.
      now: how far it is, on the budget's clock.
      window: its steps under way.
      timers: seconds beside training.
      failed: why it cannot go on; None: it can.

    Raises:
      ValueError: the folder does not allow it.
    """

    def __init__(self, setup: Setup, config: Config, data: Data, workdir: pathlib.Path) -> None:
        self._setup, self.config, self.workdir, self._data = setup, config, workdir, data
        self.name = build.name(config)
        self.failed: str | None = None
        steps_per_epoch = [phase.steps_per_epoch for phase in data.phases]
        self.budget = durations.budget(config, steps_per_epoch)
        if self.budget.clock == "secs" and jax.process_count() > 1:
            raise ValueError("a budget in seconds needs one process: the clocks of several differ")
        fresh, self.placed = setup.fresh(config.seed)
        self._costs = [
            build.step_flops(
                config, setup.system, setup.objectives, fresh.params, p.batch_size, p.max_len
            )
            for p in data.phases
        ]
        step_costs = build.costs_on_clock(self.budget.clock, data.phases, self._costs)
        self._ends = durations.phase_ends(config, self.budget, steps_per_epoch, step_costs)
        self._checkpoints = checkpoint.Checkpoints(
            workdir / "checkpoints", config.machine.num_checkpoints
        )
        self.run = self._restored(fresh)
        self.now = self.run.clocks.at(self.budget.clock)
        self._rate = np.float32(0)
        self._num_params = flops.count_parameters(self.run.state.params)
        self.window = metrics.Window(self.run.clocks, self.run.unlogged)
        self.timers = {f"{what}_secs": 0.0 for what in ("setup", "compile", "eval", "save")}
        self._writer: metrics.Writer | None = None
        if setup.chief:
            self._writer = metrics.Writer(workdir, self.run.clocks.steps)
            run_folder.describe(workdir, config)
            if data.tokenizer_dir.resolve() != (workdir / "tokenizer").resolve():
                shutil.copytree(data.tokenizer_dir, workdir / "tokenizer", dirs_exist_ok=True)

    def _restored(self, fresh: Any) -> checkpoint.Run:
        restored = self._checkpoints.restore(fresh)
        fingerprints = [phase.train.fingerprint() for phase in self._data.phases]
        data = "-".join([self._data.corpus_hash[:12], *fingerprints])
        if restored is None:
            start = self._setup.start
            if start is not None and start.opened is None:
                raise ValueError(
                    f"no checkpoint in {self.workdir} is sound, and {start.path}, whose parameters"
                    " it began with, was not read: delete the folder and start again with --init"
                )
            return checkpoint.Run(fresh, data=data, initialised=list(start.fresh if start else ()))
        run = checkpoint.Run.from_meta(*restored)
        if run.data != data:
            raise ValueError(
                f"the run in {self.workdir} was trained on other examples ({run.data}) than its"
                f" config gives now ({data}): the corpus or the code of its format has changed; go"
                " on with what it had, or start in a new --workdir"
            )
        return run

    def facts(self) -> dict[str, str]:
        """What it says of itself at its start."""
        return build.describe(
            self.config, self._data, self._costs, self._num_params, self.budget, self._ends
        )

    # --- Where it is ----------------

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.now >= self.budget.total

    @property
    def phase_over(self) -> bool:
        """Whether the phase in progress is."""
        return self.now >= self._ends[self.run.phase]

    @property
    def done(self) -> float:
        """The share of the budget that is done."""
        return self.now / self.budget.total

    @property
    def phase(self) -> Any:
        """The data of the phase in progress."""
        return self._data.phases[self.run.phase]

    @property
    def flops_per_sec(self) -> float:
        """Of training, over the last settled steps."""
        return self.window.steps_per_sec * self._costs[self.run.phase].train

    def last_step(self) -> int | None:
        """The step at which the phase in progress ends; None: not known before."""
        return int(self._ends[self.run.phase]) if self.budget.clock == "steps" else None

    def enter_phase(self) -> None:
        """Goes on to the next phase where one is over; a run may also continue from there."""
        while self.phase_over and not self.over:
            self.run.phase += 1
            self.run.phase_start, self.run.best = self.run.clocks.steps, math.inf

    def batches(self) -> Callable[[int], dict[str, np.ndarray]]:
        """Begins, or continues, the phase in progress: step of the run -> batch."""
        phase, start = self.phase, self.run.phase_start
        rows = sharding.host_rows(self._setup.mesh, phase.batch_size)
        order = self.config.data.order_seed
        seed = self.config.seed if order is None else order
        made = Batches(phase.train, phase.batch_size, phase.max_len, seed, rows)
        self._num_tokens = lambda step: made.num_tokens(step - start)
        return lambda step: made(step - start)

    # --- A step ----------------

    def rate(self) -> np.float32:
        """The learning rate of the next step."""
        factor = self._setup.schedule(self.now, self.budget.warmup, self.budget.total)
        self._rate = np.float32(self.config.optim.learning_rate * factor)
        return self._rate

    def stepped(self, pairs: metrics.Pairs) -> None:
        """Advances the clocks by a step that was started.

        Args:
          pairs: its metrics, of all the runs that train together.
        """
        now = self.run.clocks
        now.tokens += self._num_tokens(now.steps)
        now.flops += self._costs[self.run.phase].train
        now.steps += 1
        self.window.add(now.steps, pairs)
        clock = self.budget.clock
        self.now = self.window.secs() if clock == "secs" else now.at(clock)

    def settle(self) -> None:
        """Waits for the steps under way; a loss that is not finite ends the run, as it was saved.

        Nothing is written from then on.
        """
        if self.failed is not None:
            return
        try:
            self.window.settle()
        except FloatingPointError as error:
            self.failed = (
                f"not finite: {error}. The parameters of step {self._checkpoints.steps()[-1]} are"
                f" kept in {self.workdir}/checkpoints;"
                " a lower --config.optim.learning_rate in a new workdir is what usually helps"
            )
            self._close()

    def log(self) -> None:
        """Writes the means of what was settled and not yet written."""
        means = self.window.take()
        if self._writer is not None and means:
            rate = {
                "train/learning_rate": float(self._rate),
                "train/tokens_per_sec": self.window.tokens_per_sec,
            }
            self._writer.write(self.run.clocks, {f"train/{k}": v for k, v in means.items()} | rate)

    def evaluated(self, means: dict[str, float]) -> str:
        """Notes a validation and saves; returns it in words."""
        run, length = self.run, self.phase.max_len
        run.best = min(run.best, means["loss"])
        run.evals[str(length)] = means | {"step": run.clocks.steps, "best_loss": run.best}
        if self._writer is not None:
            values = {f"eval/{k}": v for k, v in means.items()}
            self._writer.write(run.clocks, values | {"eval/max_len": length})
        self.save(rank=means["loss"] - LATER_PHASE * run.phase)
        found = ", ".join(f"{k} {v:.4g}" for k, v in means.items())
        return f"step {run.clocks.steps}: validation at length {length}: {found}"

    def save(self, rank: float | None = None) -> None:
        """Saves a checkpoint; nothing may be under way.

        Args:
          rank: the lower the better; the best is kept beside the last ones.
        """
        with metrics.timed(self.timers, "save_secs"):
            self._checkpoints.save(self.run.state, self.run.meta(), rank)

    # --- The end ----------------

    def _close(self) -> None:
        self._checkpoints.close()
        if self._writer is not None:
            self._writer.close()

    def close(self) -> None:
        """Waits until all is on disk, and draws the curves."""
        self._close()
        if self._writer is not None:
            curves.draw(self.workdir, self.name)

    def _origin(self) -> dict[str, Any]:
        """Whose parameters it began with, in the words of a fine-tuning's result."""
        start = self._setup.start
        if start is None:
            return {}
        init, digest = self.config.machine.init, self.config.init
        return {"init": init, "init_digest": digest, "initialised": list(self.run.initialised)}

    def finish(self) -> dict[str, Any]:
        """Writes result.json, and returns its content."""
        data, system = self._data, self._setup.system
        result = run_folder.result(
            self.config,
            self.run.clocks,
            self.run.evals,
            {
                "params": self._num_params,
                "data_hash": data.corpus_hash,
                "unigram_nats": data.unigram_nats,
                "corpus": {"documents": data.num_documents, "tokens": data.num_tokens},
                "phases": [
                    {
                        "max_len": phase.max_len,
                        "examples": len(phase.train),
                        "tokens": phase.train.meta["num_tokens"],
                    }
                    for phase in data.phases
                ],
                "departures": systems.active_departures(system.DEPARTURES, science(self.config)),
            }
            | self._origin()
            | self.timers,
        )
        if self._setup.chief:
            files.write_json(self.workdir / "result.json", result)
        return result
