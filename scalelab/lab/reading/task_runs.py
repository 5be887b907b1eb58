"""Reads what fine-tunings leave: WORKDIR/<task>/seed<k>, or WORKDIR/seed<k> of one task.

Each holds result.json and, for each dev split, predictions.tsv (predictions-<split>.tsv after the
first), or that packed as predictions.npz (compact.py). A run that is not finished, or failed, is
read as such, never left out.
"""

import dataclasses
import json
import math
import pathlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalelab.lab import scores
from scalelab.lab.reading import predictions
from scalelab.lab.reading.run_files import is_finite

# The nine tasks in the order of GLUE's own table (Wang et al. 2019, arXiv:1804.07461).
TITLES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
}
# Rows of their dev sets, by split.
DEV_SIZES = {
    "cola": {"dev": 1043},
    "sst2": {"dev": 872},
    "mrpc": {"dev": 408},
    "stsb": {"dev": 1500},
    "qqp": {"dev": 40430},
    "mnli": {"matched": 9815, "mismatched": 9832},
    "qnli": {"dev": 5463},
    "rte": {"dev": 277},
    "wnli": {"dev": 71},
}
SHORT = {"matched": "MNLI-m", "mismatched": "MNLI-mm"}
FROM_SCRATCH = (None, "none")  # what `init` says of random weights
TOLERANCE = 1e-6  # of scores that float32 outputs give on one machine and another


