"""Expands a study into runs, each with a resolved config, and writes its file.

The config of a run is the study's `pretrain`, overridden in this order by the departures of the
system, the study's `fields`, its `system_fields`, the variant's fields, the shape and the seed. A
departure of the budget (epochs) counts only if the study's own budget is on that clock. A value
"x0.5" multiplies the value before it. "xpass:VARIANT", among a variant's fields, multiplies by the
tokens of a pass over the corpus relative to that variant's, so that an equal budget becomes equal
passes. These tokens depend on the corpus, the lengths and the tokenizer, so they are counted in the
examples, once for a study: WORKDIR/passes.json keeps the counts.
"""

import copy
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalelab import systems
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import OWNERS, flatten
from scalelab.config.pretraining import Config, Shape
from scalelab.helpers.files import write_json
from scalelab.helpers.names import nearest
from scalelab.lab.compare import shape_rules
from scalelab.lab.compare.comparability import PREFIX
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import BASELINE, PretrainRun, StudyFile, StudyRun
from scalelab.runs import archive, json_files, records
from scalelab.studies import finetunings
from scalelab.studies.spec import COMPOUND, StudySpec, parse_fields

BUDGETS = ("optim.total_", "optim.warmup_")
XPASS = "xpass:"
PASSES = "passes.json"
SHOWN = 8


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One planned pre-training of a study.

    Its name is its folder's, such as "bert-2x128x2-half_steps-seed0", or "bert-compound:1-seed0" if
    only the size of its shape is known.
    """

    name: str
    stage: str
    system: str
    shape: Shape
    variant: str
    seed: int
    config: Config

    def describe(self) -> StudyRun:
        """Returns the run's entry in the study's file."""
        values: dict[str, Any] = vars(self) | {"config": dataclasses.asdict(self.config)}
        size = systems.n_model(
            systems.load(self.system), self.config.net, self.config.system_options
        )
        return StudyRun(**values, n_model=size)


def expand_runs(
    spec: StudySpec, workdir: pathlib.Path, *, foreseen: bool = False
) -> list[PlannedRun]:
    """Expands a study into its runs; later stages depend on the runs in `workdir`.

    A stage whose shapes are unknown has no runs; if `foreseen`, one shape of the expected size.

    Raises:
      ValueError: a config cannot be resolved; the message names the run.
    """
    found: dict[str, PlannedRun] = {}
    earlier: list[PlannedRun] = []
    for stage_name, stage in spec.stages.items():
        shapes = list(_shapes(spec, stage.shapes, earlier, workdir, foreseen))
        earlier = []
        for seed in range(spec.seeds):
            for variant in stage.variants:
                for system in stage.systems:
                    for shape, text in shapes:
                        middle = [] if variant == BASELINE else [variant]
                        name = "-".join([system, text, *middle, f"seed{seed}"])
                        try:
                            config = _config(spec, system, shape, variant, seed, workdir)
                        except ValueError as error:
                            raise ValueError(f"run {name}: {error}") from None
                        run = PlannedRun(name, stage_name, system, shape, variant, seed, config)
                        earlier.append(run)
                        found.setdefault(name, run)
    return list(found.values())


def _shapes(
    spec: StudySpec, shapes: Sequence[str], earlier: Sequence[PlannedRun], workdir: pathlib.Path,
    foreseen: bool,
) -> Iterator[tuple[Shape, str]]:  # fmt: skip
    """Yields the shapes of a stage, and their texts in names of runs.

    Compound scaling starts from the best shape of the stage before (protocol, 7.5.5): among the
    three of the least mean validation loss, the one with the best mean fine-tuned score; the least
    loss if nothing was fine-tuned.
    """
    for text in shapes:
        if not text.startswith(COMPOUND):
            shape = Shape.parse(text)
            yield shape, str(shape)
            continue
        tasks, seeds = spec.finetune.tasks, spec.finetune.seeds
        grid: dict[Shape, list[PretrainRun]] = {}
        for run in earlier:
            folder = archive.find_run(workdir, run.name)
            state = study_runs.read_run(folder, run.describe(), seeds)
            grid.setdefault(run.shape, []).append(state)
        chosen = shape_rules.find_base(grid, tasks, seeds) if grid else None
        base = chosen and chosen[0]  # None while runs are unfinished
        known = sorted(grid, key=lambda s: (s.n_model, s.num_layers))
        label = text if base is None else None
        if base is None and foreseen and known:
            base = known[len(known) // 2]  # the middle one has about the size of the best
        if base is not None:
            scaling = shape_rules.Scaling(base)
            shape = scaling.at(scaling.phi + int(text.removeprefix(COMPOUND)))
            yield shape, label or str(shape)


def _config(
    spec: StudySpec, system: str, shape: Shape, variant: str, seed: int, workdir: pathlib.Path
) -> Config:
    values = copy.deepcopy(dataclasses.asdict(spec.pretrain))
    by_epochs = spec.pretrain.optim.total_epochs is not None
    departures = {d.field: d.value for d in systems.load(system).DEPARTURES}
    own = parse_fields(spec.variants[variant])
    by_passes = {field: value for field, value in own.items() if str(value).startswith(XPASS)}
    net = {"net.num_heads": shape.num_heads, "net.width": shape.width}
    layers: list[Mapping[str, Any]] = [
        {"system": system},
        {k: v for k, v in departures.items() if by_epochs or not k.startswith(BUDGETS)},
        parse_fields(spec.fields),
        parse_fields(spec.system_fields.get(system, ())),
        {field: value for field, value in own.items() if field not in by_passes},
        net | {"net.num_layers": shape.num_layers, "seed": seed},
    ]
    for layer in layers:
        for field, value in layer.items():
            _set(values, field, value)
    for field, value in by_passes.items():
        other = value.removeprefix(XPASS)
        lines = spec.variants.get(other, ())
        if other not in spec.variants or other == variant or any(XPASS in x for x in lines):
            choices = [name for name in spec.variants if name != variant]
            raise ValueError(
                f"{value}: expected another variant, with a budget that is not in passes:"
                f" {nearest(other, choices)}"
            )
        # All seeds take the ratio of seed 0.
        config = config_lib.resolve(values | {"seed": 0})
        other_config = _config(spec, system, shape, other, 0, workdir)
        ratio = round(pass_tokens(config, workdir) / pass_tokens(other_config, workdir), 4)
        _set(values, field, f"x{ratio}")
    if spec.yardstick_shares:
        _set(values, "machine.kept_shares", spec.yardstick_shares)
    return config_lib.resolve(values)


def pass_tokens(config: Config, workdir: pathlib.Path) -> int:
    """Counts the tokens of a pass over the training examples of all phases; may prepare them.

    Raises:
      ValueError: the corpus is missing, unreadable or too small.
    """
    whole = dataclasses.asdict(config)
    parts = ("system", "seed", "data", "tokenizer", "short", "long", "format_options")
    fields = {name: whole[name] for name in parts}
    del fields["data"]["order_seed"]
    key = json.dumps(fields)
    known = read_passes(workdir)
    if key not in known:
        from scalelab.data import load_data

        known[key] = load_data(config, systems.load(config.system)).pass_tokens
        workdir.mkdir(parents=True, exist_ok=True)
        write_json(workdir / PASSES, known)
    return known[key]


def read_passes(workdir: pathlib.Path) -> dict[str, int]:
    """Returns the kept counts; none if the file is damaged, because they can be made again."""
    try:
        kept = json_files.read_object(workdir / PASSES) or {}
    except ValueError:
        return {}
    return {key: count for key, count in kept.items() if type(count) is int and count > 0}


def _set(values: dict[str, Any], field: str, value: Any) -> None:
    """Replaces a dotted field, or multiplies it by "x0.5"."""
    flat = flatten(values)
    if field not in flat and field.partition(".")[0] not in OWNERS:  # `resolve` checks options
        raise ValueError(f"unknown config field {field!r}: {nearest(field, flat)}")
    before = flat.get(field)
    if isinstance(value, str) and value[:1] == "x" and isinstance(before, int | float):
        try:
            value = type(before)(before * float(value[1:]))
        except ValueError:
            raise ValueError(f"{field}={value}: expected x and a factor") from None
    *groups, name = field.split(".")
    for group in groups:
        values = values[group]
    values[name] = value


def _departures(system: systems.System) -> list[systems.Departure]:
    """Returns what a system declares to differ from the control, its fine-tuning included."""
    recipe = getattr(system, "RECIPE", {}).items()
    tuned = [
        systems.Departure(PREFIX + field, value, "the system's RECIPE") for field, value in recipe
    ]
    return [*system.DEPARTURES, *tuned]


def write(spec: StudySpec, runs: list[PlannedRun], workdir: pathlib.Path, command: str) -> None:
    """Writes the study's file (see `scalelab.lab.load.study_runs`) if it has changed.

    Raises:
      ValueError: the folder holds this study at another scale, or a study or a run folder that has
        other fields for a run or a fine-tuning of the same name.
    """
    adaptation, chosen = finetunings.plan_fields(spec.finetune)
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
        "runs": [json_files.dump(run.describe()) for run in runs],
    }
    for field in ("pretrain", "stage_order"):
        del facts[field]
    path, facts = workdir / "studies" / f"{spec.name}.json", json.loads(json.dumps(facts))
    new = json_files.fill(StudyFile, facts, path)
    if path.exists():
        before = study_runs.read_facts(path)
        if before.scale != spec.scale:
            raise ValueError(
                f"{path} is at scale {before.scale!r}, this study at {spec.scale!r}: choose"
                " another --workdir"
            )
        if dataclasses.replace(before, command=command) == new:
            return
    check_shared(new, workdir)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, facts)


def check_shared(facts: StudyFile, workdir: pathlib.Path) -> None:
    """Checks, before anything is written, that a study agrees with the runs of its folder.

    Studies of a folder share runs by name. They may have other systems, shapes, variants, seeds and
    tasks, but config and fine-tuning of a shared run must agree.

    Raises:
      ValueError: they do not agree; the message names the fields.
    """
    configs = {run.name: run.config for run in facts.runs}
    compared = []  # (place, fields of this study, fields in the folder)
    for path in sorted((workdir / "studies").glob("*.json")):
        other = study_runs.read_facts(path)
        planned = {run.name: run.config for run in other.runs if run.name in configs}
        compared += [(f"{path} plans {name}", configs[name], planned[name]) for name in planned]
        both = facts.adaptation.keys() & other.adaptation.keys()
        compared += [
            (f"{path} fine-tunes on {task}", facts.adaptation[task], other.adaptation[task])
            for task in sorted(both) if planned
        ]  # fmt: skip
    for name, config in configs.items():
        folder = archive.find_run(workdir, name)
        if (folder / "config.json").exists():
            compared.append((f"{folder} is there", config, records.read_config(folder)))
    for what, wanted, found in compared:
        if differing := config_lib.science_diff(wanted, found):
            raise ValueError(
                f"{what} with other fields; choose another --workdir, or undo:\n  "
                + "\n  ".join(differing[:SHOWN])
                + f"\n  and {len(differing) - SHOWN} more" * (len(differing) > SHOWN)
            )
