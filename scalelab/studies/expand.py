"""From a study to its runs, each with a resolved config.

The config of a run is the study's `pretrain`, and on it, in this order, the departures of the
system, the study's `fields`, its `system_fields`, the variant's fields, the shape and the seed. A
departure of the budget (epochs) is taken only where the study's own budget is on that clock. A
value "x0.5" multiplies what there was; "xpass:VARIANT", among a variant's fields, by the tokens
that a pass over the corpus has, compared with that variant's (passes.py), so that an equal budget
becomes equal passes.
"""

import copy
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scalelab import systems
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import flatten
from scalelab.config.pretraining import Config, Shape
from scalelab.helpers.files import write_json
from scalelab.helpers.names import nearest
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import BASELINE
from scalelab.studies import adapting, derive, passes, sharing
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


def runs(spec: StudySpec, workdir: pathlib.Path, *, foreseen: bool = False) -> list[PlannedRun]:
    """The runs of a study, those of a stage whose shapes are not known yet left out.

    Args:
      spec: the study.
      workdir: holds the runs of earlier stages, which later ones may depend on.
      foreseen: gives those a shape of the size that theirs will have instead, for a plan.

    Raises:
      ValueError: a config cannot be resolved; the message names the run.
    """
    found: dict[str, PlannedRun] = {}
    earlier: list[PlannedRun] = []
    for stage_name, stage in spec.stage_list:
        planned = []
        for seed in range(spec.seeds):
            for variant in stage.variants:
                for system in stage.systems:
                    for shape, text in _shapes(spec, stage.shapes, earlier, workdir, foreseen):
                        level = _Level(system, shape, variant, seed)
                        planned.append(_run(spec, stage_name, level, text, workdir))
        for run in planned:
            found.setdefault(run.name, run)
        earlier = planned
    return list(found.values())


def _shapes(
    spec: StudySpec, shapes: tuple[str, ...], earlier: list[PlannedRun], workdir: pathlib.Path,
    foreseen: bool,
) -> Iterator[tuple[Shape, str]]:  # fmt: skip
    """The shapes of a stage, and how names of runs have them."""
    for text in shapes:
        if not text.startswith(COMPOUND):
            shape = parse_shape(text)
            yield shape, str(shape)
            continue
        step, seeds = float(text.removeprefix(COMPOUND)), spec.finetune.seeds
        states = [
            study_runs.read_run(workdir / "runs" / r.name, describe(r), seeds) for r in earlier
        ]
        pairs = [(run.shape, state) for run, state in zip(earlier, states, strict=True)]
        try:
            shape = derive.scaled(pairs, step, spec.finetune.tasks, seeds)
        except derive.Damaged:
            if not foreseen:
                raise
            shape = None
        if shape is not None:
            yield shape, str(shape)
        elif foreseen and earlier:
            yield derive.foreseen([run.shape for run in earlier], step), text


class _Level(NamedTuple):
    """What runs of a study differ in."""

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
    """How many times the tokens of another variant's pass a pass has; of seed 0 for all seeds."""
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
    """Replaces one dotted field; "x0.5" multiplies it."""
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
    """What the study's file says of a run."""
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
    """The content of the study's file; see `scalelab.lab.load.study_runs`."""
    names = sorted({run.system for run in planned})
    adaptation, chosen = adapting.planned(spec.finetune)
    departures = {
        name: [dataclasses.asdict(d) for d in systems.load(name).DEPARTURES] for name in names
    }
    return {
        "name": spec.name,
        "title": spec.title,
        "question": spec.question,
        "protocol": spec.protocol,
        "comparison": spec.comparison,
        "scale": spec.scale,
        "matched": spec.matched,
        "free": list(spec.free),
        "allow": list(spec.allow),
        "tables": list(spec.tables),
        "rows": {name: dataclasses.asdict(rows) for name, rows in spec.rows.items()},
        "figures": list(spec.figures),
        "hypotheses": list(spec.hypotheses),
        "tasks": list(spec.finetune.tasks),
        "recipe": spec.finetune.recipe,
        "finetune_seeds": spec.finetune.seeds,
        "adaptation": adaptation,
        "chosen": chosen,
        "finetune": dataclasses.asdict(spec.finetune),
        "seeds": spec.seeds,
        "departures": departures,
        "fields": list(spec.fields),
        "system_fields": {k: list(v) for k, v in spec.system_fields.items()},
        "variants": {k: list(v) for k, v in spec.variants.items()},
        "stages": {
            name: {"finetune": stage.finetune, "shapes": list(stage.shapes)}
            for name, stage in spec.stage_list
        },
        "command": command,
        "runs": [describe(run) | {"finetune": spec.stages[run.stage].finetune} for run in planned],
    }


def write(
    spec: StudySpec, planned: list[PlannedRun], workdir: pathlib.Path, command: str
) -> pathlib.Path:
    """Writes the study's file.

    Raises:
      ValueError: the folder holds another study of that name, of another scale, or one that has
        other fields for a run or a fine-tuning of the same name; see `sharing`.
    """
    path = workdir / "studies" / f"{spec.name}.json"
    content = json.loads(json.dumps(facts(spec, planned, command)))
    if path.exists():
        before = study_runs.read_facts(path)
        _refuse_another(before, content, path)
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
    """Adds the runs of the file before that are finished but not planned any more.

    Such as a scaled one, since a run of the grid that it came from is to be repeated.
    """
    planned = {run["name"] for run in now["runs"]}
    kept = [
        run for run in before.get("runs", ())
        if run["name"] not in planned
        and study_runs.read_run(workdir / "runs" / run["name"], run).finished
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


def _refuse_another(before: dict[str, Any], now: dict[str, Any], path: pathlib.Path) -> None:
    """Refuses a study of another scale."""
    if before.get("scale") != now["scale"]:
        raise ValueError(
            f"{path} is at scale {before.get('scale')!r}, this study at {now['scale']!r}: choose"
            " another --workdir"
        )
