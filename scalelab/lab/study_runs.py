"""Reads what a study leaves: WORKDIR/studies/<name>.json, and the run folders that it names.

A study's file is written by `scalelab.study` before anything starts. It says what is compared:

  name, title, question   words for people
  protocol, scale         section of the benchmark protocol ("7.5.1") or null; "full" or smaller
  matched                 what all runs have in common, in words ("tokens: 1.7M")
  free                    factors in which runs may differ: system, shape, variant, seed
  allow                   config fields that may differ too; every table says so
  tables, figures, hypotheses
  tasks, recipe, finetune_seeds
  departures              system -> [{"field", "value", "source"}]
  variants                name -> {dotted field: value}
  runs                    [{"name", "stage", "system", "shape": {"A", "H", "L"}, "variant", "seed",
                            "finetune", "config"}], config being every resolved field

WORKDIR/plans/<name>.json holds what every run was expected to take, on the machine that planned it.
A run is WORKDIR/runs/<run's name>, as in DESIGN section 5. Its fine-tunings are in tasks/<task>/
seed<k> below it, those of the same net from random weights in scratch/<task>/seed<k>.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from scalelab.lab import task_runs
from scalelab.lab.task_runs import TaskRuns
from scalelab.names import nearest

BASELINE = "baseline"  # the variant that changes nothing
Plan = Mapping[str, Mapping[str, Any]]  # from `read_plan`


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
        evals = (self.result or {}).get("eval") or {}
        return evals[max(evals, key=int)]["loss"] if evals else None


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


def read(workdir: pathlib.Path, name: str | None = None) -> Study:
    """Reads a study and the state of its runs.

    Args:
      workdir: holds studies/ and runs/.
      name: of the study; None where there is only one.

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
    try:
        facts = json.loads(files[name].read_text())
        runs = [(run, Shape(*(run["shape"][k] for k in "AHL"))) for run in facts["runs"]]
        points: dict[tuple[str, Shape, str], list[PretrainRun]] = {}
        for run, shape in runs:
            key = (run["system"], shape, run["variant"])
            points.setdefault(key, []).append(read_run(workdir / "runs" / run["name"], run))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{files[name]} is damaged ({error!r}); plan the study again") from None
    return Study(workdir, facts, tuple(Point(*key, tuple(found)) for key, found in points.items()))


def read_plan(workdir: pathlib.Path, name: str) -> dict[str, dict[str, Any]]:
    """What `study plan` expected of each run: name -> "secs", "peak_bytes", ...; or nothing."""
    try:
        kept = json.loads((workdir / "plans" / f"{name}.json").read_text())
        return {run["name"]: run for run in kept["runs"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def planned(plan: Plan, name: str, stage: str, n_model: int) -> Mapping[str, Any] | None:
    """What `study plan` expected of a run; where its shape was not known, of one of its size.

    Args:
      plan: from `read_plan`.
      name: of the run.
      stage: likewise.
      n_model: of its shape.

    Returns:
      None: the plan does not know it.
    """
    if name in plan:
        return plan[name]
    alike = [
        entry for other, entry in plan.items()
        if entry.get("foreseen") and entry["stage"] == stage
        and _but_for_shape(other) == _but_for_shape(name)
    ]  # fmt: skip
    return min(alike, key=lambda entry: abs(entry["n_model"] - n_model), default=None)


def _but_for_shape(name: str) -> list[str]:
    """The parts of a run's name: system, variant if any, seed."""
    system, _, *rest = name.split("-")
    return [system, *rest]


def read_run(folder: pathlib.Path, planned: Mapping[str, Any]) -> PretrainRun:
    """Reads the state of one run; what is wrong with its files is said in `damaged`."""
    result, damaged = None, None
    tasks: list[Mapping[str, TaskRuns]] = [{}, {}]
    try:
        path = folder / "result.json"
        result = json.loads(path.read_text()) if path.exists() else None
        if result is not None and result["status"] != "completed":
            result, damaged = None, f"{path}: status {result['status']!r}"
        for place, part in enumerate(("tasks", "scratch")):
            if any((folder / part).glob("*/seed*")):
                tasks[place] = task_runs.read(folder / part)
    except (ValueError, KeyError, TypeError, OSError) as error:
        result, damaged = None, str(error)
    return PretrainRun(
        planned["name"], planned["stage"], planned["seed"], folder, planned["config"],
        result, damaged, *tasks,
    )  # fmt: skip
