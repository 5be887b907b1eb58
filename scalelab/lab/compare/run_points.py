"""Finished runs as points: a measurement against the clocks and the size.

A point is a pre-training that ended. Its measurement is its validation loss at the end, or the mean
main score over seeds of its fine-tunings in tasks/: of one task by name, of GLUE-Large's three as
"glue_large", of all nine as "glue". Where fine-tunings lie elsewhere, each of them is a point, and
only the size is known: their own tokens and seconds are not those of the pre-training.

`fields` is what comparability looks at: of a pre-training its science fields, "data", a digest of
its texts, and "numerics", the numerics versions of its starts; of its fine-tunings
"finetune.epochs" and so on. Seeds are left out, and what is off, which is None.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalelab.config.fields import flatten
from scalelab.lab.compare.comparability import PREFIX
from scalelab.lab.load import run_table
from scalelab.lab.load.run_table import LoadedRun, Row
from scalelab.lab.load.task_runs import TITLES
from scalelab.runs.records import RunRecord, RunResult, TaskResult

CLOCKS = {
    "n_model": "N",
    "tokens": "tokens",
    "flops": "training FLOPs",
    "seconds": "seconds of training",
}
MEANS = {"glue_large": ("mnli", "qqp", "qnli"), "glue": tuple(TITLES)}
LOSS = "loss"
DAMAGED = "runs are damaged, and left out"
SHOWN = 8
EQUAL = 1.05  # clocks that differ by less count as equal
INIT = PREFIX + "init"  # the weights that a fine-tuning began with
OWN = ("task", "seed", "system", "net", "machine", "init", "tokenizer_digest")  # of a fine-tuning

Fields = dict[str, Any]
Tuned = Mapping[str, Sequence[RunRecord]]  # task -> the fine-tunings of one run


@dataclasses.dataclass(frozen=True)
class RunPoint:
    """What one run reached, and at what cost.

    Attributes:
      system: of the run.
      shape: AxHxL.
      clocks: each of CLOCKS that is known.
      value: the loss, or the score as a fraction.
      objective: what was minimised.
      fields: what comparability looks at, see above.
      departures: the fields in which its system declares to differ.
      num_seeds: whose mean it is.
    """

    system: str
    shape: str
    clocks: dict[str, float]
    value: float
    objective: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    departures: frozenset[str] = frozenset()
    num_seeds: int = 1

    @property
    def setting(self) -> str:
        """What runs that differ in their seed alone have in common, and no others."""
        return repr((self.system, self.shape, self.objective, sorted(self.fields.items())))


def read(
    folders: Sequence[pathlib.Path], measure: str, where: str = ""
) -> tuple[list[RunPoint], list[str]]:
    """Reads points of all runs below some folders.

    Args:
      folders: of runs, however deep.
      measure: "loss", a task, or one of MEANS.
      where: conditions as `run_table.where` takes them.

    Returns:
      The points, and what has to be said about them.

    Raises:
      ValueError: a folder does not exist, no run is finished, none has the measure, or losses are
        of different lengths.
    """
    if measure != LOSS and measure not in TITLES and measure not in MEANS:
        known = ", ".join([LOSS, *MEANS, *TITLES])
        raise ValueError(f"unknown measure {measure!r}; there are {known}")
    everyone = run_table.load_runs(folders)
    runs = [everyone[i] for i in run_table.where(run_table.as_frame(everyone), where).index]
    notes = describe_damaged(_concerned(everyone, runs))
    places = ", ".join(map(str, folders)) + (f" where {where}" if where else "")
    if not runs:
        raise ValueError(f"no runs in {places}")
    done = [run for run in runs if run.row["status"] == "completed"]
    pretrained = [run for run in done if run.row["task"] is None]
    found = [(run, y) for run in pretrained if (y := value(run.row, measure)) is not None]
    tasks = () if measure == LOSS else MEANS.get(measure, (measure,))
    tuned = _group_tuned(everyone, tasks)
    points = [_make_point(run, y, CLOCKS, tuned.get(run.place, {})) for run, y in found]
    unfinished = sum(run.row["status"] not in ("completed", "damaged") for run in runs)
    if unfinished:
        notes.append(f"{unfinished} runs are not finished, and left out")
    if not points and measure in TITLES:
        scored = [(run, run.row["score"]) for run in done if run.row["task"] == measure]
        points = [_make_point(run, y, ("n_model",), {}) for run, y in scored
                  if isinstance(y, float)]  # fmt: skip
        notes += ["each point is one fine-tuning: they do not lie below a pre-training, so what"
                  " those have in common is not known"]  # fmt: skip
    elif len(points) < len(pretrained):
        notes.append(f"{len(pretrained) - len(points)} runs have no {measure}, and are left out")
    if not points:
        raise ValueError(
            f"no finished run with {measure} in {places}, of {len(runs)} runs: wait for them,"
            " fine-tune them, or ask for something else that was measured"
            + "".join(f"; {note}" for note in notes if DAMAGED in note)
        )
    if measure == LOSS:
        _check_lengths([run.row for run, _ in found])
    return points, notes


def describe_damaged(runs: Sequence[LoadedRun]) -> list[str]:
    """Names the runs that cannot be read, with the reason: one line, or none."""
    found = [f"{r.row['run']}: {r.row['note']}" for r in runs if r.row["status"] == "damaged"]
    more = f"; and {len(found) - SHOWN} more" * (len(found) > SHOWN)
    return [f"{len(found)} {DAMAGED}: {'; '.join(found[:SHOWN])}{more}"] if found else []


def value(row: Row, measure: str) -> float | None:
    """Returns the measurement of a pre-training; None if it has not all of it."""
    parts = [row.get(name) for name in MEANS.get(measure, (measure,))]
    numbers = [float(part) for part in parts if isinstance(part, int | float)]
    return sum(numbers) / len(numbers) if len(numbers) == len(parts) else None


def means(points: Sequence[RunPoint]) -> list[RunPoint]:
    """Returns the means over seeds: of values, and of the clocks that all of them know."""
    found = []
    for own in settings(points):
        clocks = {
            name: sum(p.clocks[name] for p in own) / len(own)
            for name in own[0].clocks if all(name in p.clocks for p in own)
        }  # fmt: skip
        value = sum(p.value for p in own) / len(own)
        num = sum(p.num_seeds for p in own)
        found.append(dataclasses.replace(own[0], clocks=clocks, value=value, num_seeds=num))
    return found


def settings(points: Sequence[RunPoint]) -> list[list[RunPoint]]:
    """Groups the points whose runs differ in their seed alone."""
    groups: dict[str, list[RunPoint]] = {}
    for point in points:
        groups.setdefault(point.setting, []).append(point)
    return list(groups.values())


def by_system(points: Sequence[RunPoint]) -> dict[str, list[RunPoint]]:
    """Groups the points by system."""
    names = sorted({point.system for point in points})
    return {name: [p for p in points if p.system == name] for name in names}


def differing(points: Sequence[RunPoint], clock: str) -> bool:
    """Returns True if a clock differs between points by more than 5%."""
    readings = [p.clocks[clock] for p in points if clock in p.clocks]
    return bool(readings) and max(readings) > EQUAL * min(readings)


def _concerned(everyone: Sequence[LoadedRun], asked: Sequence[LoadedRun]) -> list[LoadedRun]:
    """Returns all runs but fine-tunings that neither were asked for nor belong to one that was.

    A damaged pre-training may be any, so that each may have been meant.
    """
    places = {run.place for run in asked}
    return [
        run for run in everyone
        if run.row["task"] is None or run.place in places or _pretraining(run) in places
    ]  # fmt: skip


def _group_tuned(
    runs: Sequence[LoadedRun], tasks: Iterable[str]
) -> dict[pathlib.Path, dict[str, list[RunRecord]]]:
    """Groups the fine-tunings whose scores count by the folder of their pre-training."""
    tasks, found = set(tasks), dict[pathlib.Path, dict[str, list[RunRecord]]]()
    for run in runs:
        if run.record and run.row["status"] == "completed" and run.row["task"] in tasks:
            of_run = found.setdefault(_pretraining(run), {})
            of_run.setdefault(str(run.row["task"]), []).append(run.record)
    return found


def _pretraining(run: LoadedRun) -> pathlib.Path:
    """Returns where the pre-training of a fine-tuning is that lies in RUN/tasks/TASK/seedN."""
    return run.place.parent.parent.parent


def _make_point(run: LoadedRun, y: float, clocks: Iterable[str], tuned: Tuned) -> RunPoint:
    row, record = run.row, run.record
    assert record is not None
    known = {name: float(x) for name in clocks if isinstance(x := row[name], int | float)}
    if record.task is None:
        fields = _describe_pretraining(record) | _describe_tasks(tuned)
    else:
        net = {k: v for k, v in record.config["net"].items() if k != "dropout_rate"}
        fields = flatten({"net": net}) | {INIT: record.config.get("init")} | _adaptation(record)
    fields = {name: x for name, x in fields.items() if x is not None}
    declared = record.result.departures if isinstance(record.result, RunResult) else ()
    return RunPoint(
        str(row["system"]), str(row["shape"]), known, y, str(row["objective"] or ""), fields,
        frozenset(departure.field for departure in declared),
    )  # fmt: skip


def _describe_pretraining(record: RunRecord) -> Fields:
    own = flatten({k: v for k, v in record.config.items() if k not in ("machine", "seed")})
    own.pop("task", None)
    return own | {"data": record.data_hash, "numerics": record.environment.numerics_versions}


def _describe_tasks(tuned: Tuned) -> Fields:
    """Returns each field's value where all fine-tunings agree, else the values by task, as text."""
    by_task = {task: [_adaptation(seed) for seed in seeds] for task, seeds in tuned.items()}
    names = sorted({name for seeds in by_task.values() for seed in seeds for name in seed})
    found: Fields = {}
    for name in names:
        values = {task: _distinct(x.get(name) for x in seeds) for task, seeds in by_task.items()}
        everywhere = _distinct(value for seeds in values.values() for value in seeds)
        found[name] = everywhere[0] if len(everywhere) == 1 else repr(values)
    return found


def _adaptation(record: RunRecord) -> Fields:
    """Returns how a fine-tuning adapts a net; what its recipe's grid chose on dev is its own."""
    own = flatten({name: value for name, value in record.config.items() if name not in OWN})
    result = record.result
    chosen = (result.chosen if isinstance(result, TaskResult) else None) or {}
    found = {PREFIX + name: value for name, value in own.items() if name not in chosen}
    return found | {PREFIX + "numerics": record.environment.numerics_versions}


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _left_out(row: Row) -> bool:
    """Returns True if a run has no second phase."""
    return not row.get("long.example_rate") or row.get("long.epoch_rate") == 0


def _check_lengths(rows: Sequence[Row]) -> None:
    """Refuses losses at different lengths, which do not compare."""
    lengths = {row.get("short.max_len" if _left_out(row) else "long.max_len") for row in rows}
    if len(lengths) > 1:
        listed = ", ".join(sorted(map(str, lengths)))
        field = "epoch" if any(row.get("long.epoch_rate") == 0 for row in rows) else "example"
        raise ValueError(
            f"the losses are of inputs of different lengths, {listed} tokens, and do not compare:"
            f" --where=long.{field}_rate=0 takes the runs that saw short ones alone"
        )
