"""Loads fine-tunings: WORKDIR/<task>/seed<k>, or WORKDIR/seed<k> of one task.

Each holds result.json and, for each dev split, predictions.tsv (predictions-<split>.tsv after the
first) or its packed form predictions.npz. Unfinished, failed and unreadable runs are loaded too,
with that state.
"""

import dataclasses
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from scalelab.eval.score_names import TASK_TITLES
from scalelab.helpers.names import suggest_folder
from scalelab.records import predictions, run_files
from scalelab.records.run_files import Environment, RunRecord, TaskResult, Unreadable
from scalelab.tasks import metrics

CHOSEN_LAYER = re.compile(r"(?<=^layer )\d+(?=,)")  # in the recipe of a probe
FROM_SCRATCH = (None, "none")  # values of `init` for random weights

Key = tuple[str, str]  # split, metric
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class SeedRun:
    """One fine-tuning, in any state."""

    folder: pathlib.Path
    seed: int
    result: TaskResult | None = None  # None if there is none yet, or it cannot be read
    scores: dict[Key, float] = dataclasses.field(default_factory=dict)  # if finished, in task order
    # Undefined scores -> reason.
    undefined: dict[Key, str] = dataclasses.field(default_factory=dict)
    unfinished: bool = False  # it has left no result yet
    failed: str | None = None  # what went wrong; None: nothing
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: Environment = Environment()
    _predictions: dict[str, predictions.Predictions] = dataclasses.field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether it has scores."""
        return not self.unfinished and self.failed is None

    @property
    def from_scratch(self) -> bool:
        """Whether it began with random weights."""
        return self.result is not None and self.result.init in FROM_SCRATCH

    @property
    def weights(self) -> str | None:
        """Identifies the initial weights; None for random ones."""
        if self.result is None or self.from_scratch:
            return None
        return self.result.init_digest or self.result.init

    @property
    def degenerate(self) -> str | None:
        """Why the run counts as degenerate; None if it does not."""
        return self.result.degenerate if self.result else None

    def predictions(self, split: str) -> predictions.Predictions:
        """Reads its predictions on a dev split once, and keeps neither texts nor probabilities.

        Raises:
          Unreadable: the file is missing or not whole.
        """
        if split not in self._predictions:
            splits = list(dict.fromkeys(name for name, _ in self.scores))
            path = self.folder / f"predictions{f'-{split}' * (splits.index(split) > 0)}.tsv"
            packed = path.with_suffix(".npz")
            found = predictions.read(packed if packed.exists() and not path.exists() else path)
            digest = found.texts_digest
            self._predictions[split] = dataclasses.replace(
                found, texts=None, probabilities=None, packed_digest=digest
            )
        return self._predictions[split]


@dataclasses.dataclass(frozen=True, eq=False)
class TaskRuns:
    """The fine-tunings of one model on one task, by seed."""

    name: str
    runs: tuple[SeedRun, ...]

    @property
    def title(self) -> str:
        """The task's name in tables."""
        return TASK_TITLES.get(self.name, self.name)

    @property
    def finished(self) -> list[SeedRun]:
        """The runs that have scores."""
        return [run for run in self.runs if run.finished]

    @property
    def keys(self) -> list[Key]:
        """The (split, metric) pairs that score the task, the main one first."""
        return list(self.finished[0].scores) if self.finished else []

    @property
    def undefined(self) -> dict[Key, str]:
        """The scores that the dev set leaves undefined, each with the reason."""
        return self.finished[0].undefined if self.finished else {}

    def values(self, key: Key) -> list[float]:
        """The scores of the finished seeds."""
        return [run.scores[key] for run in self.finished]


def read(workdir: pathlib.Path, *, num_seeds: int | None = None) -> dict[str, TaskRuns]:
    """Reads all fine-tunings in a folder, or the first `num_seeds` of each task; without scratch/.

    Returns:
      Task -> its runs: GLUE's nine in GLUE's order, evaluations, then others by name. An unreadable
      run, and one with another task or other metrics than most of its folder, count as failed.

    Raises:
      ValueError: it is no folder, holds no fine-tuning, or holds one task twice.
    """
    if not workdir.is_dir():
        raise ValueError(f"no such folder: {workdir}{suggest_folder(workdir)}")
    folders = {path: _seeds(path) for path in (workdir, *sorted(workdir.iterdir()))}
    if folders[workdir]:
        folders = {workdir: folders[workdir]}
    found = [
        gather(folder.name, [read_seed(path, k) for k, path in sorted(seeds.items())
                             if num_seeds is None or k < num_seeds])
        for folder, seeds in folders.items() if seeds
    ]  # fmt: skip
    if not found:
        raise ValueError(f"{workdir} holds no fine-tuning: expected <task>/seed0 or seed0 in it")
    name, count = Counter(task.name for task in found).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{workdir} holds {name} twice")
    return in_order(found)


