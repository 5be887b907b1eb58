"""What a study says: frozen dataclasses, filled strictly from a ConfigDict.

`configs/study.py` holds the fields with their defaults and says what each is for; a file of
`configs/studies/` is one comparison, written as what it changes there.
"""

import ast
import dataclasses
from collections.abc import Mapping, Sequence
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
    """Runs of a study that can be started together.

    Attributes:
      systems: names.
      shapes: written AxHxL, or "compound:STEP": the shape that scales the best one of the stage
        before by 2**STEP.
      variants: names out of the study's.
      finetune: "all", "none", or "best:k": the k shapes of the least validation loss.
    """

    systems: tuple
    shapes: tuple
    variants: tuple
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

    tasks: tuple
    recipe: str
    seeds: int
    data: str | None
    scratch: bool
    fields: tuple
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
    fields: tuple
    system_fields: dict
    variants: dict
    stages: dict
    stage_order: tuple
    finetune: Finetune
    free: tuple
    allow: tuple
    tables: tuple
    rows: dict
    figures: tuple
    hypotheses: tuple

    @property
    def stage_list(self) -> list[tuple[str, Stage]]:
        """The stages in the study's order: what comes out of earlier ones depends on it."""
        return list(self.stages.items())


def resolve(values: Mapping[str, Any]) -> StudySpec:
    """Turns nested values into a checked study.

    Raises:
      ValueError: an unknown or missing field, a wrong type, an unknown system, task, recipe or
        shape, or a factor without any level.
    """
    spec = fill(StudySpec, values)
    config_lib.resolve(values["pretrain"])
    stages = {name: fill(Stage, spec.stages[name], f"stages.{name}.") for name in _order(spec)}
    rows = {name: fill(Rows, values, f"rows.{name}.") for name, values in spec.rows.items()}
    spec = dataclasses.replace(spec, stages=stages, stage_order=tuple(stages), rows=rows)
    _check(spec)
    return spec


def _order(spec: StudySpec) -> tuple[str, ...]:
    """The stages' names as the study orders them: a ConfigDict has sorted its own."""
    given = spec.stage_order or (tuple(spec.stages) if len(spec.stages) < 2 else ())
    _check_lines(given, "config.stage_order", "'main'")
    if sorted(given) != sorted(spec.stages):
        raise ValueError(
            f"config.stage_order {tuple(given)!r}: expected every stage once, in the study's order:"
            f" {', '.join(spec.stages)}"
        )
    return given


def _check(spec: StudySpec) -> None:
    """Refuses what names nothing, or nothing that can be built."""
    if not spec.name.isidentifier():
        raise ValueError(f"config.name {spec.name!r}: expected a word, such as thesis_7_5_1")
    if spec.seeds < 1 or spec.finetune.seeds < 1:
        raise ValueError("config.seeds and config.finetune.seeds must be at least 1")
    if not spec.stages:
        raise ValueError("config.stages is empty: the study has no runs")
    groups = {"fields": spec.fields, "finetune.fields": spec.finetune.fields}
    groups |= {f"variants.{name}": lines for name, lines in spec.variants.items()}
    groups |= {f"system_fields.{name}": lines for name, lines in spec.system_fields.items()}
    for name, lines in groups.items():
        _check_lines(lines, f"config.{name}", "'optim.learning_rate=1e-3'")
    if spec.variants.get(BASELINE) not in ((), []):
        raise ValueError(
            f"config.variants must have {BASELINE!r}, which changes nothing: (); got"
            f" {spec.variants.get(BASELINE)!r}: name another variant"
        )
    known = module_names("systems")
    for place, (name, stage) in enumerate(spec.stage_list):
        for factor in ("systems", "shapes", "variants"):
            if not getattr(stage, factor):
                raise ValueError(f"config.stages.{name}.{factor} is empty: name at least one")
        _check_names(stage.systems, known, f"config.stages.{name}.systems")
        _check_names(stage.variants, spec.variants, f"config.stages.{name}.variants")
        _check_lines(stage.shapes, f"config.stages.{name}.shapes", "'2x128x2'")
        for shape in stage.shapes:
            if shape.startswith(COMPOUND):
                if place == 0:
                    raise ValueError(
                        f"config.stages.{name}.shapes {shape!r}: no stage comes before it"
                    )
                number(shape.removeprefix(COMPOUND), f"config.stages.{name}.shapes {shape!r}")
            else:
                parse_shape(shape)
        best = stage.finetune.removeprefix("best:")
        if stage.finetune not in ("all", "none") and not (
            best != stage.finetune and best.isdecimal() and int(best)
        ):
            raise ValueError(
                f"config.stages.{name}.finetune {stage.finetune!r}: expected all, none or best:k"
            )
    _check_names(spec.system_fields, known, "config.system_fields")
    _check_names(spec.free, FACTORS, "config.free")
    _check_report(spec)
    if spec.finetune.recipe not in recipes.RECIPES:
        recipes.get(spec.finetune.recipe)
    for task in spec.finetune.tasks:
        task_lib.load_task(task)


def _check_report(spec: StudySpec) -> None:
    """Refuses a clock, tables, figures, hypotheses and fields that a report would not know."""
    from scalelab.lab.compare import comparability, finetunings, hypotheses, matched
    from scalelab.lab.compare.comparison import load_comparison
    from scalelab.lab.show.figures import FIGURES
    from scalelab.lab.show.score_tables import TABLES

    comparison = load_comparison(spec.comparison)
    matched.check(spec.matched, "config.matched")
    _check_tables(spec, [*TABLES, *comparison.TABLES])
    _check_names(spec.figures, [*FIGURES, *comparison.FIGURES], "config.figures")
    _check_names(spec.hypotheses, hypotheses.names(comparison), "config.hypotheses")
    adapted = [*field_names(FinetuneConfig), *finetunings.WORDS]
    known = [*field_names(Config), *(finetunings.PREFIX + name for name in adapted)]
    science = [name for name in known if "machine." not in name]
    _check_names(spec.allow, [*comparability.WORDS, *science], "config.allow")


def _check_tables(spec: StudySpec, kinds: Sequence[str]) -> None:
    """Refuses tables of no kind, or of rows that are not named, or that no run can be in."""
    for name, rows in spec.rows.items():
        if not name.isidentifier():  # it becomes part of a file's name
            raise ValueError(f"config.rows: {name!r}: expected a word, such as width")
        _check_names(rows.stages, spec.stages, f"config.rows.{name}.stages")
        _check_names(rows.variants, spec.variants, f"config.rows.{name}.variants")
        _check_lines(rows.shapes, f"config.rows.{name}.shapes", "'2x*x2'")
    _check_lines(spec.tables, "config.tables", "'large'")
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


def _check_lines(given: Any, where: str, example: str) -> None:
    """Refuses what is no list of words, such as (1, 2), or a word where one was meant."""
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
        raise ValueError(f"{where}: expected words in quotes, such as ({example},), got {given!r}")


def _check_names(given: Any, known: Any, where: str) -> None:
    _check_lines(list(given), where, repr(next(iter(known), "name")))
    for name in given:
        if name not in known:
            raise ValueError(f"{where}: unknown {name!r}: {nearest(name, known)}")


def parse_shape(text: str) -> Shape:
    """Reads AxHxL.

    Raises:
      ValueError: it is not written so, or A does not divide H.
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
      ValueError: it is none; the message begins with `where`.
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
