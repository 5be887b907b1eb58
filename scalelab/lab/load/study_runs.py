"""Loads a study: its file WORKDIR/studies/<name>.json, and the runs that it planned.

`scalelab.study` writes the file before anything starts. It says what is compared:

  name, title, question   words for people
  protocol, scale         section of the benchmark protocol ("7.5.1") or null; "full" or smaller
  comparison              name of the module with its hypotheses (compare/scores.py), or null
  matched                 the clock that is held equal, one of comparability.MATCHED
  free                    factors in which runs may differ: system, shape, variant, seed
  allow                   config fields that may differ too; every table says so
  tables, figures, hypotheses   a table is a kind, "large", or a kind and rows, "large:width"
  rows                    name -> {"title", "stages", "shapes", "variants"}
  tasks, recipe, finetune_seeds
  adaptation              task -> {dotted science field of a fine-tuning: value}
  chosen                  fields that every fine-tuning chooses on dev, from its recipe's grid
  departures              system -> [{"field", "value", "source"}]
  fields, system_fields, variants   "field=value" lines for all runs; of a system; of a variant
  runs                    [{"name", "stage", "system", "shape": {"A", "H", "L"}, "variant", "seed",
                            "finetune", "config"}], config being every resolved field

WORKDIR/plans/<name>.json has the expected cost of every run. A run is WORKDIR/runs/<name>; its
fine-tunings are below it in tasks/<task>/seed<k>, and the fine-tunings of the same net from random
weights in scratch/<task>/seed<k>. WORKDIR may be packed in one file (archive.py).
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from scalelab.config.fields import science_diff
from scalelab.config.pretraining import Shape
from scalelab.helpers.names import nearest
from scalelab.lab.load import archive, task_runs
from scalelab.lab.load.task_runs import TaskRuns
from scalelab.runs import json_files, records
from scalelab.runs.records import Environment, Line, RunRecord, RunResult, Unreadable

BASELINE = "baseline"  # the variant that changes nothing
SAFE = re.compile(r"[^./\\\s][^/\\\x00-\x1f]*")  # names that become paths inside a folder
SHOWN = 8


@dataclasses.dataclass(frozen=True, eq=False)
class PretrainRun:
    """One pre-training of a study, in whatever state."""

    name: str  # of its folder
    stage: str  # of the study
    seed: int
    folder: pathlib.Path  # need not exist yet
    config: dict[str, Any]  # resolved and nested, as the study planned it
    result: RunResult | None  # None until it is finished
    damaged: str | None  # what is wrong with its folder, such as another config
    tasks: Mapping[str, TaskRuns]  # its fine-tunings by task
    scratch: Mapping[str, TaskRuns]  # fine-tunings of the same net from random weights
    environment: Environment = Environment()
    lines: tuple[Line, ...] = ()  # of metrics.jsonl

    @property
    def finished(self) -> bool:
        """Whether the pre-training is complete."""
        return self.result is not None

    @property
    def shape(self) -> Shape:
        """The shape of the net."""
        net = self.config["net"]
        return Shape(net["num_heads"], net["width"], net["num_layers"])

    @property
    def n_model(self) -> int:
        """The size N of the net."""
        return self.shape.n_model

    @property
    def loss(self) -> float | None:
        """The last validation loss at the longest length."""
        return self.result.loss if self.result else None

    @property
    def curves(self) -> dict[int, list[Line]]:
        """Maximum length -> validations, oldest first; empty if the run is damaged."""
        found: dict[int, list[Line]] = {}
        for line in () if self.damaged else records.validations(self.lines):
            found.setdefault(int(line["eval/max_len"]), []).append(line)
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A row of a table: all runs that differ only in their seed, finished or not."""

    system: str
    shape: Shape
    variant: str  # the variant's name in the study; BASELINE changes nothing
    runs: tuple[PretrainRun, ...]

    @property
    def finished(self) -> tuple[PretrainRun, ...]:
        """The runs that have been pre-trained."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def label(self) -> str:
        """The name in tables: "bert 2x128x2", "bert 2x128x2 half_steps"."""
        variant = "" if self.variant == BASELINE else f" {self.variant}"
        return f"{self.system} {self.shape}{variant}"


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A comparison and its runs."""

    workdir: pathlib.Path  # holds studies/ and runs/
    facts: dict[str, Any]  # the content of the study's file, see above
    points: tuple[Point, ...]  # in the study's order

    @property
    def name(self) -> str:
        """The study's name."""
        return self.facts["name"]

    @property
    def runs(self) -> list[PretrainRun]:
        """Every run of every point."""
        return [run for point in self.points for run in point.runs]


