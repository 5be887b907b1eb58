"""Loads a study: its file WORKDIR/studies/<name>.json, and the runs that it planned.

`scalelab.study` writes the file before anything starts. It says what is compared:

  name, title, question   words for people
  protocol, scale         section of the benchmark protocol ("7.5.1") or null; "full" or smaller
  comparison              name of the module with its statements (compare/evidence.py), or null
  matched                 the clock on which all runs come equally far: comparability.CLOCKS
  free                    factors in which runs may differ: system, shape, variant, seed
  allow                   config fields that may differ too; every table says so
  tables, figures, hypotheses   a table is a kind, "large", or a kind and rows, "large:width"
  rows                    name -> {"title", "stages", "shapes", "variants"}
  tasks, recipe, finetune_seeds
  adaptation              task -> {dotted field of a fine-tuning: value}, all that is science
  chosen                  fields that every fine-tuning chooses on dev itself, by its recipe's grid
  departures              system -> [{"field", "value", "source"}]
  fields, system_fields, variants   "field=value" lines for all runs; of a system; of a variant
  runs                    [{"name", "stage", "system", "shape": {"A", "H", "L"}, "variant", "seed",
                            "finetune", "config"}], config being every resolved field

WORKDIR/plans/<name>.json holds what every run was expected to take. A run is WORKDIR/runs/<name>;
its fine-tunings are in tasks/<task>/seed<k> below it, those of the same net from random weights in
scratch/<task>/seed<k>. WORKDIR may be packed in one file (archive.py).
"""

# The stubs of pandas and altair are narrower than what they accept.
# pyright: reportCallIssue=false

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
    """One pre-training of a study.

    Attributes:
      name: its folder's name.
      stage: the study's stage that wants it.
      seed: its seed.
      folder: its run folder, which need not exist yet.
      config: the resolved config that the study wants, nested.
      result: of result.json; None until it is finished.
      damaged: what is wrong with its folder; None: nothing.
      tasks: its fine-tunings by task.
      scratch: those of the same net from random weights.
      environment: of environment.json.
      lines: of metrics.jsonl.
      trained: the config that it was trained with; None until it has begun.
    """

    name: str
    stage: str
    seed: int
    folder: pathlib.Path
    config: dict[str, Any]
    result: RunResult | None
    damaged: str | None
    tasks: Mapping[str, TaskRuns]
    scratch: Mapping[str, TaskRuns]
    environment: Environment = Environment()
    lines: tuple[Line, ...] = ()
    trained: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether it has been pre-trained to its end."""
        return self.result is not None

    @property
    def shape(self) -> Shape:
        """Of the net."""
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
        values = [getattr(run.result, field) for run in self.finished]
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
      workdir: holds studies/ and runs/, perhaps packed.
      name: of the study; None where there is only one.

    Raises:
      ValueError: there is no such study, or its file is damaged. A damaged run is read as such.
    """
    path = find(workdir, name)
    facts = read_facts(path)
    points: dict[tuple[str, Shape, str], list[PretrainRun]] = {}
    for run in facts["runs"]:
        key = (run["system"], Shape(*(run["shape"][k] for k in "AHL")), run["variant"])
        folder = archive.find_run(workdir, run["name"])
        points.setdefault(key, []).append(read_run(folder, run, facts["finetune_seeds"]))
    return Study(workdir, facts, tuple(Point(*key, tuple(found)) for key, found in points.items()))


def find(workdir: pathlib.Path, name: str | None) -> pathlib.Path:
    """Returns the path of a study's file; arguments and errors as for `read`."""
    files = {path.stem: path for path in sorted((workdir / "studies").glob("*.json"))}
    if not files:
        raise ValueError(f"{workdir} holds no study: expected {workdir}/studies/<name>.json")
    if name is None and len(files) > 1:
        raise ValueError(f"{workdir} holds several studies: {', '.join(files)}; name one")
    name = name or next(iter(files))
    if name not in files:
        raise ValueError(f"{workdir} holds no study {name!r}: {nearest(name, files)}")
    return files[name]


def read_run(
    folder: pathlib.Path, planned: Mapping[str, Any], finetune_seeds: int | None = None
) -> PretrainRun:
    """Reads the state of one run; `damaged` says what is wrong with its files.

    Args:
      folder: its run folder.
      planned: what the study's file says of it.
      finetune_seeds: read this many seeds of each task; None: all that are there.
    """
    record, damaged = None, None
    if any((folder / name).exists() for name in ("config.json", "result.json")):
        try:
            record = records.read_run(folder)
        except Unreadable as error:
            damaged = f"{error.path.name} {error.reason}"
    result = record.result if record else None
    if result is not None and (not isinstance(result, RunResult) or result.status != "completed"):
        result, damaged = None, "result.json is not that of a completed pre-training"
    found = [
        task_runs.read(folder / part, num_seeds=finetune_seeds) if (folder / part).is_dir() else {}
        for part in ("tasks", "scratch")
    ]
    record = record or RunRecord(folder, {}, Environment(), None)
    return PretrainRun(
        planned["name"], planned["stage"], planned["seed"], folder, planned["config"], result,
        damaged, *found, record.environment, record.lines, record.config or None,
    )  # fmt: skip


def check_plan(study: Study) -> Study:
    """Returns the study with each finished run of another config than planned as damaged."""
    points = []
    for point in study.points:
        runs = []
        for run in point.runs:
            why = differs_from_plan(run)
            runs.append(dataclasses.replace(run, result=None, damaged=why) if why else run)
        points.append(dataclasses.replace(point, runs=tuple(runs)))
    return dataclasses.replace(study, points=tuple(points))


