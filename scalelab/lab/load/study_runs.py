"""Loads a study: its file (records/study_file.py), and the runs that it planned.

A run is WORKDIR/runs/<name>; its fine-tunings are below it in tasks/<task>/seed<k>, the
fine-tunings of the same model from random weights in scratch/<task>/seed<k>, and the scores of
evaluations at a share of the budget in early/<share>/<evaluation>/seed0. WORKDIR may be packed in
one file (records/archive.py).
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalelab.config.fields import flatten, science_diff
from scalelab.config.pretraining import Shape
from scalelab.helpers.names import check_names
from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import TaskRuns
from scalelab.records import archive, run_files, study_file
from scalelab.records.run_files import Environment, Line, RunRecord, RunResult, Unreadable
from scalelab.records.study_file import DEFAULT, StudyFile, StudyRun

SHOWN = 8  # differing fields of a damaged run


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PretrainRun(StudyRun):
    """One pre-training of a study, in whatever state; its config is the planned one."""

    folder: pathlib.Path  # need not exist yet
    n_model: int = 0  # as its system declares it; in older studies 12 L H^2
    result: RunResult | None  # None until it is finished
    damaged: str | None  # what is wrong with its folder, such as another config
    # Its fine-tunings and evaluations, by folder in the run ("tasks", "scratch" of the same model
    # from random weights, "early/0.5" at a share of the budget) and by task.
    tuned: Mapping[str, Mapping[str, TaskRuns]]
    environment: Environment = Environment()
    lines: tuple[Line, ...] = ()  # lines of metrics.jsonl
    __eq__, __hash__ = object.__eq__, object.__hash__  # pyright: ignore[reportAssignmentType]

    @property
    def finished(self) -> bool:
        """Whether the pre-training is complete."""
        return self.result is not None

    @property
    def loss(self) -> float | None:
        """The last validation loss at the longest length."""
        return self.result.loss if self.result else None

    @property
    def curves(self) -> dict[int, list[Line]]:
        """Maximum length -> validations, oldest first; empty if the run is damaged."""
        found: dict[int, list[Line]] = {}
        for line in () if self.damaged else run_files.validations(self.lines):
            found.setdefault(int(line["eval/max_len"]), []).append(line)
        return found


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: an arm of a study. The last four fields are empty for printed rows."""

    system: str
    shape: Shape
    variant: str  # its key in the study; DEFAULT changes nothing
    # All runs of the arm, which differ only in their seed, finished or not.
    runs: tuple[PretrainRun, ...] = dataclasses.field(default=(), compare=False, repr=False)
    _: dataclasses.KW_ONLY
    values: str = dataclasses.field(default="", compare=False)  # "mask_rate=0.4", in a grid
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    lines: tuple[str, ...] = dataclasses.field(default=(), compare=False)  # fields of the variant

    @property
    def key(self) -> str:
        """The row's name in files, and the seed of its resamples: never changed by a label."""
        return f"{self.system} {self.shape}" + f" {self.variant}" * (self.variant != DEFAULT)

    @property
    def arm(self) -> str:
        """The variant in words: "mask_rate=0.4", "half_steps", "default"."""
        return self.values or self.variant

    @property
    def label(self) -> str:
        """The name in tables: "bert 2x128x2", "bert 2x128x2 mask_rate=0.4"."""
        return f"{self.system} {self.shape}" + f" {self.arm}" * (self.arm != DEFAULT)

    def title(self, run: StudyRun) -> str:
        """The name of one of its runs in a terminal: of its folder, or with the arm's values."""
        return f"{self.label} seed{run.seed}" if self.values else run.name

    @property
    def finished(self) -> tuple[PretrainRun, ...]:
        """The runs that have been pre-trained."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def n_model(self) -> int:
        """The size N as its system declares it."""
        return next((run.n_model for run in self.runs if run.finished), self.runs[0].n_model)


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A comparison and its runs."""

    workdir: pathlib.Path  # holds studies/ and runs/
    facts: StudyFile
    points: tuple[Row, ...]  # in the study's order

    @property
    def name(self) -> str:
        """The study's name."""
        return self.facts.name

    @property
    def runs(self) -> list[PretrainRun]:
        """Every run of every point."""
        return [run for point in self.points for run in point.runs]

    @property
    def titles(self) -> dict[str, str]:
        """The name of every run in a terminal."""
        return {run.name: point.title(run) for point in self.points for run in point.runs}


def find_unused(study: Study) -> list[str]:
    """Returns the names of the finished runs of a study's folder that it has not planned."""
    folders = [study.workdir / "runs"]
    if (study.workdir / archive.NAME).exists():
        folders.append(archive.unpacked(study.workdir))
    done = {path.parent.name for folder in folders for path in folder.glob("*/result.json")}
    return sorted(done - {run.name for run in study.runs})