def in_order(tasks: Iterable[TaskRuns]) -> dict[str, TaskRuns]:
    """Returns tasks by name: GLUE's nine in GLUE's order, evaluations, then others by name."""
    found = {task.name: task for task in tasks}
    order = [*TASK_TITLES, *sorted(found.keys() - TASK_TITLES.keys())]
    return {name: found[name] for name in order if name in found}


def by_share(tuned: Mapping[str, T]) -> dict[float, T]:
    """Returns the scores at shares of the budget, the smallest share first, from "early/0.5"."""
    found = {float(part[6:]): own for part, own in tuned.items() if part.startswith("early/")}
    return {share: found[share] for share in sorted(found)}


def gather(folder: str, runs: Sequence[SeedRun]) -> TaskRuns:
    """Returns the runs of one folder; one with another task or other metrics than most failed."""
    scored = Counter((r.result.task, tuple(r.scores)) for r in runs if r.result and r.finished)
    task, keys = scored.most_common(1)[0][0] if scored else (None, ())
    runs = [
        SeedRun(r.folder, r.seed, failed="has another task or other metrics")
        if task and ((r.result and r.result.task != task)
                     or (r.finished and tuple(r.scores) != keys)) else r
        for r in runs
    ]  # fmt: skip
    sound_first = sorted(runs, key=lambda r: r.failed is not None)
    named = [r.config["task"] for r in sound_first if r.config.get("task")]
    return TaskRuns(named[0] if named else folder, tuple(runs))


def read_seed(folder: pathlib.Path, seed: int) -> SeedRun:
    """Reads one fine-tuning; an unreadable one counts as failed, with the reason."""
    if not (folder / "result.json").exists() and not (folder / "config.json").exists():
        return SeedRun(folder, seed, unfinished=True)
    try:
        record = run_files.read_run(folder, metrics=False)
    except Unreadable as error:
        return SeedRun(folder, seed, failed=f"{error.path.name} {error.reason}")
    return from_record(record, seed)


def from_record(record: RunRecord, seed: int) -> SeedRun:
    """Returns a fine-tuning from the content of its folder."""
    folder = record.folder
    result, config, environment = record.result, record.config, record.environment
    if isinstance(result, TaskResult) and result.recipe:  # a layer chosen on dev is a run's own
        result = dataclasses.replace(result, recipe=CHOSEN_LAYER.sub("best", result.recipe))
    if result is None:
        return SeedRun(folder, seed, unfinished=True, config=config, environment=environment)
    if not isinstance(result, TaskResult):
        return SeedRun(folder, seed, failed="result.json is not from a fine-tuning")
    values = {(s, m): value for s, by_name in result.eval.items() for m, value in by_name.items()}
    known = {key: value for key, value in values.items() if value is not None}
    undefined = {(s, m): why for s, own in result.undefined.items() for m, why in own.items()}
    unknown = [metric for _, metric in values if metric not in metrics.METRICS]
    failed = None
    if result.status != run_files.COMPLETED:
        failed = result.degenerate or f"its status is {result.status!r}"
    elif unknown or not values or values.keys() > known.keys() | undefined.keys():
        failed = f"unknown metric {unknown[0]}" if unknown else "a score is missing"
    scores = {} if failed else known
    return SeedRun(
        folder, seed, result, scores, undefined, failed=failed, config=config,
        environment=environment,
    )  # fmt: skip


def differ(a: predictions.Predictions, b: predictions.Predictions) -> str | None:
    """Describes how the examples of two sets differ; None if they are the same."""
    if len(a.gold) != len(b.gold):
        return f"{len(a.gold):,} dev examples against {len(b.gold):,}"
    if a.labels != b.labels:
        return f"the labels {a.labels} against {b.labels}"
    if a.texts_digest != b.texts_digest:
        return "other texts of the dev set"
    if (a.gold != b.gold).any():
        return f"other gold labels from example {int((a.gold != b.gold).argmax())} on"
    return None


def _seeds(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Returns the run folders in a folder, by seed."""
    paths = folder.iterdir() if folder.is_dir() else ()
    named = {path: re.fullmatch(r"seed(\d{1,9})", path.name) for path in paths}
    return {int(m[1]): path for path, m in named.items() if m and path.is_dir()}
