"""Expands a study into runs, each with a resolved config, and writes its file.

The config of a run is the study's `pretrain`, overridden in this order by the departures of the
system, the study's `fields`, its `system_fields`, the variant's fields, the shape and the seed. A
departure of the budget (epochs) counts only if the study's own budget is on that clock. A value
"x0.5" multiplies the value before it. "xpass:VARIANT", among a variant's fields, multiplies by the
tokens of a pass over the corpus relative to that variant's (passes.py), so that an equal budget
becomes equal passes.
"""

import copy
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab import systems
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import flatten
from scalelab.config.pretraining import Config, Shape
from scalelab.helpers.files import write_json
from scalelab.helpers.names import nearest
from scalelab.lab.compare import shape_rules
from scalelab.lab.load import archive, study_runs
from scalelab.lab.load.study_runs import BASELINE, PretrainRun
from scalelab.studies import finetunings, passes, sharing
from scalelab.studies.spec import COMPOUND, StudySpec, parse_fields, parse_shape

BUDGETS = ("optim.total_", "optim.warmup_")


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One pre-training that a study wants.

    Attributes:
      name: its folder's, such as "bert-2x128x2-half_steps-seed0"; where the shape is foreseen
        only, such as "bert-compound:1-seed0".
      stage: the stage that it belongs to.
      system: its name.
      shape: of the net.
      variant: name.
      seed: its seed.
      config: resolved.
    """

    name: str
    stage: str
    system: str
    shape: Shape
    variant: str
    seed: int
    config: Config


def expand_runs(
    spec: StudySpec, workdir: pathlib.Path, *, foreseen: bool = False
) -> list[PlannedRun]:
    """Expands a study into its runs; stages whose shapes are not known yet have none.

    Args:
      spec: the study.
      workdir: holds the runs of earlier stages, on which later ones may depend.
      foreseen: gives those stages a shape of the expected size instead, for a plan.

    Raises:
      ValueError: a config cannot be resolved; the message names the run.
    """
    found: dict[str, PlannedRun] = {}
    earlier: list[PlannedRun] = []
    for stage_name, stage in spec.stages.items():
        shapes = list(_shapes(spec, stage.shapes, earlier, workdir, foreseen))
        earlier = [
            _run(spec, stage_name, _Level(system, shape, variant, seed), text, workdir)
            for seed in range(spec.seeds)
            for variant in stage.variants
            for system in stage.systems
            for shape, text in shapes
        ]
        for run in earlier:
            found.setdefault(run.name, run)
    return list(found.values())


def _shapes(
    spec: StudySpec, shapes: Sequence[str], earlier: Sequence[PlannedRun], workdir: pathlib.Path,
    foreseen: bool,
) -> Iterator[tuple[Shape, str]]:  # fmt: skip
    """Yields the shapes of a stage, and their texts in names of runs."""
    for text in shapes:
        if not text.startswith(COMPOUND):
            shape = parse_shape(text)
            yield shape, str(shape)
            continue
        base = _scaling_base(spec, earlier, workdir)
        known = sorted({run.shape for run in earlier}, key=lambda s: (s.n_model, s.num_layers))
        label = text if base is None else None
        if base is None and foreseen and known:
            base = known[len(known) // 2]  # the middle one has about the size of the best
        if base is not None:
            scaling = shape_rules.Scaling(base)
            shape = scaling.at(scaling.phi + float(text.removeprefix(COMPOUND)))
            yield shape, label or str(shape)


def _scaling_base(
    spec: StudySpec, earlier: Sequence[PlannedRun], workdir: pathlib.Path
) -> Shape | None:
    """Returns the best shape of a stage, which compound scaling starts from (protocol, 7.5.5).

    Best is, among the three of the least mean validation loss, the one with the best mean
    fine-tuned score; the least loss if nothing was fine-tuned. None while runs are unfinished.
    """
    tasks, seeds = spec.finetune.tasks, spec.finetune.seeds
    grid: dict[Shape, list[PretrainRun]] = {}
    for run in earlier:
        state = study_runs.read_run(archive.find_run(workdir, run.name), describe(run), seeds)
        grid.setdefault(run.shape, []).append(state)
    found = shape_rules.find_base(grid, tasks, seeds) if grid else None
    return found and found[0]


class _Level(NamedTuple):
    """The levels of the factors in which runs of a study differ."""

    system: str
    shape: Shape
    variant: str
    seed: int


def _run(
    spec: StudySpec, stage: str, level: _Level, text: str, workdir: pathlib.Path
) -> PlannedRun:
    middle = [] if level.variant == BASELINE else [level.variant]
    name = "-".join([level.system, text, *middle, f"seed{level.seed}"])
    try:
        config = _config(spec, level, workdir)
    except ValueError as error:
        raise ValueError(f"run {name}: {error}") from None
    return PlannedRun(name, stage, *level, config)


def _config(spec: StudySpec, level: _Level, workdir: pathlib.Path) -> Config:
    system, shape, variant, seed = level
    values = copy.deepcopy(dataclasses.asdict(spec.pretrain))
    by_epochs = spec.pretrain.optim.total_epochs is not None
    departures = {d.field: d.value for d in systems.load(system).DEPARTURES}
    own = parse_fields(spec.variants[variant])
    by_passes = {
        field: value.removeprefix(passes.FACTOR)
        for field, value in own.items() if str(value).startswith(passes.FACTOR)
    }  # fmt: skip
    layers: list[Mapping[str, Any]] = [
        {"system": system},
        {k: v for k, v in departures.items() if by_epochs or not k.startswith(BUDGETS)},
        parse_fields(spec.fields),
        parse_fields(spec.system_fields.get(system, ())),
        {field: value for field, value in own.items() if field not in by_passes},
        {
            "net.num_heads": shape.num_heads,
            "net.width": shape.width,
            "net.num_layers": shape.num_layers,
            "seed": seed,
        },
    ]
    for layer in layers:
        for field, value in layer.items():
            _set(values, field, value)
    for field, other in by_passes.items():
        _set(values, field, f"x{_passes_apart(spec, level, values, other, workdir)}")
    return config_lib.resolve(values)


def _passes_apart(
    spec: StudySpec, level: _Level, values: dict[str, Any], other: str, workdir: pathlib.Path
) -> float:
    """Returns the tokens of a pass relative to another variant's; all seeds take that of seed 0."""
    if other not in spec.variants or other == level.variant:
        raise ValueError(
            f"{passes.FACTOR}{other}: expected another variant: {nearest(other, spec.variants)}"
        )
    if any(passes.FACTOR in line for line in spec.variants[other]):
        raise ValueError(f"{passes.FACTOR}{other}: its own budget is in passes of another")
    own = config_lib.resolve(values | {"seed": 0})
    theirs = _config(spec, level._replace(variant=other, seed=0), workdir)
    return passes.factor(own, theirs, workdir)


