"""What was held equal in fine-tuning: every one of a study against what was planned and the others.

A fine-tuning says in its config.json how the net was adapted and to what data. Its seed, the
weights that it began with, and what the recipe's grid chose on dev are its own; every other field
must be what the study planned, and equal for all of a task, as the contents of training and dev
data must be and the version of the numerics. All fine-tunings of one pre-training must begin with
the same weights. Fields are called "finetune.epochs" here, the contents "finetune.data".
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from scalelab.config.fields import flatten
from scalelab.lab.load.study_runs import PretrainRun, Study
from scalelab.lab.load.task_runs import FROM_SCRATCH, SeedRun, TaskRuns
from scalelab.runs import records

PREFIX = "finetune."
# What may be allowed to differ beside the fields of configs/finetune.py.
WORDS = ("data", "init", "numerics", "relation", "labels", "regression")


@dataclasses.dataclass(frozen=True)
class Adapted:
    """How one net was adapted to a task.

    Attributes:
      name: of its folder, from that of all runs.
      task: its name.
      origin: the pre-training that it belongs to, and whether it began with its weights.
      fields: its config's, by dotted name, and "numerics".
    """

    name: str
    task: str
    origin: str
    fields: Mapping[str, Any]


def names(study: Study) -> set[str]:
    """Every field of fine-tunings that may be allowed to differ."""
    planned = study.facts.get("adaptation", {}).values()
    fields = {field for one in planned for field in one} | set(study.facts.get("chosen", ()))
    return {PREFIX + name for name in (*WORDS, *fields)}


def differences(study: Study) -> dict[str, str]:
    """Where fine-tunings differ from each other, or from the plan: field -> which, and how.

    Raises:
      ValueError: a folder was edited, or holds the fine-tuning of another run.
    """
    everyone = list(_read(study))
    chosen = set(study.facts.get("chosen", ()))
    found: dict[str, str] = {}
    of_task: dict[str, Adapted] = {}
    of_origin: dict[str, Adapted] = {}
    for one in everyone:
        first = of_task.setdefault(one.task, one)
        for field in sorted((one.fields.keys() | first.fields.keys()) - chosen - {"init"}):
            _differ(found, field, first, one)
        _differ(found, "init", of_origin.setdefault(one.origin, one), one)
    planned = study.facts.get("adaptation", {})
    for one in everyone:
        for field, value in planned.get(one.task, {}).items():
            actual = one.fields.get(field)  # a field that is not there is off, which is None
            if actual != value:
                said = f"{actual!r} in {one.name}, planned {value!r}"
                found.setdefault(PREFIX + field, said)
    return found


def unknown(study: Study) -> list[str]:
    """What fine-tunings do not tell, so that nobody knows whether it is equal."""
    everyone, found = list(_read(study)), []
    if any(records.UNKNOWN in one.fields["numerics"] for one in everyone):
        found.append("not every fine-tuning tells its version of the numerics")
    silent = sorted({one.task for one in everyone if not one.fields["data"]})
    if silent:
        found.append(f"fine-tunings on {', '.join(silent)} do not tell the contents of their data")
    return found


def checked(study: Study) -> Study:
    """The study with every fine-tuning held to the plan and to its own files: for reports.

    One that fails has no scores, and says in `failed` why.
    """

    def hold(run: PretrainRun, part: str, task: str, one: SeedRun) -> SeedRun:
        try:
            _adapted(run, part, task, one)
        except ValueError as error:
            why = f"damaged: {error}"
            return dataclasses.replace(one, result=None, scores={}, failed=why)
        return one

    def of_part(run: PretrainRun, part: str) -> dict[str, TaskRuns]:
        return {
            task: dataclasses.replace(
                runs, runs=tuple(hold(run, part, task, r) if r.result else r for r in runs.runs)
            )
            for task, runs in getattr(run, part).items()
        }

    def of_run(run: PretrainRun) -> PretrainRun:
        parts = {part: of_part(run, part) for part in ("tasks", "scratch")}
        return dataclasses.replace(run, **parts) if run.finished else run

    points = [
        dataclasses.replace(point, runs=tuple(of_run(run) for run in point.runs))
        for point in study.points
    ]
    return dataclasses.replace(study, points=tuple(points))


def _differ(found: dict[str, str], field: str, a: Adapted, b: Adapted) -> None:
    """Notes a field in which two differ, once."""
    x, y = (one.fields.get(field) for one in (a, b))
    if x == y:
        return
    if field == "data":
        x, y = (one.fields["data"] for one in (a, b))
        parts = [k for k in sorted(x.keys() | y.keys()) if x.get(k) != y.get(k)]
        said = f"{a.name} and {b.name} have other contents of {', '.join(parts)}"
    elif field == "init":
        said = f"{a.name} and {b.name} began with other weights of the same pre-training"
    else:
        said = f"{x!r} in {a.name}, {y!r} in {b.name}"
    found.setdefault(PREFIX + field, said)


def _read(study: Study) -> Iterator[Adapted]:
    """All ended fine-tunings of a study's tasks."""
    for run in study.runs:
        for part in ("tasks", "scratch") if run.finished else ():
            for task, runs in getattr(run, part).items():
                for one in runs.runs if task in study.facts["tasks"] else ():
                    if one.result:
                        yield _adapted(run, part, task, one)


def _adapted(run: PretrainRun, part: str, task: str, one: SeedRun) -> Adapted:
    """Reads a fine-tuning.

    Raises:
      ValueError: its config is missing or damaged, or is not that of this run, task and seed, or
        its result.json says other things.
    """
    path, config = one.folder / "config.json", one.config
    scratch = part == "scratch"
    expected = {
        "task": task, "seed": one.seed, "system": run.config.get("system"), "mnli_first": False,
        "net": {**run.config.get("net", {}), "dropout_rate": config.get("dropout_rate")},
    } | ({"init": "none"} if scratch else {})  # fmt: skip
    for field, value in expected.items():
        if _given(config.get(field)) != _given(value):
            raise ValueError(
                f"{path} is not of this run, task and seed: {field} is {config.get(field)!r},"
                f" expected {value!r}; {_remedy(one.folder)}"
            )
    if config.get("init") in FROM_SCRATCH and not scratch:
        raise ValueError(f"{path} did not begin with the pre-training; {_remedy(one.folder)}")
    not_shared = (*expected, "machine", "data", "init", "tokenizer_digest")
    own = {k: v for k, v in config.items() if k not in not_shared}
    fields = flatten(own) | {
        "data": config.get("data") or {},
        "init": config.get("init"),
        "numerics": one.environment.numerics_versions,
    }
    name = f"{run.name}/{part}/{task}/seed{one.seed}"
    return Adapted(name, task, f"{part} of {run.name}", fields)


def _given(value: Any) -> Any:
    """A group without what is off in it, which older folders do not name."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


def _remedy(folder: pathlib.Path) -> str:
    return f"a folder must not be edited: move {folder} away and run the study again"
