"""The fields of a study: frozen dataclasses with defaults, filled strictly from a ConfigDict.

A file of `configs/studies/` is one comparison and sets only the fields that it changes.
`configs/study.py` has the rules by which a scale shrinks it.
"""

import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Any

from scalelab.config import pretraining as config_lib
from scalelab.config.durations import CLOCKS
from scalelab.config.fields import Count, field_names, fill, warn
from scalelab.config.finetuning import FinetuneConfig
from scalelab.config.pretraining import Config, Shape, rename
from scalelab.eval import evaluation, score_names
from scalelab.helpers.names import check_names, module_names, prefix_errors
from scalelab.lab.tables import parse_name
from scalelab.records.study_file import (
    DEFAULT,
    FACTORS,
    OLD_DEFAULT,
    OLD_LINES,
    RENAMED,
    Stage,
    StudyFields,
    rename_default,
    rename_fields,
)
from scalelab.studies import finetunings
from scalelab.tasks import recipes


@dataclasses.dataclass(frozen=True)
class StudySpec(StudyFields):
    """One comparison, every field decided."""

    seeds: Count = 1  # pre-training seeds: "3" trains seeds 0, 1 and 2
    pretrain: Config = Config()  # the base config of all runs
    # The stages' names in their order, which a ConfigDict does not keep: ("small", "large"); one
    # alone needs none.
    stage_order: tuple[str, ...] = ()


def resolve(values: Mapping[str, Any]) -> StudySpec:
    """Turns nested values into a checked study.

    Raises:
      ValueError: an unknown or missing field, a wrong type, an unknown system, task, recipe or
        shape, or a factor without any level.
    """
    for old, new in (RENAMED | {OLD_LINES: "hypotheses"}).items():
        if old in values:
            warn(old, new)
    if rename(values) != values:
        warn("net", "model")
    values = rename_fields(values)
    given = fill(StudySpec, values)
    spec = rename_default(given)
    if spec != given:
        print(f"warning: the variant {OLD_DEFAULT!r} is now {DEFAULT!r}", file=sys.stderr)
    config_lib.resolve(values["pretrain"])
    order = spec.stage_order or (tuple(spec.stages) if len(spec.stages) < 2 else ())
    if sorted(order) != sorted(spec.stages):  # a ConfigDict has sorted its own
        raise ValueError(
            f"config.stage_order {order!r}: expected every stage once, in the study's order:"
            f" {', '.join(spec.stages)}"
        )
    stages = {name: spec.stages[name] for name in order}
    spec = dataclasses.replace(spec, stages=stages, stage_order=order)
    names = (spec.name, *spec.variants, *spec.stages, *spec.rows)  # parts of names of files
    if wrong := [name for name in names if not name.isidentifier()]:
        raise ValueError(f"config: {wrong[0]!r}: expected a word, such as half_steps")
    if not spec.stages:
        raise ValueError("config.stages is empty: the study has no runs")
    if spec.variants.get(DEFAULT) != ():
        raise ValueError(f"config.variants must have {DEFAULT!r}, which changes nothing: ()")
    for name, stage in spec.stages.items():
        _check_stage(spec, f"config.stages.{name}", stage)
    check_names(spec.system_fields, module_names("systems"), "config.system_fields: unknown")
    check_names(spec.free, FACTORS, "config.free: unknown")
    recipes.get(spec.finetune.recipe)
    for task in spec.finetune.tasks:
        finetunings.load_task(spec.finetune, task)
    owners = [line.partition("=")[0].rpartition(".")[0] for line in spec.evaluation_fields]
    check_names(owners, spec.evaluations, "config.evaluation_fields: unknown")
    for name in spec.evaluations:
        evaluation.choose_options(evaluation.load(name), spec.evaluation_fields)
    if spec.evaluations and spec.evaluation_data is None:
        raise ValueError(
            "config.evaluation_data: expected the folder that holds the data of config.evaluations"
        )
    if spec.evaluation_shares and not spec.evaluations:
        raise ValueError("config.evaluation_shares: expected config.evaluations to measure there")
    _check_report(spec)
    measured = (*spec.finetune.tasks, *spec.evaluations)
    with prefix_errors("config.primary"):
        primary = spec.primary and score_names.find_score(spec.primary, measured)
    return dataclasses.replace(spec, primary=primary)


def _check_stage(spec: StudySpec, where: str, stage: Stage) -> None:
    for factor in ("systems", "shapes", "variants"):
        if not getattr(stage, factor):
            raise ValueError(f"{where}.{factor} is empty: name at least one")
    check_names(stage.systems, module_names("systems"), f"{where}.systems: unknown")
    check_names(stage.variants, spec.variants, f"{where}.variants: unknown")
    for shape in stage.shapes:
        Shape.parse(shape)
    check_names([stage.finetune], ("all", "none"), f"{where}.finetune: unknown")
    if stage.finetune != "none" and (spec.finetune.tasks or spec.evaluations):
        from scalelab import systems  # late: it imports JAX, which --help does without
        from scalelab.finetuning.kinds import GENERATED

        tuned = [finetunings.tune_variant(spec.finetune, spec.variants[x]) for x in stage.variants]
        tasks = [finetunings.load_task(own, name) for own in tuned for name in own.tasks]
        written = all(task.kind in GENERATED for task in tasks)
        measured = all(evaluation.load(name).source for name in spec.evaluations)
        for name in stage.systems:
            system = systems.load(name)
            given = (written or bool(system.ADAPTATION.source)) and measured
            if more := systems.more_inputs(system, source=given):
                raise ValueError(
                    f"{where}.systems: the model of {name!r} reads {more}, which tasks or"
                    " evaluations do not give it: leave out those tasks and evaluations, or set"
                    " config.finetune.tasks and config.evaluations to ()"
                )


def _check_report(spec: StudySpec) -> None:
    """Refuses clocks, tables, figures, hypotheses and fields that a report does not know."""
    from scalelab.lab.compare import comparability
    from scalelab.lab.compare.scores import load_comparison
    from scalelab.lab.show.figures import FIGURES, REMOVED
    from scalelab.lab.show.score_tables import TABLES

    comparison = load_comparison(spec.comparison, spec.comparison)
    check_names([spec.matched], CLOCKS, "config.matched: unknown budget")
    for name, rows in spec.rows.items():
        check_names(rows.stages, spec.stages, f"config.rows.{name}.stages: unknown")
        check_names(rows.variants, spec.variants, f"config.rows.{name}.variants: unknown")
    for table in spec.tables:
        with prefix_errors("config.tables"):
            parse_name(table, [*TABLES, *comparison.TABLES], spec.rows)
    check_names(spec.figures, [*FIGURES, *comparison.FIGURES, *REMOVED], "config.figures: unknown")
    if alone := [x for x in spec.ids if re.search("[<>~]", x)]:
        raise ValueError(
            f"config.hypotheses: {alone[0]!r} has no score: write (('A > B', 'sst2'),), with"
            " parentheses of its own"
        )
    if spec.ids and spec.comparison is None:
        raise ValueError(
            f"config.hypotheses: {spec.ids[0]!r} is an id, which needs config.comparison; or write"
            " (('A > B', 'sst2'),)"
        )
    check_names(spec.ids, comparison.HYPOTHESES, "config.hypotheses: unknown")
    adapted = [*field_names(FinetuneConfig), *comparability.FINETUNE_WORDS]
    known = [*field_names(Config), *(comparability.PREFIX + name for name in adapted)]
    science = [name for name in known if "machine." not in name]
    check_names(spec.allow, [*comparability.WORDS, *science], "config.allow: unknown")
