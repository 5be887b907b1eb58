"""The progress of a seed of a fine-tuning, early stopping, and the checkpoints of its group."""

import dataclasses
import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalelab.config.fields import science
from scalelab.finetuning.rows import NamedRows
from scalelab.runs import metrics
from scalelab.runs.metrics import Clocks


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
    num_lines: int = 0  # of metrics.jsonl

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
        weight = sum(w for _, w in pairs)  # 0: none of the questions has its answer in the context
        return sum(s for s, _ in pairs) / weight if weight else None

    def judge(
        self, step: int, dev: dict[str, Any], score: Callable[[Any], float], patience: int | None
    ) -> bool:
        """Records an evaluation; returns whether it is the best so far.

        Stops the seed after `patience` evaluations without a better score; None: never.
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


# --- Checkpoints of seeds that train in one program: WORKDIR/.resume-0-1.<digest> ----------------


def checkpoint_folder(
    workdir: pathlib.Path, seeds: Sequence[int], config: Mapping[str, Any], rows: NamedRows | None
) -> pathlib.Path:
    """Returns the folder of the checkpoints of seeds; another config or token table has another."""
    fields = science(config) | {"seed": None}
    content = json.dumps([fields, None if rows is None else rows.size], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return workdir / f".resume-{'-'.join(map(str, seeds))}.{digest}"


def describe_unused(workdir: pathlib.Path, seeds: Sequence[int], used: pathlib.Path) -> list[str]:
    """Returns a note for each folder with checkpoints of these seeds that cannot be continued."""
    notes = []
    for folder in sorted(set(workdir.glob(".resume-*")) - {used}):
        names = folder.name.split(".")[1].split("-")[1:]
        steps = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
        if steps and {*map(str, seeds)} & {*names}:
            notes.append(
                f"note: {folder} keeps step {max(steps)} of seed {','.join(names)}, saved with"
                " another --seeds_together or config; it is not continued"
            )
    return notes


def remove_checkpoints(workdir: pathlib.Path) -> None:
    """Removes every checkpoint with a finished seed: it can serve no later start."""
    for folder in workdir.glob(".resume-*"):
        seeds = folder.name.split(".")[1].split("-")[1:]
        if any((workdir / f"seed{seed}" / "result.json").exists() for seed in seeds):
            shutil.rmtree(folder)
