"""How far a seed of a fine-tuning has come, and whether it goes on."""

import dataclasses
from collections.abc import Callable
from typing import Any

from scalelab.runs.clocks import Clocks


@dataclasses.dataclass
class Course:
    """How far a seed has come, beside its parameters; plain json in checkpoints.

    Attributes:
      clocks: its clocks.
      totals: (sum, weight) pairs of the steps not yet logged.
      epoch: (sum, weight) of the training loss of each step of the last epoch, newest last.
      evals: what each evaluation found: {"step", "dev": {split: {metric: value}}}.
      best: index in `evals` of the best one.
      stopped: step after which early stopping ended it; None: still going.
      failed: what went wrong; None: nothing.
      over: whether nothing more is done for it: it has ended, and an evaluation noticed.
    """

    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    totals: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    epoch: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    evals: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: int | None = None
    stopped: int | None = None
    failed: str | None = None
    over: bool = False

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Course":
        """What dataclasses.asdict made."""
        return cls(**values | {"clocks": Clocks(**values["clocks"])})

    def loss(self, num_steps: int) -> float | None:
        """Mean training loss over the examples of the last so many steps of an epoch at most."""
        pairs = self.epoch[-num_steps:]
        return sum(s for s, _ in pairs) / sum(w for _, w in pairs) if pairs else None

    def judge(
        self, step: int, dev: dict[str, Any], score: Callable[[Any], float], patience: int | None
    ) -> bool:
        """Notes an evaluation.

        Args:
          step: after which.
          dev: split -> metric -> value.
          score: dev -> the number that decides.
          patience: evaluations without a better score after which to stop; None: never.

        Returns:
          Whether it is the best so far.
        """
        self.evals.append({"step": step, "dev": dev})
        self.over = self.failed is not None
        last = len(self.evals) - 1
        if self.best is None or score(dev) > score(self.evals[self.best]["dev"]):
            self.best = last
            return True
        if patience and last - self.best >= patience:
            self.stopped, self.over = step, True
        return False
