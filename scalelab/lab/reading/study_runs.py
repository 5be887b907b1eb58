"""Reads what a study leaves: WORKDIR/studies/<name>.json (study_file.py), and its run folders.

WORKDIR/plans/<name>.json holds what every run was expected to take, on the machine that planned it.
A run is WORKDIR/runs/<run's name>, as in DESIGN section 5. Its fine-tunings are in tasks/<task>/
seed<k> below it, those of the same net from random weights in scratch/<task>/seed<k>.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from scalelab.helpers.names import nearest
from scalelab.lab.reading import run_check, run_files, study_file, task_runs
from scalelab.lab.reading.task_runs import TaskRuns

BASELINE = "baseline"  # the variant that changes nothing


class Shape(NamedTuple):
    """Attention heads, width, layers."""

    num_heads: int
    width: int
    num_layers: int

    @property
    def n_model(self) -> int:
        """The protocol's size N = 12 L H^2."""
        return 12 * self.num_layers * self.width**2

    def __str__(self) -> str:
        return f"{self.num_heads}x{self.width}x{self.num_layers}"


@dataclasses.dataclass(frozen=True, eq=False)
class PretrainRun:
    """One pre-training of a study.

    Attributes:
      name: its folder's name.
      stage: the study's stage that wants it.
      seed: its seed.
      folder: its run folder, which need not exist yet.
      config: the resolved config that the study wants, nested.
      result: the content of result.json; None until it is finished.
      damaged: what is wrong with its folder; None: nothing.
      tasks: its fine-tunings by task.
      scratch: those of the same net from random weights.
    """

    name: str
    stage: str
    seed: int
    folder: pathlib.Path
    config: dict[str, Any]
    result: dict[str, Any] | None
    damaged: str | None
    tasks: Mapping[str, TaskRuns]
    scratch: Mapping[str, TaskRuns]

    @property
    def finished(self) -> bool:
        """Whether it has been pre-trained to its end."""
        return self.result is not None

    @property
    def n_model(self) -> int:
        """12 L H^2."""
        net = self.config["net"]
        return 12 * net["num_layers"] * net["width"] ** 2

    @property
    def loss(self) -> float | None:
        """The last validation loss, of the longest length."""
        return run_files.loss_of((self.result or {}).get("eval") or {})


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """What a table's row is about: all runs that differ in their seed alone.

    Attributes:
      system: its name.
      shape: of the net.
      variant: the study's name for what else differs; BASELINE: nothing.
      runs: by seed, finished or not.
    """

    system: str
    shape: Shape
    variant: str
    runs: tuple[PretrainRun, ...]

    @property
    def finished(self) -> tuple[PretrainRun, ...]:
        """The runs that have been pre-trained."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def label(self) -> str:
        """For tables: "bert 2x128x2", "bert 2x128x2 half_steps"."""
        variant = "" if self.variant == BASELINE else f" {self.variant}"
        return f"{self.system} {self.shape}{variant}"

    def mean(self, field: str) -> float | None:
        """Mean over finished runs of a number in result.json, such as "seconds"."""
        values = [run.result[field] for run in self.finished if run.result]
        return sum(values) / len(values) if values else None


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A comparison and its runs.

    Attributes:
      workdir: holds studies/ and runs/.
      facts: the content of the study's file, see above.
      points: in the study's order.
    """

    workdir: pathlib.Path
    facts: dict[str, Any]
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """The study's name."""
        return self.facts["name"]

    @property
    def runs(self) -> list[PretrainRun]:
        """Every run of every point."""
        return [run for point in self.points for run in point.runs]