@dataclasses.dataclass(frozen=True, eq=False)
class SeedRun:
    """One fine-tuning.

    Attributes:
      folder: its run folder.
      seed: its seed.
      result: the content of result.json; empty if there is none yet.
      scores: {(split, metric): value}, in the task's order; empty unless it is finished.
      unfinished: whether it has left no result yet.
      failed: what went wrong; None: nothing.
    """

    folder: pathlib.Path
    seed: int
    result: dict[str, Any]
    scores: dict[tuple[str, str], float]
    unfinished: bool = False
    failed: str | None = None

    @property
    def finished(self) -> bool:
        """Whether it has scores."""
        return not self.unfinished and self.failed is None

    @property
    def from_scratch(self) -> bool:
        """Whether it began with random weights."""
        return self.result.get("init") in FROM_SCRATCH

    @property
    def weights(self) -> str | None:
        """What tells the weights that it began with from others; None for random ones."""
        return None if self.from_scratch else self.result.get("init_digest") or self.result["init"]

    @property
    def settings(self) -> dict[str, Any]:
        """How it was adapted: field -> value, as far as its result tells."""
        found = self.result.get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def chosen(self) -> dict[str, Any]:
        """The fields, with their values, that a grid chose on dev; none without a grid."""
        found = self.result.get("chosen")
        return found if isinstance(found, dict) else {}

    def predictions(self, split: str) -> predictions.Predictions:
        """What it predicted on a dev split.

        Raises:
          ValueError: the file is not whole, or does not give the scores of result.json.
          OSError: it cannot be read.
        """
        splits = list(dict.fromkeys(name for name, _ in self.scores))
        ending = f"-{split}" if splits.index(split) else ""
        path = self.folder / f"predictions{ending}.tsv"
        packed = path.with_suffix(".npz")
        path = packed if packed.exists() and not path.exists() else path
        found = predictions.read(path)
        for (name, metric), value in self.scores.items():
            if name == split:
                again = scores.METRICS[metric](found.gold, found.predicted)
                if not math.isclose(again, value, abs_tol=TOLERANCE):
                    raise ValueError(
                        f"{path} has {metric} {again:.6f}, but result.json beside it {value:.6f}"
                    )
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class TaskRuns:
    """The fine-tunings of one net on one task, by seed.

    Attributes:
      name: of the task.
      runs: every seed's.
    """

    name: str
    runs: tuple[SeedRun, ...]

    @property
    def title(self) -> str:
        """The task in tables."""
        return TITLES.get(self.name, self.name)

    @property
    def finished(self) -> list[SeedRun]:
        """The runs that have scores."""
        return [run for run in self.runs if run.finished]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Pairs of split and metric that the task is scored by, the main one first."""
        return list(self.finished[0].scores) if self.finished else []

    def values(self, key: tuple[str, str]) -> list[float]:
        """The scores of the finished seeds."""
        return [run.scores[key] for run in self.finished]


def read(workdir: pathlib.Path, *, tolerant: bool = False) -> dict[str, TaskRuns]:
    """Reads all fine-tunings in a folder, those from scratch beside them left out.

    Args:
      workdir: the folder.
      tolerant: reads one whose result.json is damaged, or of another task or other metrics than
        the rest, as a failed one, where otherwise nothing is read.

    Returns:
      Task -> its runs: GLUE's nine in GLUE's order, then others by name.

    Raises:
      ValueError: it is no folder, holds no fine-tuning, or runs of one task in two ways.
    """
    if not workdir.is_dir():
        raise ValueError(f"no such folder: {workdir}")
    folders = [workdir] if _seeds(workdir) else sorted(p for p in workdir.iterdir() if _seeds(p))
    if not folders:
        raise ValueError(f"{workdir} holds no fine-tuning: expected <task>/seed0 or seed0 in it")
    found = {}
    for folder in folders:
        seeds = sorted(_seeds(folder).items())
        runs = tuple(_each(seeds) if tolerant else (read_seed(path, k) for k, path in seeds))
        names = {run.result["task"] for run in runs if run.result} or {_planned(folder, runs)}
        keys = {tuple(run.scores) for run in runs if run.finished}
        if len(names) > 1 or len(keys) > 1:
            raise ValueError(
                f"{folder} mixes runs that are not scored alike: tasks {', '.join(sorted(names))}"
            )
        (name,) = names
        if name in found:
            raise ValueError(f"{workdir} holds {name} twice, in {folder.name} too")
        found[name] = TaskRuns(name, runs)
    order = [*TITLES, *sorted(found.keys() - TITLES.keys())]
    return {name: found[name] for name in order if name in found}


def stack(task: TaskRuns, split: str) -> tuple[predictions.Predictions, np.ndarray]:
    """Reads what every finished seed predicted on one split.

    Returns:
      The first seed's, for texts and gold, and predictions [1, F, n] of all.

    Raises:
      ValueError: a file is not whole, or seeds were scored on different examples.
      OSError: a file cannot be read.
    """
    first, *others = (run.predictions(split) for run in task.finished)
    for run, other in zip(task.finished[1:], others, strict=True):
        difference = differ(first, other)
        if difference:
            raise ValueError(f"{task.title} {split}: {difference} in {run.folder}")
    return first, np.stack([p.predicted for p in (first, *others)])[None]


def differ(a: predictions.Predictions, b: predictions.Predictions) -> str | None:
    """Says how the examples of two sets differ; None if they are the same."""
    if len(a.gold) != len(b.gold):
        return f"{len(a.gold):,} dev examples against {len(b.gold):,}"
    if a.labels != b.labels:
        return f"the labels {a.labels} against {b.labels}"
    if a.texts_digest != b.texts_digest:
        return "other texts of the dev set"
    if (a.gold != b.gold).any():
        return f"other gold labels from example {int(np.argmax(a.gold != b.gold))} on"
    return None


def said(runs: Sequence[SeedRun], field: str) -> list[Any]:
    """The different values of a field of result.json, in the order of the runs."""
    values = []
    for run in runs:
        if run.result.get(field) not in values:
            values.append(run.result.get(field))
    return values


def _seeds(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """The run folders in a folder, by seed."""
    if not folder.is_dir():
        return {}
    named = {path: re.fullmatch(r"seed(\d+)", path.name) for path in folder.iterdir()}
    return {int(m[1]): path for path, m in named.items() if m and path.is_dir()}


def _planned(folder: pathlib.Path, runs: Sequence[SeedRun]) -> str:
    """The task of runs without results: what their config says, or the folder's name."""
    for run in runs:
        try:
            return str(json.loads((run.folder / "config.json").read_text())["task"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return folder.name


def _each(seeds: Sequence[tuple[int, pathlib.Path]]) -> list[SeedRun]:
    """The runs in some folders, those failed that cannot be read or are not scored as most are."""
    runs = []
    for seed, path in seeds:
        try:
            runs.append(read_seed(path, seed))
        except ValueError as error:
            runs.append(SeedRun(path, seed, {}, {}, failed=f"damaged: {error}"))
    kinds = Counter((str(r.result["task"]), tuple(r.scores)) for r in runs if r.finished)
    task, keys = kinds.most_common(1)[0][0] if kinds else (None, ())

    def is_usual(run: SeedRun) -> bool:
        return str(run.result["task"]) == task and (not run.finished or tuple(run.scores) == keys)

    other = {"result": {}, "scores": {}, "failed": "damaged: of another task, or scored otherwise"}
    return [r if not (kinds and r.result) or is_usual(r) else dataclasses.replace(r, **other)
            for r in runs]  # fmt: skip


def read_seed(folder: pathlib.Path, seed: int) -> SeedRun:
    """Reads one fine-tuning.

    Raises:
      ValueError: its result.json is damaged, or not that of a fine-tuning.
    """
    path = folder / "result.json"
    if not path.exists():
        return SeedRun(folder, seed, {}, {}, unfinished=True)
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        status, dev = result["status"], result["eval"]
        values = {(s, m): value for s, metrics in dev.items() for m, value in metrics.items()}
        result["task"]
        remarks = result.get("remarks", [])
        if not isinstance(remarks, list) or not all(isinstance(x, str) for x in remarks):
            raise ValueError("remarks are no list of words")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the result of a fine-tuning: {error!r}") from None
    if status != "completed":
        reason = result.get("degenerate") or f"its status is {status!r}"
        return SeedRun(folder, seed, result, {}, failed=str(reason))
    unknown = [m for _, m in values if m not in scores.METRICS]
    if unknown or not values or not all(is_finite(v) for v in values.values()):
        reason = f"unknown metric {unknown[0]}" if unknown else "a score is missing"
        return SeedRun(folder, seed, result, {}, failed=reason)
    return SeedRun(folder, seed, result, values)
