"""Clocks: steps, tokens, FLOPs, seconds. Each can be budget, schedule time and a plot's axis."""

import dataclasses


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