def read(workdir: pathlib.Path, name: str | None = None, *, tolerant: bool = False) -> Study:
    """Reads a study and the state of its runs.

    Args:
      workdir: holds studies/ and runs/.
      name: of the study; None where there is only one.
      tolerant: where a fine-tuning's result.json is damaged, reads that one alone as failed, and
        not its pre-training as damaged.

    Raises:
      ValueError: there is no such study, or its file is damaged. A damaged run is read as such.
    """
    files = {path.stem: path for path in sorted((workdir / "studies").glob("*.json"))}
    if not files:
        raise ValueError(f"{workdir} holds no study: expected {workdir}/studies/<name>.json")
    if name is None and len(files) > 1:
        raise ValueError(f"{workdir} holds several studies: {', '.join(files)}; name one")
    name = name or next(iter(files))
    if name not in files:
        raise ValueError(f"{workdir} holds no study {name!r}: {nearest(name, files)}")
    facts = study_file.read(files[name])
    points: dict[tuple[str, Shape, str], list[PretrainRun]] = {}
    for run in facts["runs"]:
        key = (run["system"], Shape(*(run["shape"][k] for k in "AHL")), run["variant"])
        folder, seeds = workdir / "runs" / run["name"], facts["finetune_seeds"]
        found = read_run(folder, run, seeds, tolerant=tolerant)
        points.setdefault(key, []).append(found)
    return Study(workdir, facts, tuple(Point(*key, tuple(found)) for key, found in points.items()))


def checked(study: Study) -> Study:
    """The study with every finished run held to its own files and the plan: for reports.

    A run that fails has no result and says in `damaged` why.
    """
    points = []
    for point in study.points:
        runs = []
        for run in point.runs:
            problems = contradictions(run)
            damaged = dataclasses.replace(run, result=None, damaged="; ".join(problems))
            runs.append(damaged if problems else run)
        points.append(dataclasses.replace(point, runs=tuple(runs)))
    return dataclasses.replace(study, points=tuple(points))


def contradictions(run: PretrainRun) -> list[str]:
    """Where the files of a finished run say other things than each other or the plan."""
    if run.result is None:
        return []
    config, there = run_files.read_json(run.folder / "config.json", unread := [])
    planned = run_check.of_plan(config, run.config) if there and not unread else []
    return planned + run_check.of_folder(run.folder, run.result)


def read_plan(workdir: pathlib.Path, name: str) -> dict[str, dict[str, float]]:
    """What `study plan` expected of each run: name -> "secs", "peak_bytes", ...; or nothing."""
    try:
        kept = json.loads((workdir / "plans" / f"{name}.json").read_text())
        return {run["name"]: run for run in kept["runs"] if _is_expected(run)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_expected(run: Mapping[str, Any]) -> bool:
    """Whether what a plan says of a run are numbers, where it says anything."""
    names = ("secs", "finetune_secs", "peak_bytes", "n_model")
    return all(run.get(name) is None or run_files.is_finite(run[name]) for name in names)


def read_run(
    folder: pathlib.Path, planned: Mapping[str, Any], finetune_seeds: int | None = None,
    *, tolerant: bool = False,
) -> PretrainRun:  # fmt: skip
    """Reads the state of one run; what is wrong with its files is said in `damaged`.

    Args:
      folder: its run folder.
      planned: what the study's file says of it.
      finetune_seeds: how many the study has: more of them, which another study of the same folder
        may have, are left out; None: all that are there.
      tolerant: as for `read`.
    """
    problems: list[str] = []
    result, there = run_files.read_json(folder / "result.json", problems)
    if there and not problems:
        problems += run_check.of_result(result)
    tasks: list[Mapping[str, TaskRuns]] = [{}, {}]
    for place, part in enumerate(("tasks", "scratch")):
        try:
            if any((folder / part).glob("*/seed*")):
                found = task_runs.read(folder / part, tolerant=tolerant)
                tasks[place] = {name: _first(task, finetune_seeds) for name, task in found.items()}
        except (ValueError, KeyError, TypeError, OSError) as error:
            problems.append(str(error))
    return PretrainRun(
        planned["name"], planned["stage"], planned["seed"], folder, planned["config"],
        result if there and not problems else None, "; ".join(problems) or None, *tasks,
    )  # fmt: skip


def _first(task: TaskRuns, num_seeds: int | None) -> TaskRuns:
    """The runs of the first seeds."""
    kept = tuple(run for run in task.runs if num_seeds is None or run.seed < num_seeds)
    return dataclasses.replace(task, runs=kept)
