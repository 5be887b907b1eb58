"""Durations: the budget of a run, its warm-up and the ends of its phases, on one clock."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scalelab.config.pretraining import Config, Optim

CLOCKS = ("steps", "tokens", "flops", "secs")


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long a run trains: `total` and `warmup` on `clock`, one of CLOCKS."""

    clock: str
    total: float
    warmup: float


def durations(optim: "Optim") -> tuple[str, float, float]:
    """Returns (clock or "epochs", total, warmup) of a config's fields.

    Raises:
      ValueError: not exactly one budget, or a warm-up on another clock.
    """
    totals = {c: getattr(optim, f"total_{c}") for c in ("epochs", *CLOCKS)}
    given = {c: v for c, v in totals.items() if v is not None}
    if len(given) != 1:
        fields = ", ".join(f"optim.total_{c}" for c in (given or totals))
        raise ValueError(f"exactly one budget must be set, got {len(given)} of: {fields}")
    clock, total = next(iter(given.items()))
    if total <= 0:
        raise ValueError(f"config.optim.total_{clock} must be positive, got {total}")
    warmups = {c: getattr(optim, f"warmup_{c}") for c in CLOCKS}
    warmups = {c: value for c, value in warmups.items() if value is not None}
    expected = "steps" if clock == "epochs" else clock
    if any(c != expected for c in warmups):
        raise ValueError(
            f"the budget is on the clock {clock!r}, so the warm-up must be optim.warmup_{expected};"
            f" got {', '.join('optim.warmup_' + c for c in warmups)}"
        )
    return clock, total, float(warmups.get(expected, 0))


def check_warmup(clock: str, total: float, warmup: float) -> None:
    """Refuses a warm-up that is as long as the budget or longer."""
    if warmup >= total:
        raise ValueError(
            f"config.optim.warmup_{clock} = {warmup:g} is not shorter than the budget of"
            f" {total:g} {clock}; set --config.optim.warmup_{clock} to less"
        )


def steps_of_epoch(config: "Config", steps_per_epoch: Sequence[float]) -> list[float]:
    """Returns the steps of each phase in one epoch of the first phase (long.epoch_rate)."""
    rate = 1.0 if config.long.epoch_rate is None else config.long.epoch_rate
    return [steps * times for steps, times in zip(steps_per_epoch, (1.0, rate), strict=False)]


def budget(config: "Config", steps_per_epoch: Sequence[float]) -> Budget:
    """Returns the run's budget on one clock; epochs become steps.

    Args:
      config: the run.
      steps_per_epoch: steps of each phase in one epoch of its own (Table 7.1 of the protocol).

    Raises:
      ValueError: the warm-up is longer than the budget.
    """
    clock, total, warmup = durations(config.optim)
    if clock == "epochs":
        whole = total * sum(steps_of_epoch(config, steps_per_epoch))
        clock, total = "steps", max(1, int(whole + 1e-6))  # 5 x 0.6 epochs are 3, not 2.999...
    check_warmup(clock, total, warmup)
    return Budget(clock, total, warmup)


def phase_ends(
    config: "Config", budget: Budget, steps_per_epoch: Sequence[float], step_costs: Sequence[float]
) -> list[float]:
    """Returns where each phase ends on the budget's clock.

    The phases share the steps as their examples do: with a budget of epochs as in one epoch, with
    any other as (1 - e) / short batch to e / long batch for e = long.example_rate. The cost of a
    step turns these into shares of the budget. On the clock of seconds, both costs are equal, so
    the long phase gets somewhat fewer examples.

    Args:
      config: the run.
      budget: from `budget`.
      steps_per_epoch: of each phase, in an epoch of its own.
      step_costs: of one step of each phase on the clock, in any unit.
    """
    rate = config.long.example_rate
    if len(config.phases) == 1:
        return [budget.total]
    if config.optim.total_epochs is None:
        steps_per_epoch = (1 - rate) / config.short.batch_size, rate / config.long.batch_size
    short, long = steps_of_epoch(config, steps_per_epoch)
    short, long = short * step_costs[0], long * step_costs[1]
    end = budget.total * short / (short + long)
    return [float(round(end)) if budget.clock == "steps" else end, budget.total]


class Phase(Protocol):
    """The data of a phase (`data.phases.PhaseData`)."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one epoch of the phase."""
        ...

    @property
    def step_tokens(self) -> float:
        """Mean tokens of a batch, without padding."""
        ...


@dataclasses.dataclass(frozen=True)
class Plan(Budget):
    """A budget, and where each phase ends on its clock."""

    ends: tuple[float, ...]


def make_plan(config: "Config", phases: Sequence[Phase], step_flops: Sequence[float]) -> Plan:
    """Makes the plan of a run.

    Args:
      config: the run.
      phases: from `data.load_data`.
      step_flops: of one training step of each phase.

    Raises:
      ValueError: the warm-up is longer than the budget.
    """
    steps_per_epoch = [phase.steps_per_epoch for phase in phases]
    found = budget(config, steps_per_epoch)
    costs = step_costs(found.clock, phases, step_flops)
    ends = phase_ends(config, found, steps_per_epoch, costs)
    return Plan(found.clock, found.total, found.warmup, tuple(ends))


def step_costs(clock: str, phases: Sequence[Phase], step_flops: Sequence[float]) -> list[float]:
    """Returns the cost of one step of each phase on a clock, in any unit; in seconds 1 for each."""
    if clock == "tokens":
        return [phase.step_tokens for phase in phases]
    return list(step_flops) if clock == "flops" else [1.0] * len(phases)
