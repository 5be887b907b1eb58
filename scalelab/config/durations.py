"""Durations: the budget of a run, its warm-up and the ends of its phases, on one clock."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scalelab.config.pretraining import Config, Optim


class Clock(NamedTuple):
    """The names of a clock; its name in configs is its key in CLOCKS."""

    logged: str  # in metrics.jsonl
    result: str  # in result.json
    label: str  # on axes and in sentences


CLOCKS = {
    "steps": Clock("step", "steps", "steps"),
    "tokens": Clock("tokens", "tokens", "tokens"),
    "flops": Clock("flops", "flops", "training FLOPs"),
    "secs": Clock("seconds", "seconds", "seconds of training"),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a run trains, on one clock."""

    clock: str  # one of CLOCKS
    total: float
    warmup: float
    ends: tuple[float, ...]  # where each phase ends
    costs: tuple[float, ...]  # cost of a step of each phase; 1 on the clocks of steps and seconds


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
    warmups = {c: getattr(optim, f"warmup_{c}") for c in CLOCKS}
    warmups = {c: value for c, value in warmups.items() if value is not None}
    expected = "steps" if clock == "epochs" else clock
    if any(c != expected for c in warmups):
        raise ValueError(
            f"the budget is in {clock}, so the warm-up must be optim.warmup_{expected};"
            f" got {', '.join('optim.warmup_' + c for c in warmups)}"
        )
    warmup = float(warmups.get(expected, 0))
    if clock != "epochs":
        _check_warmup(clock, total, warmup)
    return clock, total, warmup


def _check_warmup(clock: str, total: float, warmup: float) -> None:
    if warmup >= total:
        raise ValueError(
            f"config.optim.warmup_{clock} = {warmup:g} is not shorter than the budget of"
            f" {total:g} {clock}; set --config.optim.warmup_{clock} to less"
        )


def steps_of_epoch(config: "Config", steps_per_epoch: Sequence[float]) -> list[float]:
    """Returns the steps of each phase in one epoch of the first phase (long.epoch_rate).

    Args:
      config: config of the pre-training.
      steps_per_epoch: for each phase, the steps of one pass over its own examples.
    """
    rate = 1.0 if config.long.epoch_rate is None else config.long.epoch_rate
    return [steps * times for steps, times in zip(steps_per_epoch, (1.0, rate), strict=False)]


def make_plan(
    config: "Config", steps_per_epoch: Sequence[float], step_costs: Mapping[str, Sequence[float]]
) -> Plan:
    """Makes the plan of a run: epochs become steps, and the phases share the budget.

    The phases share the steps as their examples do: with a budget of epochs as in one epoch, with
    any other as (1 - e) / short batch to e / long batch for e = long.example_rate. The cost of a
    step turns these into shares of the budget. On the clock of seconds, both costs are equal, so
    the long phase gets somewhat fewer examples.

    Args:
      config: the run.
      steps_per_epoch: of each phase in one epoch of its own (Table 7.1 of the protocol).
      step_costs: clock -> cost of one step of each phase, where that is not 1.

    Raises:
      ValueError: the warm-up is longer than the budget, or a step costs nothing of it.
    """
    clock, total, warmup = durations(config.optim)
    shares = steps_per_epoch
    if clock == "epochs":
        steps = total * sum(steps_of_epoch(config, steps_per_epoch))
        clock, total = "steps", max(1, int(steps + 1e-6))  # 5 x 0.6 epochs are 3, not 2.999...
        _check_warmup(clock, total, warmup)
    else:
        rate = config.long.example_rate
        shares = (1 - rate) / config.short.batch_size, rate / config.long.batch_size
    costs = tuple(step_costs.get(clock, [1.0] * len(config.phases)))
    if not all(costs):
        raise ValueError(
            f"the budget is in {clock}, and a step of {config.system} has none: set"
            " --config.optim.total_steps or total_tokens in place of it"
        )
    ends = (total,)
    if len(config.phases) == 2:
        short, long = (
            n * cost for n, cost in zip(steps_of_epoch(config, shares), costs, strict=False)
        )
        end = total * short / (short + long)
        ends = (float(round(end)) if clock == "steps" else end, total)
    return Plan(clock, total, warmup, ends, costs)
