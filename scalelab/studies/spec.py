"""The fields of a study: frozen dataclasses, filled strictly from a ConfigDict.

`configs/study.py` holds the fields with their defaults and comments; a file of `configs/studies/`
is one comparison, written as what it changes there.
"""

import ast
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from scalelab.config import pretraining as config_lib
from scalelab.config.fields import field_names, fill
from scalelab.config.finetuning import FinetuneConfig
from scalelab.config.pretraining import Config, Shape
from scalelab.helpers.names import module_names, nearest
from scalelab.lab.load.study_runs import BASELINE
from scalelab.lab.show import table_rows
from scalelab.lab.show.table_rows import Rows
from scalelab.tasks import recipes
from scalelab.tasks import task as task_lib

FACTORS = ("system", "shape", "variant", "seed")
COMPOUND = "compound:"  # shapes that come out of an earlier stage: "compound:1" is one step up


@dataclasses.dataclass(frozen=True)
class Stage:
    """Runs of a study that can start at the same time.

    Attributes:
      systems: names.
      shapes: written AxHxL, or "compound:STEP": the shape that scales the best one of the stage
        before by 2**STEP.
      variants: names out of the study's.
      finetune: "all", "none", or "best:k": the k shapes of the least validation loss.
    """

    systems: tuple[str, ...]
    shapes: tuple[str, ...]
    variants: tuple[str, ...]
    finetune: str


@dataclasses.dataclass(frozen=True)
class Finetune:
    """How every pre-trained net is adapted; fields are written "field=value".

    Attributes:
      tasks: names of files in scalelab/eval.
      recipe: a name in scalelab/tasks/recipes.py.
      seeds: fine-tuning seeds of each pre-training.
      data: folder of the tasks' data; None: TensorFlow Datasets.
      scratch: whether the net of each first seed is trained from random weights too.
      fields: of configs/finetune.py, "max_train_examples=2000", or of one task alone,
        "sst2.epochs=1".
      keep: whether the parameters of fine-tuned nets stay on disk.
    """

    tasks: tuple[str, ...]
    recipe: str
    seeds: int
    data: str | None
    scratch: bool
    fields: tuple[str, ...]
    keep: bool


@dataclasses.dataclass(frozen=True)
class StudySpec:
    """One comparison, every field decided; see configs/study.py."""

    name: str
    title: str
    question: str
    protocol: str | None
    comparison: str | None
    scale: str
    seeds: int
    matched: str
    pretrain: Config
    fields: tuple[str, ...]
    system_fields: dict[str, tuple[str, ...]]
    variants: dict[str, tuple[str, ...]]
    stages: dict[str, Stage]
    stage_order: tuple[str, ...]
    finetune: Finetune
    free: tuple[str, ...]
    allow: tuple[str, ...]
    tables: tuple[str, ...]
    rows: dict[str, Rows]
    figures: tuple[str, ...]
    hypotheses: tuple[str, ...]


def resolve(values: Mapping[str, Any]) -> StudySpec:
    """Turns nested values into a checked study.

    Raises:
      ValueError: an unknown or missing field, a wrong type, an unknown system, task, recipe or
        shape, or a factor without any level.
    """
    spec = fill(StudySpec, values)
    config_lib.resolve(values["pretrain"])
    order = spec.stage_order or (tuple(spec.stages) if len(spec.stages) < 2 else ())
    if sorted(order) != sorted(spec.stages):  # a ConfigDict has sorted its own
        raise ValueError(
            f"config.stage_order {order!r}: expected every stage once, in the study's order:"
            f" {', '.join(spec.stages)}"
        )
    stages = {name: spec.stages[name] for name in order}
    spec = dataclasses.replace(spec, stages=stages, stage_order=order)
    _check(spec)
    return spec


def _check(spec: StudySpec) -> None:
    """Refuses names of things that do not exist, and nets that cannot be built."""
    for where, names in (
        ("config.name", [spec.name]),  # these become parts of file names
        ("config.variants", spec.variants),
        ("config.stages", spec.stages),
        ("config.rows", spec.rows),
    ):
        for name in names:
            if not name.isidentifier():
                raise ValueError(f"{where}: {name!r}: expected a word, such as half_steps")
    if spec.seeds < 1 or spec.finetune.seeds < 1:
        raise ValueError("config.seeds and config.finetune.seeds must be at least 1")
    if not spec.stages:
        raise ValueError("config.stages is empty: the study has no runs")
    if spec.variants.get(BASELINE) != ():
        raise ValueError(
            f"config.variants must have {BASELINE!r}, which changes nothing: (); got"
            f" {spec.variants.get(BASELINE)!r}: name another variant"
        )
    for place, (name, stage) in enumerate(spec.stages.items()):
        _check_stage(spec, f"config.stages.{name}", stage, is_first=place == 0)
    _check_names(spec.system_fields, module_names("systems"), "config.system_fields")
    _check_names(spec.free, FACTORS, "config.free")
    _check_report(spec)
    recipes.get(spec.finetune.recipe)
    for task in spec.finetune.tasks:
        task_lib.load_task(task)