def read(workdir: pathlib.Path, name: str | None = None) -> Study:
    """Reads a study and the state of its runs; None: the only study of the folder.

    Raises:
      ValueError: there is no such study, or its file is damaged. A damaged run is only marked.
    """
    files = {path.stem: path for path in sorted((workdir / "studies").glob("*.json"))}
    if not files:
        raise ValueError(f"{workdir} holds no study: expected {workdir}/studies/<name>.json")
    if name is None and len(files) > 1:
        raise ValueError(f"{workdir} holds several studies: {', '.join(files)}; name one")
    name = name or next(iter(files))
    if name not in files:
        raise ValueError(f"{workdir} holds no study {name!r}: {nearest(name, files)}")
    facts = read_facts(files[name])
    points: dict[tuple[str, Shape, str], list[PretrainRun]] = {}
    for run in facts["runs"]:
        key = (run["system"], Shape(*(run["shape"][k] for k in "AHL")), run["variant"])
        folder = archive.find_run(workdir, run["name"])
        points.setdefault(key, []).append(read_run(folder, run, facts["finetune_seeds"]))
    return Study(workdir, facts, tuple(Point(*key, tuple(found)) for key, found in points.items()))


def read_run(
    folder: pathlib.Path, planned: Mapping[str, Any], finetune_seeds: int | None = None
) -> PretrainRun:
    """Reads the state of a run that a study's file has planned.

    `finetune_seeds`: read this many seeds of each task; None: all.
    """
    record, damaged = RunRecord(folder, {}, Environment(), None), None
    if any((folder / name).exists() for name in ("config.json", "result.json")):
        try:
            record = records.read_run(folder)
        except Unreadable as error:
            damaged = f"{error.path.name} {error.reason}"
    result = record.result
    if result is not None and (not isinstance(result, RunResult) or result.status != "completed"):
        result, damaged = None, "result.json is not from a completed pre-training"
    elif result is not None and (lines := science_diff(planned["config"], record.config)):
        more = f"; and {len(lines) - SHOWN} more fields" * (len(lines) > SHOWN)
        damaged = f"config.json differs from the study: {'; '.join(lines[:SHOWN])}{more}"
        result = None
    tasks, scratch = (
        task_runs.read(folder / part, num_seeds=finetune_seeds) if (folder / part).is_dir() else {}
        for part in ("tasks", "scratch")
    )
    return PretrainRun(
        planned["name"], planned["stage"], planned["seed"], folder, planned["config"], result,
        damaged, tasks, scratch, record.environment, record.lines,
    )  # fmt: skip


# --- The study's file and its plan ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Config:
    net: records.NetSizes


@dataclasses.dataclass(frozen=True)
class _Run:
    name: str
    stage: str
    system: str
    variant: str
    seed: int
    shape: Shape
    config: _Config


@dataclasses.dataclass(frozen=True)
class _Facts:
    """The fields that name folders or files, and the nets of the runs."""

    name: str
    tasks: tuple[str, ...]
    runs: tuple[_Run, ...]
    rows: dict[str, Any] = dataclasses.field(default_factory=dict)


def read_facts(path: pathlib.Path) -> dict[str, Any]:
    """Returns the content of a study's file.

    Raises:
      ValueError: it is damaged, or a name in it could lead out of the study's folder.
    """
    try:
        values = json_files.read_object(path) or {}
        facts = json_files.fill(_Facts, values, path)
        for name in (facts.name, *facts.tasks, *facts.rows, *(run.name for run in facts.runs)):
            if not SAFE.fullmatch(name):
                raise Unreadable(path, f"has {name!r}, which cannot name a folder")
    except Unreadable as error:
        raise ValueError(
            f"{path} is damaged ({error.reason}); move it away, and `study plan` or `study run`"
            " writes it again"
        ) from None
    return values


Plan = Mapping[str, Mapping[str, Any]]


def read_plan(workdir: pathlib.Path, name: str) -> Plan:
    """Returns the estimates of `study plan` by the run's name; empty without a plan."""
    plan = json_files.read_object(workdir / "plans" / f"{name}.json") or {"runs": []}
    return {run["name"]: run for run in plan["runs"]}


def planned(plan: Plan, name: str, stage: str, n_model: int) -> Mapping[str, Any] | None:
    """Returns the plan's estimate of a run; None if the plan does not list the run.

    A run whose shape was not known when the plan was made has the entry of the nearest size.
    """
    if name in plan:
        return plan[name]
    system, _, *rest = name.split("-")
    alike = [
        entry for other, entry in plan.items()
        if entry.get("foreseen") and entry.get("stage") == stage
        and other.split("-")[:1] + other.split("-")[2:] == [system, *rest]
    ]  # fmt: skip
    return min(alike, key=lambda entry: abs(entry["n_model"] - n_model), default=None)
