"""Expands a study into runs, each with a resolved config, and writes its file.

A variant's fields that begin with "finetune." change its fine-tuning, others its pre-training.
The config of a run is the study's `pretrain`, overridden in this order by the declared differences
of the system, the study's `fields`, its `system_fields`, the variant's fields, the shape and the
seed. A declared difference of the budget (epochs) counts only if the study's own budget is on that
clock. A value "x0.5" multiplies the value before it.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from scalelab import systems
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import OWNERS, flatten, parse_fields, science, science_diff
from scalelab.config.finetuning import override
from scalelab.config.pretraining import Config, Shape
from scalelab.helpers.files import write_json
from scalelab.helpers.names import prefix_errors
from scalelab.lab.compare.comparability import PREFIX, SHAPE_FIELDS
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import Row
from scalelab.records import archive, json_files, run_files, study_file
from scalelab.records.study_file import DEFAULT, StudyFile, StudyRun
from scalelab.studies import finetunings
from scalelab.studies.spec import StudySpec

BUDGETS = ("optim.total_", "optim.warmup_")
SHOWN = 8


@dataclasses.dataclass(frozen=True)
class PlannedRun(StudyRun):
    """One planned pre-training of a study, with its checked config."""

    config: Config  # pyright: ignore[reportIncompatibleVariableOverride]


def expand_runs(spec: StudySpec) -> list[PlannedRun]:
    """Expands a study into its runs; a run that two stages name belongs to the first of them.

    Raises:
      ValueError: a config cannot be resolved, and the message names the run; or no row of the study
        can decide one of its claims.
    """
    found: dict[str, PlannedRun] = {}
    known: dict[tuple[Any, ...], str] = {}
    for stage_name, stage in spec.stages.items():
        shapes = map(Shape.parse, stage.shapes)
        factors = itertools.product(range(spec.seeds), stage.variants, stage.systems, shapes)
        for seed, variant, system, shape in factors:
            middle = [] if variant == DEFAULT else [variant]
            name = "-".join([system, str(shape), *middle, f"seed{seed}"])
            with prefix_errors(f"run {name}"):
                config = _config(spec, system, shape, variant, seed)
            size = systems.n_model(systems.load(system), config.model, config.system_options)
            run = PlannedRun(name, stage_name, system, shape, variant, seed, config, size)
            found.setdefault(name, run)
            tuned = finetunings.split_lines(spec.variants[variant])[1]
            same = known.setdefault((system, shape, seed, repr(config), tuned), variant)
            if same != variant:
                raise ValueError(
                    f"the variants {same!r} and {variant!r} of {system} {shape} have one config:"
                    " the shape, the seed or the system sets the fields that they change; write"
                    " such variants by hand"
                )
    _check_claims(spec, list(found.values()))
    return list(found.values())


def _check_claims(spec: StudySpec, runs: list[PlannedRun]) -> None:
    """Raises ValueError for a claim that no row of the study can decide."""
    from scalelab.lab.compare import claim_lines

    rows = make_rows(spec, runs) if spec.lines else []
    for line in spec.lines:
        with prefix_errors(f"config.hypotheses: {line!r}"):
            claim = claim_lines.parse(line, rows, (*spec.finetune.tasks, *spec.evaluations))
            if not claim.pairs:
                held = ", ".join(claim.matched)
                same = f" of the same {held}" if held else ""
                raise ValueError(f"the study has no two rows to compare{same}; see config.stages")


def make_rows(spec: StudySpec, runs: Iterable[PlannedRun]) -> list[Row]:
    """Returns the rows of a report of some runs."""
    first = (
        StudyRun(**vars(run) | {"config": dataclasses.asdict(run.config)})
        for run in runs if not run.seed
    )  # fmt: skip
    return study_runs.make_rows(first, spec.variants)


def _config(spec: StudySpec, system: str, shape: Shape, variant: str, seed: int) -> Config:
    by_epochs = spec.pretrain.optim.total_epochs is not None
    departures = {d.field: d.value for d in systems.load(system).DEPARTURES}
    net = {"model.num_heads": shape.num_heads, "model.width": shape.width}
    layers: list[Mapping[str, Any]] = [
        {"system": system},
        {k: v for k, v in departures.items() if by_epochs or not k.startswith(BUDGETS)},
        parse_fields(spec.fields),
        parse_fields(spec.system_fields.get(system, ())),
        parse_fields(finetunings.split_lines(spec.variants[variant])[0]),
        net | {"model.num_layers": shape.num_layers, "seed": seed},
        {"machine.kept_shares": spec.evaluation_shares} if spec.evaluation_shares else {},
    ]
    return config_lib.resolve(_override(spec, layers))


def _override(spec: StudySpec, layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the nested values of the study's `pretrain`, overridden by layers of fields.

    A number times 0.5 is "x0.5".
    """
    values = dataclasses.asdict(spec.pretrain)
    for field, value in (item for layer in layers for item in layer.items()):
        before = flatten(values).get(field)
        if isinstance(value, str) and value[:1] == "x" and isinstance(before, int | float):
            with prefix_errors(f"{field}={value}: expected x and a factor"):
                value = type(before)(before * float(value[1:]))
        values = override(values, {field: value})
    return values