def differs_from_plan(run: PretrainRun) -> str | None:
    """Says in which science fields a finished run differs from the plan; None if in none."""
    if run.result is None or run.trained is None:
        return None
    lines = science_diff(run.config, run.trained)
    more = f"; and {len(lines) - SHOWN} more fields" * (len(lines) > SHOWN)
    said = f"config.json is not what the study planned: {'; '.join(lines[:SHOWN])}{more}"
    return said if lines else None


# --- The study's file -----------------------------------------------------------------------------

FACTS = {
    "name": str, "title": str, "question": str, "scale": str, "matched": str, "free": list,
    "allow": list, "tables": list, "figures": list, "hypotheses": list, "tasks": list,
    "recipe": str, "finetune_seeds": int, "finetune": dict, "departures": dict, "variants": dict,
    "stages": dict, "runs": list,
}  # fmt: skip
RUN = {"name": str, "stage": str, "system": str, "variant": str, "seed": int, "config": dict,
       "shape": dict}  # fmt: skip
ROWS = {"title": str, "stages": list, "shapes": list, "variants": list}


def read_facts(path: pathlib.Path) -> dict[str, Any]:
    """Returns the content of a study's file.

    Raises:
      ValueError: it is damaged, or a name in it could lead out of the study's folder.
    """
    try:
        facts = json_files.read_object(path) or {}
    except Unreadable as error:
        raise ValueError(f"{path} is damaged ({error.reason}); {_REMEDY}") from None
    problems = [f"{n} is missing" if n not in facts else f"{n} is no {kind.__name__}"
                for n, kind in FACTS.items() if not isinstance(facts.get(n), kind)]  # fmt: skip
    rows = facts.get("rows", {})  # files from before tables had rows have none
    whole = isinstance(rows, Mapping) and all(_is_rows(*item) for item in rows.items())
    problems += [] if whole else ["rows are not what they should be"]
    if not problems:
        problems += [f"run {i} is damaged" for i, r in enumerate(facts["runs"]) if not _is_run(r)]
    if not problems:
        names = [facts["name"], *facts["tasks"], *(run["name"] for run in facts["runs"])]
        problems += [f"{n!r} is no name of a folder" for n in names if not is_safe(n)]
    if problems:
        raise ValueError(f"{path} is damaged ({'; '.join(problems[:SHOWN])}); {_REMEDY}")
    return facts


_REMEDY = "move it away, and `study plan` or `study run` writes it anew"


def is_safe(name: object) -> bool:
    """Returns True if a name is one path component that stays inside its folder."""
    return isinstance(name, str) and SAFE.fullmatch(name) is not None


def _is_rows(name: str, rows: Any) -> bool:
    """Returns True if it is what a study's file says of some rows; a file is named after them."""
    return (
        name.isidentifier()
        and isinstance(rows, Mapping)
        and rows.keys() == ROWS.keys()
        and all(isinstance(rows[part], kind) for part, kind in ROWS.items())
        and all(isinstance(x, str) for part in ROWS if part != "title" for x in rows[part])
    )


def _is_run(run: Any) -> bool:
    """Returns True if it is what a study's file says of a run, with a net in its config."""
    if not isinstance(run, Mapping) or not all(isinstance(run.get(n), k) for n, k in RUN.items()):
        return False
    net, sizes = run["config"].get("net"), ("num_heads", "width", "num_layers")
    return (
        all(isinstance(run["shape"].get(k), int) for k in "AHL")
        and isinstance(net, Mapping)
        and all(isinstance(net.get(size), int) for size in sizes)
    )


# --- The plan -------------------------------------------------------------------------------------

Plan = Mapping[str, Mapping[str, Any]]
NUMBERS = ("secs", "peak_bytes", "n_model", "steps", "tokens", "flops")


def read_plan(workdir: pathlib.Path, name: str) -> Plan:
    """Returns what `study plan` expected of each run, by the run's name; empty without a plan."""
    try:
        plan = json_files.read_object(workdir / "plans" / f"{name}.json") or {}
    except Unreadable:
        return {}
    found = plan.get("runs")
    return {
        run["name"]: run for run in found if isinstance(run, dict) and _is_planned(run)
    } if isinstance(found, list) else {}  # fmt: skip


def _is_planned(run: Mapping[str, Any]) -> bool:
    numbers = (run.get(field) for field in NUMBERS)
    return isinstance(run.get("name"), str) and all(
        x is None or isinstance(x, int | float) for x in numbers
    )


def planned(plan: Plan, name: str, stage: str, n_model: int) -> Mapping[str, Any] | None:
    """Returns what the plan expected of a run; where its shape was not known, of the nearest size.

    Args:
      plan: from `read_plan`.
      name: of the run.
      stage: likewise.
      n_model: of its shape.

    Returns:
      None if the plan does not know it.
    """
    if name in plan:
        return plan[name]

    def without_shape(run: str) -> list[str]:
        system, _, *rest = run.split("-")
        return [system, *rest]

    alike = [
        entry for other, entry in plan.items()
        if entry.get("foreseen") and entry.get("stage") == stage
        and without_shape(other) == without_shape(name)
    ]  # fmt: skip
    return min(alike, key=lambda entry: abs(entry["n_model"] - n_model), default=None)