def _check_stage(spec: StudySpec, where: str, stage: Stage, *, is_first: bool) -> None:
    for factor in ("systems", "shapes", "variants"):
        if not getattr(stage, factor):
            raise ValueError(f"{where}.{factor} is empty: name at least one")
    _check_names(stage.systems, module_names("systems"), f"{where}.systems")
    _check_names(stage.variants, spec.variants, f"{where}.variants")
    for shape in stage.shapes:
        if not shape.startswith(COMPOUND):
            parse_shape(shape)
        elif is_first:
            raise ValueError(f"{where}.shapes {shape!r}: no stage comes before it")
        else:
            number(shape.removeprefix(COMPOUND), f"{where}.shapes {shape!r}")
    best = stage.finetune.removeprefix("best:")
    is_best = best != stage.finetune and best.isdecimal() and int(best) > 0
    if stage.finetune not in ("all", "none") and not is_best:
        raise ValueError(f"{where}.finetune {stage.finetune!r}: expected all, none or best:k")


def _check_report(spec: StudySpec) -> None:
    """Refuses clocks, tables, figures, hypotheses and fields that a report does not know."""
    from scalelab.lab.compare import comparability, hypotheses
    from scalelab.lab.compare.evidence import load_comparison
    from scalelab.lab.show.figures import FIGURES
    from scalelab.lab.show.score_tables import TABLES

    comparison = load_comparison(spec.comparison)
    comparability.check_clock(spec.matched, "config.matched")
    _check_tables(spec, [*TABLES, *comparison.TABLES])
    _check_names(spec.figures, [*FIGURES, *comparison.FIGURES], "config.figures")
    _check_names(spec.hypotheses, hypotheses.names(comparison), "config.hypotheses")
    adapted = [*field_names(FinetuneConfig), *comparability.FINETUNE_WORDS]
    known = [*field_names(Config), *(comparability.PREFIX + name for name in adapted)]
    science = [name for name in known if "machine." not in name]
    _check_names(spec.allow, [*comparability.WORDS, *science], "config.allow")


def _check_tables(spec: StudySpec, kinds: Sequence[str]) -> None:
    """Refuses tables of an unknown kind or with unknown rows, and tables without any run."""
    for name, rows in spec.rows.items():
        _check_names(rows.stages, spec.stages, f"config.rows.{name}.stages")
        _check_names(rows.variants, spec.variants, f"config.rows.{name}.variants")
    for table in spec.tables:
        kind, name = table_rows.parse(table, kinds, spec.rows, "config.tables: unknown")
        if name and not any(
            shape.startswith(COMPOUND) or spec.rows[name].hold(stage, shape, variant)
            for stage, runs in spec.stages.items()
            for shape in runs.shapes
            for variant in runs.variants
        ):
            raise ValueError(
                f"config.tables {table!r}: no run of the study is one of config.rows.{name}; a"
                f""" table of all runs: --config.tables="('{kind}',)\""""
            )


def _check_names(given: Iterable[str], known: Collection[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{where}: unknown {name!r}: {nearest(name, known)}")


def parse_shape(text: str) -> Shape:
    """Reads AxHxL.

    Raises:
      ValueError: another form, or A does not divide H.
    """
    parts = text.split("x")
    if len(parts) != 3 or not all(p.isdecimal() and int(p) for p in parts):
        raise ValueError(
            f"shape {text!r}: expected AxHxL (heads x width x layers), such as 2x128x2"
        )
    shape = Shape(*map(int, parts))
    if shape.width % shape.num_heads:
        raise ValueError(
            f"shape {text!r}: {shape.num_heads} heads do not divide the width {shape.width}"
        )
    return shape


def number(text: str, where: str) -> float:
    """Reads a number.

    Raises:
      ValueError: not a number; the message begins with `where`.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{where}: expected a number, got {text!r}") from None


def parse_fields(lines: Sequence[str]) -> dict[str, Any]:
    """Reads "optim.learning_rate=1e-3" lines: dotted field -> value; a word is a string.

    Raises:
      ValueError: there is no "=".
    """
    found = {}
    for line in lines:
        field, equals, text = line.partition("=")
        if not equals:
            raise ValueError(f"{line!r}: expected field=value, such as optim.learning_rate=1e-3")
        try:
            found[field] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[field] = text
    return found