def _departures(system: systems.System) -> list[systems.Departure]:
    """Returns what a system declares to differ from the base config, its fine-tuning included."""
    recipe = getattr(system, "RECIPE", {}).items()
    tuned = [
        systems.Departure(PREFIX + field, value, "the system's RECIPE") for field, value in recipe
    ]
    return [*system.DEPARTURES, *tuned]


def write(spec: StudySpec, runs: list[PlannedRun], workdir: pathlib.Path, command: str) -> None:
    """Writes the study's file (see `scalelab.records.study_file`) if it has changed.

    Args:
      spec: the study.
      runs: its runs.
      workdir: folder of the study.
      command: command line that makes it.

    Raises:
      ValueError: the folder holds this study at another scale, or a study or a run folder that has
        other fields for a run or a fine-tuning of the same name.
    """
    adaptation, chosen = finetunings.plan_fields(spec.finetune)
    for lines in spec.variants.values():  # refuses unknown fields before anything is trained
        finetunings.plan_fields(finetunings.tune_variant(spec.finetune, lines))
    facts = dataclasses.asdict(spec) | {
        "tasks": list(spec.finetune.tasks),
        "recipe": spec.finetune.recipe,
        "finetune_seeds": spec.finetune.seeds,
        "adaptation": adaptation,
        "chosen": chosen,
        "departures": {
            name: [dataclasses.asdict(d) for d in _departures(systems.load(name))]
            for name in sorted({run.system for run in runs})
        },
        "command": command,
        "base": science(_override(spec, [parse_fields(spec.fields)])),
        "runs": [json_files.dump(run) for run in runs],
    }
    for field in ("pretrain", "stage_order"):
        del facts[field]
    path, facts = workdir / "studies" / f"{spec.name}.json", json.loads(json.dumps(facts))
    facts = study_file.rename_fields(facts)  # lines of hypotheses are tuples, as in a file
    new, before, begun = json_files.fill(StudyFile, facts, path), None, False
    if path.exists():
        before = study_file.read(path)
        begun = any(archive.find_run(workdir, run.name).exists() for run in before.runs)
    if before and begun:  # a plan without runs is replaced
        if before.scale != spec.scale:
            raise ValueError(
                f"{path} is at scale {before.scale!r}, this study at {spec.scale!r}: choose"
                " another --workdir"
            )
        changed = before.earlier_primary
        done = sum((archive.find_run(workdir, run.name) / "result.json").exists()
                   for run in before.runs)  # fmt: skip
        if before.primary != spec.primary and done:
            changed += ((before.primary, done),)
        facts["earlier_primary"] = changed
        new = dataclasses.replace(new, earlier_primary=changed)
        if dataclasses.replace(before, command=command) == new:
            return
    check_shared(new, workdir, leave_out=() if begun else (path,))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, facts)


def check_shared(
    facts: StudyFile, workdir: pathlib.Path, leave_out: Collection[pathlib.Path] = ()
) -> None:
    """Checks, before anything is written, that a study agrees with the runs of its folder.

    Studies of a folder share runs by name. They may have other systems, shapes, variants, seeds and
    tasks, but config and fine-tuning of a shared run must agree. Files in `leave_out` do not count.

    Raises:
      ValueError: they do not agree; the message names the fields.
    """
    configs, compared = {run.name: run.config for run in facts.runs}, []
    others = dict[pathlib.Path, StudyFile]()
    for path in sorted({*(workdir / "studies").glob("*.json")} - {*leave_out}):
        others[path] = other = study_file.read(path)
        planned = {run.name: run.config for run in other.runs if run.name in configs}
        compared += [(f"{path} plans {name}", planned[name], configs[name]) for name in planned]
        tasks = sorted(facts.adaptation.keys() & other.adaptation.keys()) if planned else ()
        pairs = [(task, other.adaptation[task], facts.adaptation[task]) for task in tasks]
        compared += [(f"{path} fine-tunes on {task}", *pair) for task, *pair in pairs]
    for name, config in configs.items():
        folder = archive.find_run(workdir, name)
        if (folder / "config.json").exists():
            compared.append((f"{folder} is there", run_files.read_config(folder), config))
    for what, found, wanted in compared:
        _refuse(f"{what} with other fields", science_diff(wanted, found))
    for path, other in others.items():
        _check_base(facts, other, path)


def _check_base(facts: StudyFile, other: StudyFile, path: pathlib.Path) -> None:
    """Checks that two studies have one base config, but for what one of them varies.

    Raises:
      ValueError: they do not; the message names the fields.
    """
    if facts.base is None or other.base is None:  # not recorded
        return
    free = {"system", "seed", *SHAPE_FIELDS}
    for own in (facts, other):
        groups = (*own.variants.values(), *own.system_fields.values())
        free |= {*own.allow, *own.free, *(x for lines in groups for x in parse_fields(lines))}
    # Options belong to an objective, a format or a system that may be free.
    free |= {
        name for name in {*facts.base, *other.base} if OWNERS.get(name.partition(".")[0]) in free
    }
    what = f"{path} has another base config, which this study does not vary"
    _refuse(what, science_diff(facts.base, other.base, free))


def _refuse(what: str, lines: list[str]) -> None:
    """Raises ValueError if there are lines of differing fields."""
    if lines:
        more = f"\n  and {len(lines) - SHOWN} more" * (len(lines) > SHOWN)
        raise ValueError(
            f"{what}; choose another --workdir, or undo:\n  " + "\n  ".join(lines[:SHOWN]) + more
        )
