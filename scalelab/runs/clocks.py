"""Clocks: steps, tokens, FLOPs, seconds. Each can be budget, schedule time and a plot's axis."""

import dataclasses
from collections.abc import Sequence
from typing import Any


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
        """The reading of one clock, by its name in config.durations.CLOCKS."""
        return float(getattr(self, clock))


def step_costs(clock: str, phases: Sequence[Any], flops: Sequence[float]) -> list[float]:
    """What a step of each phase costs on a clock, in any unit; in seconds nobody knows yet: 1.

    Args:
      clock: one of CLOCKS.
      phases: from `data.load_data`.
      flops: of a training step of each.
    """
    if clock == "tokens":
        return [p.batch_size * p.train.meta["num_tokens"] / len(p.train) for p in phases]
    return list(flops) if clock == "flops" else [1.0] * len(phases)
