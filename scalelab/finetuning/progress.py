"""The progress of a seed of a fine-tuning, early stopping, and the checkpoints of its group."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from scalelab.config.pretraining import science_diff
from scalelab.runs import metrics
from scalelab.runs.metrics import Clocks


@dataclasses.dataclass
class Progress:
    """How far a seed has come, beside its parameters; plain JSON in checkpoints.

    Attributes:
      clocks: its clocks.
      totals: (sum, weight) pairs of the steps that are not logged yet.
      epoch: (sum, weight) of the training loss of each step of the last epoch, newest last.
      evals: the evaluations: {"step", "dev": {split: {metric: value}}}.
      best: index in `evals` of the best one.
      stopped: step at which early stopping ended it; None: it did not.
      failed: the reason of a failure; None: there is none.
      over: whether it takes no more steps: an evaluation found it stopped or failed.
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
    def from_json(cls, values: dict[str, Any]) -> "Progress":
        """Reverses dataclasses.asdict."""
        return cls(**values | {"clocks": Clocks(**values["clocks"])})

    def add(self, pairs: metrics.Pairs, step: int, steps_per_epoch: int) -> None:
        """Adds the (sum, weight) pairs of a step that has ended at or before `step`."""
        if not pairs["finite"][0] and self.failed is None:
            self.failed = f"loss or gradient not finite at or before step {step}"
        metrics.add(self.totals, pairs)
        self.epoch.append((float(pairs["loss"][0]), float(pairs["loss"][1])))
        del self.epoch[:-steps_per_epoch]

    def loss(self, num_steps: int) -> float | None:
        """Returns the mean training loss over the last `num_steps` steps, an epoch at most."""
        pairs = self.epoch[-num_steps:]
        return sum(s for s, _ in pairs) / sum(w for _, w in pairs) if pairs else None

    def judge(
        self, step: int, dev: dict[str, Any], score: Callable[[Any], float], patience: int | None
    ) -> bool:
        """Records an evaluation, and stops the seed if it is due.

        Args:
          step: steps taken.
          dev: split -> metric -> value.
          score: dev -> the number that is compared.
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


# --- Checkpoints of seeds that train in one program: WORKDIR/.resume-0-1 ----------------


def check_same(directory: pathlib.Path, before: Sequence[Any], now: Sequence[Any]) -> None:
    """Refuses a checkpoint that runs with other configs left."""
    for config, other in zip(now, before, strict=True):
        differing = science_diff(config, other)
        if differing:
            raise ValueError(
                f"{directory} has a checkpoint of a run with another config; choose another"
                " --workdir, remove that folder, or undo:\n  " + "\n  ".join(differing)
            )


def warn_of_other_checkpoints(
    workdir: pathlib.Path, seeds: Sequence[int], directory: pathlib.Path, name: str
) -> None:
    """Notes seeds whose steps lie in a checkpoint of other seeds, which does not fit."""
    for folder in workdir.glob(".resume-*"):
        again = sorted(_seeds_in(folder) & set(seeds))
        if again and folder != directory:
            print(
                f"note: {name} begins at step 0, and {folder} has steps of seed"
                f" {', '.join(map(str, again))} that trained in another group; to continue them use"
                " the --seeds_together of that start"
            )


def remove_checkpoints(workdir: pathlib.Path) -> None:
    """Removes every checkpoint with a finished seed: it can serve no later start."""
    for folder in workdir.glob(".resume-*"):
        if any((workdir / f"seed{seed}" / "result.json").exists() for seed in _seeds_in(folder)):
            shutil.rmtree(folder)


def _seeds_in(folder: pathlib.Path) -> set[int]:
    """Returns the seeds of a checkpoint, from the name of its folder."""
    return set(map(int, folder.name.split(".")[1].split("-")[1:]))