def read(workdir: pathlib.Path, name: str | None = None) -> Study:
    """Reads a study, by its name or as the only one of the folder, and the state of its runs.

    Raises:
      ValueError: there is no such study, or its file is damaged. A damaged run is only marked.
    """
    files = {path.stem: path for path in sorted((workdir / "studies").glob("*.json"))}
    if not files:
        raise ValueError(f"{workdir} holds no study: expected {workdir}/studies/<name>.json")
    if name is None and len(files) > 1:
        raise ValueError(f"{workdir} holds several studies: {', '.join(files)}; name one")
    name = name or next(iter(files))
    check_names([name], files, f"{workdir} holds no study")
    facts = study_file.read(files[name])
    arms: dict[Row, list[PretrainRun]] = {}
    for run in facts.runs:
        found = read_run(archive.find_run(workdir, run.name), run, facts.finetune_seeds)
        arms.setdefault(Row(run.system, run.shape, run.variant), []).append(found)
    rows = make_rows(facts.runs, facts.variants)
    points = tuple(dataclasses.replace(row, runs=tuple(arms[row])) for row in rows)
    return Study(workdir, facts, points)


def make_rows(runs: Iterable[StudyRun], variants: Mapping[str, Sequence[str]]) -> list[Row]:
    """Returns the rows of planned runs, in their order.

    Where a system has variants of a grid, these rows and the default are named by the values of all
    fields that the grid varies. A grid's variant is one whose key follows from its fields.
    """
    first: dict[tuple[str, Shape, str], StudyRun] = {}
    for run in runs:
        first.setdefault((run.system, run.shape, run.variant), run)
    varied: dict[str, dict[str, None]] = {}  # system -> fields; the longest variant has their order
    for system, _, variant in sorted(first, key=lambda row: -len(variants.get(row[2], ()))):
        lines = variants.get(variant, ())
        if lines and variant == name_variant(lines):
            fields = (line.partition("=")[0] for line in lines)
            varied.setdefault(system, {}).update(dict.fromkeys(fields))
    rows = []
    for (system, shape, variant), run in first.items():
        lines, values = tuple(variants.get(variant, ())), flatten(run.config)
        names = varied.get(system, {}) if variant in (DEFAULT, name_variant(lines)) else {}
        shorts = [name.rpartition(".")[2] for name in names]
        shown = " ".join(
            f"{short if shorts.count(short) == 1 else name}={show_value(values[name])}"
            for name, short in zip(names, shorts, strict=True) if name in values
        )  # fmt: skip
        rows.append(Row(system, shape, variant, values=shown, fields=values, lines=lines))
    return rows


def varied_fields(rows: Iterable[Row]) -> list[str]:
    """Returns the fields that the variants of some rows set."""
    return list(dict.fromkeys(line.partition("=")[0] for row in rows for line in row.lines))


def name_variant(lines: Sequence[str]) -> str:
    """Returns the key of a grid's variant: "mask_rate_0p4" for the field line "mask_rate=0.4"."""
    named = "_".join(line.partition("=")[0].rpartition(".")[2] + "_" + line.partition("=")[2]
                     for line in lines)  # fmt: skip
    return re.sub(r"\W", "_", named.replace(".", "p").replace("-", "m")) or DEFAULT


def show_value(value: object) -> str:
    """Returns a field's value as short as it is exact: "0.003", "1e-5", "mlm"."""
    if not isinstance(value, float):
        return str(value)
    text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return re.sub(r"e([+-]?)0*", lambda found: "e" + found[1].strip("+"), text)


def read_run(
    folder: pathlib.Path, planned: StudyRun, finetune_seeds: int | None = None
) -> PretrainRun:
    """Reads the state of a planned run, with `finetune_seeds` seeds of each task; None: all."""
    record, damaged = RunRecord(folder, {}, Environment(), None), None
    if any((folder / name).exists() for name in ("config.json", "result.json")):
        try:
            record = run_files.read_run(folder)
        except Unreadable as error:
            damaged = f"{error.path.name} {error.reason}"
    result = record.result
    if result is not None and (not isinstance(result, RunResult) or result.status != "completed"):
        result, damaged = None, "result.json is not from a completed pre-training"
    elif result is not None and (lines := science_diff(planned.config, record.config)):
        more = f"; and {len(lines) - SHOWN} more fields" * (len(lines) > SHOWN)
        damaged = f"config.json differs from the study: {'; '.join(lines[:SHOWN])}{more}"
        result = None
    early = {f"early/{path.parts[-3]}" for path in folder.glob("early/[01]*/*/seed0")}
    tuned = {
        part: task_runs.read(folder / part, num_seeds=finetune_seeds)
        if (folder / part).is_dir() else {} for part in ("tasks", "scratch", *early)
    }  # fmt: skip
    size = result.n_model if result else planned.n_model
    size = planned.shape.n_model if size is None else size
    plan: dict[str, Any] = vars(planned) | {"n_model": size}
    return PretrainRun(
        **plan, folder=folder, result=result, damaged=damaged,
        tuned=tuned, environment=record.environment, lines=record.lines,
    )  # fmt: skip