def _set(values: dict[str, Any], field: str, value: Any) -> None:
    """Replaces a dotted field, or multiplies it by "x0.5"."""
    flat = flatten(values)
    if field not in flat:
        raise ValueError(f"unknown config field {field!r}: {nearest(field, flat)}")
    before = flat[field]
    if isinstance(value, str) and value[:1] == "x" and isinstance(before, int | float):
        try:
            value = type(before)(before * float(value[1:]))
        except ValueError:
            raise ValueError(f"{field}={value}: expected x and a factor") from None
    *groups, name = field.split(".")
    for group in groups:
        values = values[group]
    values[name] = value


def describe(run: PlannedRun) -> dict[str, Any]:
    """Returns the entry of a run in the study's file."""
    return {
        "name": run.name,
        "stage": run.stage,
        "system": run.system,
        "shape": {"A": run.shape.num_heads, "H": run.shape.width, "L": run.shape.num_layers},
        "variant": run.variant,
        "seed": run.seed,
        "config": dataclasses.asdict(run.config),
    }


def facts(spec: StudySpec, planned: list[PlannedRun], command: str) -> dict[str, Any]:
    """Returns the content of the study's file; see `scalelab.lab.load.study_runs`."""
    names = sorted({run.system for run in planned})
    adaptation, chosen = finetunings.plan_fields(spec.finetune)
    departures = {
        name: [dataclasses.asdict(d) for d in systems.load(name).DEPARTURES] for name in names
    }
    kept = dataclasses.asdict(spec)
    for field in ("pretrain", "stage_order"):
        del kept[field]
    return kept | {
        "tasks": list(spec.finetune.tasks),
        "recipe": spec.finetune.recipe,
        "finetune_seeds": spec.finetune.seeds,
        "adaptation": adaptation,
        "chosen": chosen,
        "departures": departures,
        "stages": {
            name: {"finetune": stage.finetune, "shapes": list(stage.shapes)}
            for name, stage in spec.stages.items()
        },
        "command": command,
        "runs": [describe(run) | {"finetune": spec.stages[run.stage].finetune} for run in planned],
    }


def write(
    spec: StudySpec, planned: list[PlannedRun], workdir: pathlib.Path, command: str
) -> pathlib.Path:
    """Writes the study's file if it has changed.

    Raises:
      ValueError: the folder holds this study at another scale, or a study that has other fields for
        a run or a fine-tuning of the same name; see `sharing`.
    """
    path = workdir / "studies" / f"{spec.name}.json"
    content = json.loads(json.dumps(facts(spec, planned, command)))
    if path.exists():
        before = study_runs.read_facts(path)
        if before.get("scale") != content["scale"]:
            raise ValueError(
                f"{path} is at scale {before.get('scale')!r}, this study at {content['scale']!r}:"
                " choose another --workdir"
            )
        content = _with_finished(before, content, workdir)
        if {**before, "command": None} == {**content, "command": None}:
            return path
    sharing.check(content, workdir)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    return path


def _with_finished(
    before: dict[str, Any], now: dict[str, Any], workdir: pathlib.Path
) -> dict[str, Any]:
    """Adds runs of the previous file that are finished but not planned any more.

    A scaled run, for example, while a run of the grid that it came from is repeated.
    """
    planned = {run["name"] for run in now["runs"]}
    kept = [
        run for run in before.get("runs", ())
        if run["name"] not in planned
        and study_runs.read_run(archive.find_run(workdir, run["name"]), run).finished
    ]  # fmt: skip
    wanted = {
        "stages": {run["stage"] for run in kept},
        "variants": {run["variant"] for run in kept},
        "departures": {run["system"] for run in kept},
    }
    parts = {
        part: {k: v for k, v in before.get(part, {}).items() if k in names} | now[part]
        for part, names in wanted.items()
    }
    return now | parts | {"runs": now["runs"] + kept}
