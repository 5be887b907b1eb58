"""The progress of a seed of a fine-tuning, early stopping, and where its checkpoints lie."""

import dataclasses
import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from scalelab.records import metrics
from scalelab.records.metrics import Clocks


@dataclasses.dataclass
class Progress:
    """How far a seed has come, beside its parameters; plain JSON in checkpoints."""

    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    # (sum, weight) pairs of the steps that are not logged yet.
    totals: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    # (sum, weight) of the training loss of each step of the last epoch, newest last.
    epoch: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    # The evaluations: {"step", "dev": {split: {metric: value}}}.
    evals: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: int | None = None  # index in `evals` of the best one
    stopped: int | None = None  # step at which early stopping ended it; None: it did not
    failed: str | None = None  # the reason of a failure
    over: bool = False  # an evaluation found it stopped or failed: it takes no more steps
    num_lines: int = 0  # lines of metrics.jsonl

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Progress":
        """Reverses dataclasses.asdict."""
        return cls(**values | {"clocks": Clocks(**values["clocks"])})

    def fail(self, reason: str) -> None:
        """Ends the seed as failed."""
        self.failed, self.over = reason, True

    def add(self, pairs: metrics.Pairs, steps_per_epoch: int) -> None:
        """Adds the (sum, weight) pairs of a step."""
        metrics.add(self.totals, pairs)
        self.epoch.append((float(pairs["loss"][0]), float(pairs["loss"][1])))
        del self.epoch[:-steps_per_epoch]

    def loss(self, num_steps: int) -> float | None:
        """Returns the mean training loss over the last `num_steps` steps, an epoch at most."""
        pairs = self.epoch[-num_steps:]
        weight = sum(w for _, w in pairs)  # 0: none of the questions has its answer in the context
        return sum(s for s, _ in pairs) / weight if weight else None

    def judge(
        self, step: int, dev: dict[str, Any], score: Callable[[Any], float], patience: int | None
    ) -> bool:
        """Records an evaluation; returns whether it is the best so far.

        Args:
          step: training steps taken.
          dev: split -> metric -> score.
          score: the number of `dev` to compare, higher is better.
          patience: the seed stops after so many evaluations without a better score; None: never.
        """
        self.evals.append({"step": step, "dev": dev})
        last = len(self.evals) - 1
        if self.best is None or score(dev) > score(self.evals[self.best]["dev"]):
            self.best = last
            return True
        if patience and last - self.best >= patience:
            self.stopped, self.over = step, True
        return False


# --- Checkpoints while a seed trains: WORKDIR/.resume-0.<digest> ----------------

VERSION = 3  # version of the checkpoints' content


def checkpoint_folder(workdir: pathlib.Path, seed: int, settings: object) -> pathlib.Path:
    """Returns the folder of a seed's checkpoints; other settings have another."""
    content = json.dumps([settings, VERSION], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return workdir / f".resume-{seed}.{digest}"


def describe_unused(workdir: pathlib.Path, seed: int, used: pathlib.Path) -> list[str]:
    """Returns a note for each folder with checkpoints of this seed that cannot be continued."""
    notes = []
    for folder in sorted(set(workdir.glob(f".resume-{seed}.*")) - {used}):
        steps = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
        if steps:
            notes.append(
                f"note: {folder} keeps step {max(steps)} of seed {seed}, saved with another config"
                " or version; it is not continued"
            )
    return notes


def remove_checkpoints(workdir: pathlib.Path, seed: int) -> None:
    """Removes the checkpoints of a finished seed: they can serve no later start."""
    for folder in workdir.glob(f".resume-{seed}.*"):
        shutil.rmtree(folder)
