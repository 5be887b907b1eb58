"""The clocks of a run (steps, tokens, FLOPs, seconds), what else changes in it, and its plan.

Each clock can be the budget, the time of the schedule and the axis of a plot.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from scalelab.config.durations import budget, phase_ends
from scalelab.config.pretraining import Config
from scalelab.resources.flops import PARTS, Flops, Phase


@dataclasses.dataclass
class Clocks:
    """How far a run has come on each clock.

    Attributes:
      steps: optimizer steps.
      tokens: real (non-padding) input tokens.
      flops: of training, analytic (flops.py).
      secs: of training alone; compilation, evaluation and checkpoints are not in it.
    """

    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    secs: float = 0.0

    def at(self, clock: str) -> float:
        """Returns the reading of a clock, by its name in config.durations.CLOCKS."""
        return float(getattr(self, clock))


@dataclasses.dataclass
class Run:
    """What changes while a run trains; a checkpoint holds all of it.

    Attributes:
      state: the TrainState, on the devices.
      clocks: how far it has come.
      phase: index of the phase in progress.
      phase_start: the step at which that phase began.
      best: lowest validation loss of the phase in progress.
      evals: the last validation of each phase, by its length in tokens.
      data: fingerprint of the training examples.
      unlogged: (sum, weight) of each metric since the last logged line.
      initialised: names of the parameters that the run it began with had not.
      num_lines: lines of metrics.jsonl so far; None in checkpoints of older versions.
    """

    state: Any
    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    phase: int = 0
    phase_start: int = 0
    best: float = math.inf
    evals: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    data: str = ""
    unlogged: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    initialised: list[str] = dataclasses.field(default_factory=list)
    num_lines: int | None = 0

    def meta(self) -> dict[str, Any]:
        """Returns everything but the state, as plain JSON."""
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "state"
        }
        return fields | {"clocks": dataclasses.asdict(self.clocks), "best": repr(self.best)}

    @classmethod
    def from_meta(cls, state: Any, meta: dict[str, Any]) -> "Run":
        """Builds the run from its state and what `meta` returned."""
        absent = {"initialised": [], "num_lines": None}  # in checkpoints of older versions
        names = {f.name for f in dataclasses.fields(cls)} - {"state"}
        values = {name: meta[name] for name in names if name in meta or name not in absent}
        clocks, best = Clocks(**meta["clocks"]), float(meta["best"])
        return cls(state, **(absent | values | {"clocks": clocks, "best": best}))


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a run trains, and what its steps cost.

    Attributes:
      clock: one of CLOCKS; `total`, `warmup` and `ends` are on it.
      total: the budget.
      warmup: of the learning rate.
      ends: where each phase ends.
      flops: of one step of each phase.
    """

    clock: str
    total: float
    warmup: float
    ends: tuple[float, ...]
    flops: tuple[Flops, ...]

    def describe(self, phases: Sequence[Phase]) -> dict[str, str]:
        """Returns steps, batch and cost of each phase, for the start of a run."""
        lines, start = {}, 0.0
        for phase, cost, end in zip(phases, self.flops, self.ends, strict=True):
            shares = (f"{part} {getattr(cost, part) / cost.forward:.0%}" for part in PARTS)
            lines[f"length {phase.max_len}"] = (
                f"{end - start:,.0f} {self.clock} of batch {phase.batch_size};"
                f" {phase.steps_per_epoch:,} steps an epoch;"
                f" {cost.train / 1e9:,.1f} GFLOP a step: {', '.join(shares)}"
            )
            start = end
        return lines


def make_plan(config: Config, phases: Sequence[Phase], flops: Sequence[Flops]) -> Plan:
    """Makes the plan of a run from its budget.

    Args:
      config: of the run.
      phases: from `data.load_data`.
      flops: of one step of each phase.

    Raises:
      ValueError: the warm-up is longer than the budget.
    """
    steps_per_epoch = [phase.steps_per_epoch for phase in phases]
    found = budget(config, steps_per_epoch)
    costs = step_costs(found.clock, phases, [cost.train for cost in flops])
    ends = phase_ends(config, found, steps_per_epoch, costs)
    return Plan(found.clock, found.total, found.warmup, tuple(ends), tuple(flops))


def step_costs(clock: str, phases: Sequence[Phase], flops: Sequence[float]) -> list[float]:
    """Returns what a step of each phase costs on a clock, in any unit; in seconds, not known: 1.

    Args:
      clock: one of CLOCKS.
      phases: from `data.load_data`.
      flops: of a training step of each.
    """
    if clock == "tokens":
        return [phase.step_tokens for phase in phases]
    return list(flops) if clock == "flops" else [1.0] * len(phases)
