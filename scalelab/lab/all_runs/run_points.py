"""Finished runs as points: a measurement against the clocks and the size.

A point is a pre-training that ended. Its measurement is its validation loss at the end, or the mean
main score over seeds of its fine-tunings in tasks/: of one task by name, of GLUE-Large's three as
"glue_large", of all nine as "glue". Where fine-tunings lie elsewhere, each of them is a point, and
only the size is known: their own tokens and seconds are not those of the pre-training.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.lab.all_runs import run_query, run_table
from scalelab.lab.all_runs.run_table import Row
from scalelab.lab.compare import run_fields
from scalelab.lab.reading.run_files import is_number
from scalelab.lab.reading.task_runs import TITLES

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
Tuned = dict[pathlib.Path, dict[str, list[pathlib.Path]]]  # of a run: task -> fine-tunings
EQUAL = 1.05  # clocks that differ by less count as equal


@dataclasses.dataclass(frozen=True)
class RunPoint:
    """What one run reached, and at what cost.

    Attributes:
      system: of the run.
      shape: AxHxL.
      clocks: each of CLOCKS that is known.
      value: the loss, or the score as a fraction.
      objective: what was minimised.
      fields: what the contract looks at, as run_fields has it.
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
        of = (self.system, self.shape, self.objective, sorted(self.fields.items()))
        return repr(of)


def read(
    folders: Sequence[pathlib.Path], measure: str, where: str = ""
) -> tuple[list[RunPoint], list[str]]:
    """Reads points of all runs below some folders.

    Args:
      folders: of runs, however deep.
      measure: "loss", a task, or one of MEANS.
      where: conditions as `run_query.where` takes them.

    Returns:
      The points, and what has to be said about them.

    Raises:
      ValueError: a folder does not exist, no run is finished, none has the measure, or losses are
        of different lengths.
    """
    if measure != LOSS and measure not in TITLES and measure not in MEANS:
        known = ", ".join([LOSS, *MEANS, *TITLES])
        raise ValueError(f"unknown measure {measure!r}; there are {known}")
    everything = run_table.read(folders)
    rows = run_query.where(everything, where)
    notes = damaged(_concerned(everything, rows))
    places = ", ".join(map(str, folders)) + (f" where {where}" if where else "")
    if not rows:
        raise ValueError(f"no runs in {places}")
    done = [row for row in rows if row["status"] == "completed"]
    pretrained = [row for row in done if row["task"] is None]
    found = [(row, value(row, measure)) for row in pretrained]
    tasks = () if measure == LOSS else MEANS.get(measure, (measure,))
    tuned = _tuned(everything, tasks)
    points = [_point(row, y, tuple(CLOCKS), tuned) for row, y in found if y is not None]
    unfinished = len(rows) - len(done) - sum(row["status"] == "damaged" for row in rows)
    if unfinished:
        notes.append(f"{unfinished} runs are not finished, and left out")
    if not points and measure in TITLES:
        alone = [(row, row["score"]) for row in done if row["task"] == measure]
        points = [_point(row, float(y), ("n_model",), {}) for row, y in alone if is_number(y)]  # type: ignore
        notes += ["each point is one fine-tuning: they do not lie below a pre-training, so what"
                  " those have in common is not known"]  # fmt: skip
    elif len(points) < len(pretrained):
        notes.append(f"{len(pretrained) - len(points)} runs have no {measure}, and are left out")
    if not points:
        raise ValueError(
            f"no finished run with {measure} in {places}, of {len(rows)} runs: wait for them,"
            " fine-tune them, or ask for something else that was measured"
            + "".join(f"; {note}" for note in notes if DAMAGED in note)
        )
    if measure == LOSS:
        _check_lengths([row for row, y in found if y is not None])
    return points, notes


def damaged(rows: Sequence[Row]) -> list[str]:
    """The runs whose files are damaged or were edited, with the reason: one line, or none."""
    found = [f"{row['run']}: {row['note']}" for row in rows if row["status"] == "damaged"]
    more = f"; and {len(found) - SHOWN} more" * (len(found) > SHOWN)
    return [f"{len(found)} {DAMAGED}: {'; '.join(found[:SHOWN])}{more}"] if found else []


def value(row: Row, measure: str) -> float | None:
    """The measurement of a pre-training in the run table; None if it has not all of it."""
    parts = [row.get(name) for name in MEANS.get(measure, (measure,))]
    numbers = [float(part) for part in parts if is_number(part)]  # type: ignore
    return sum(numbers) / len(numbers) if len(numbers) == len(parts) else None


def means(points: Sequence[RunPoint]) -> list[RunPoint]:
    """The means over seeds: of values, and of the clocks that all of them know."""
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
    """The points whose runs differ in their seed alone, together."""
    groups: dict[str, list[RunPoint]] = {}
    for point in points:
        groups.setdefault(point.setting, []).append(point)
    return list(groups.values())


def by_system(points: Sequence[RunPoint]) -> dict[str, list[RunPoint]]:
    """The points of each system, by its name."""
    names = sorted({point.system for point in points})
    return {name: [p for p in points if p.system == name] for name in names}


def differing(points: Sequence[RunPoint], clock: str) -> bool:
    """Whether a clock differs between points by more than 5%."""
    readings = [p.clocks[clock] for p in points if clock in p.clocks]
    return bool(readings) and max(readings) > EQUAL * min(readings)


def _concerned(everything: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """All runs but fine-tunings that neither were asked for nor belong to a run that was.

    What a damaged pre-training says of itself is not believed, so that each may have been meant.
    """
    asked = {_place(row) for row in rows}
    return [
        row for row in everything
        if row["task"] is None or _place(row) in asked or _pretraining(row) in asked
    ]  # fmt: skip


def _tuned(rows: Sequence[Row], tasks: Sequence[str]) -> Tuned:
    """The fine-tunings on tasks whose scores count, of each pre-training, by its folder."""
    found: Tuned = {}
    for row in rows:
        if row["status"] == "completed" and row["task"] in tasks:
            of = found.setdefault(_pretraining(row), {})
            of.setdefault(str(row["task"]), []).append(_place(row))
    return found


def _place(row: Row) -> pathlib.Path:
    return pathlib.Path(str(row["run"])).resolve()


def _pretraining(row: Row) -> pathlib.Path:
    """Where its pre-training is, of a fine-tuning that lies below it: RUN/tasks/TASK/seedN."""
    return _place(row).parent.parent.parent


def _point(row: Row, y: float, clocks: Sequence[str], tuned: Tuned) -> RunPoint:
    known = {name: float(row[name]) for name in clocks if is_number(row[name])}  # type: ignore
    folder = pathlib.Path(str(row["run"]))
    if row["task"] is None:
        fields = run_fields.of_pretraining(folder, tuned.get(_place(row)))
    else:
        fields = run_fields.of_finetuning(folder)
    return RunPoint(
        str(row["system"]), str(row["shape"]), known, y, str(row["objective"] or ""), fields,
        run_fields.departures(folder),
    )  # fmt: skip


def _left_out(row: Row) -> bool:
    """Whether a run has no second phase."""
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
