"""The file of a study, WORKDIR/studies/<name>.json: its fields, and their names in older files.

`scalelab.study` writes the file before anything starts.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from scalelab.config.fields import Count, Departure, Part
from scalelab.config.pretraining import Shape, rename, with_moved_fields
from scalelab.records import json_files, run_files
from scalelab.records.run_files import Unreadable

DEFAULT = "default"  # the variant that changes nothing
OLD_DEFAULT = "baseline"  # its name in older studies
SAFE = re.compile(r"[^./\\\s][^/\\\x00-\x1f]*")  # names that become paths inside a folder
# Fields of studies of the release before -> their names of today; a table has one of these names.
RENAMED = {f"yardstick{end}": f"evaluation{end}" for end in ("s", "_data", "_fields", "_shares")}
OLD_LINES = "claims"  # the lines of `hypotheses` in the release before
OLD_SYNTHETIC, SYNTHETIC = "world", "synthetic"  # a scale: its text is a synthetic language
FACTORS = ("system", "shape", "variant", "seed")
FIVE_LARGEST = ("mnli", "qqp", "qnli", "sst2", "cola")  # by training set, of GLUE
NEEDED = ("name", "title", "scale", "matched", "free", "allow", "tables", "figures", "hypotheses",
          "variants", "finetune", "stages")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rows:
    """A selection of a study's rows for one table; an empty field selects all.

    In a shape, AxHxL, "*" is any number: "2x*x2". The caption begins with the title.
    """

    title: str
    stages: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A pre-training in a study's file; `config` has every resolved field, nested."""

    name: str
    stage: str
    system: str
    shape: Shape
    variant: str
    seed: int
    config: dict[str, Any]
    n_model: int | None = None  # the size N as the system declares it; None in older files


@dataclasses.dataclass(frozen=True)
class Stage:
    """Runs of a study that can start at the same time: systems x shapes x variants, all seeds."""

    shapes: tuple[str, ...]  # AxHxL
    finetune: str  # all or none; in older files also best:k, the k shapes of the least loss
    systems: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Finetune:
    """The fine-tuning of every pre-trained model."""

    tasks: tuple[str, ...] = FIVE_LARGEST  # ("sst2", "qnli"); () for none
    recipe: str = "thesis"  # a name in scalelab/tasks/recipes.py: "small"
    seeds: Count = 1  # fine-tuning seeds of each pre-training: "3"
    # Folder of the tasks' data: "glue/"; "probes" makes them of the corpus; None: TensorFlow
    # Datasets.
    data: str | None = None
    scratch: bool = False  # True: also fine-tune the first seed's model from random weights
    # As in configs/finetune.py: ("epochs=2", "sst2.epochs=1"). With "head.kind=words" the answers
    # are generated, as by --as=text.
    fields: tuple[str, ...] = ()
    keep: bool = False  # True: keep the parameters of fine-tuned models on disk


@dataclasses.dataclass(frozen=True)
class StudyFields:
    """The fields that a study's config and its file share."""

    name: str = "study"  # names its file and its report: "dropout"
    title: str = ""  # heading of the report: "GPT-2 with and without dropout"
    question: str = ""  # to be answered, one sentence: "Does a small GPT-2 need dropout?"
    protocol: str | None = None  # section of the benchmark protocol that it follows: "7.5.1"
    # Module with the study's hypotheses, tables and figures: "scalelab.thesis.comparison"; its
    # interface is scalelab/lab/compare/scores.py.
    comparison: str | None = None
    # Sizes and budget that its file has chosen, whose power `plan` knows: "small".
    scale: str = "full"
    # The budget that runs have in common, which the report checks to 5%: "steps", "tokens",
    # "flops" or "secs".
    matched: str = "steps"
    # Fields of all runs: ("optim.learning_rate=1e-3",). On a number "x0.5" multiplies the value
    # before. A system's declared differences come first, then these, the system's, the variant's.
    fields: tuple[str, ...] = ()
    # Fields of one system: {"gpt2": ("optim.learning_rate=5e-4",)}.
    system_fields: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # Arms with their fields: {"default": (), "no_dropout": ("model.dropout_rate=0.0",)}; grid() of
    # configs/study.py makes them from values. "finetune.epochs=5" changes an arm's fine-tuning.
    variants: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: {DEFAULT: ()})
    # What is trained: {"main": dict(systems=("gpt2",), shapes=("2x64x2",), variants=("default",),
    # finetune="all")} is every combination, with all seeds; "none" leaves out their scores.
    stages: dict[str, Stage] = dataclasses.field(default_factory=dict)
    finetune: Finetune = Finetune()
    # Evaluations of every pre-trained model without fine-tuning: ("blimp", "pairs").
    evaluations: tuple[str, ...] = ()
    evaluation_data: str | None = None  # folder of their data: "sets/", which holds blimp/
    evaluation_fields: tuple[str, ...] = ()  # their options: ("blimp.rule=pll_word",)
    # Shares of the budget at which the evaluations measure each model too: (0.25, 0.5), or () for
    # none. Runs keep the checkpoints at these shares.
    evaluation_shares: tuple[Part, ...] = ()
    free: tuple[str, ...] = FACTORS  # in which runs may differ: ("shape", "seed")
    # Further fields in which runs may differ, which every table then names: ("short.batch_size",).
    allow: tuple[str, ...] = ()
    # A table is a kind of `scalelab study list`, with all rows: "scores"; or with the rows of a
    # name: "scores:wide".
    tables: tuple[str, ...] = ("scores", "loss")
    # Rows of such a table, with the beginning of its caption; an empty field selects all:
    # {"wide": dict(title="Wide", stages=(), shapes=("2x256x*",), variants=())}.
    rows: dict[str, Rows] = dataclasses.field(default_factory=dict)
    figures: tuple[str, ...] = ("loss_by_time",)  # ("loss_by_tokens",); () for none but the first
    # (("electra > bert", "blimp", 2),): left side, right side, score and perhaps a margin, see
    # docs/compare.md; or ids of hypotheses in `comparison`: ("1a", "1b"). Without any, a report
    # tests every variant against the default, and every two systems.
    hypotheses: tuple[Any, ...] = ()
    # The score that decides, fixed in advance: "blimp"; None: the first of the hypotheses that
    # passes its checks.
    primary: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The hypotheses that `comparison` states."""
        return tuple(x for x in self.hypotheses if isinstance(x, str))

    @property
    def lines(self) -> tuple[Any, ...]:
        """The hypotheses that the config states."""
        return tuple(x for x in self.hypotheses if not isinstance(x, str))


AnyStudy = TypeVar("AnyStudy", bound=StudyFields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyFile(StudyFields):
    """The content of a study's file."""

    tasks: tuple[str, ...]
    recipe: str
    finetune_seeds: int
    adaptation: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # by task
    chosen: tuple[str, ...] = ()  # fields that every fine-tuning chooses on dev, from a grid
    departures: dict[str, tuple[Departure, ...]]  # by system
    command: str | None = None
    # Primary scores before this one, and the number of runs that had finished with each.
    earlier_primary: tuple[tuple[Any, ...], ...] = ()
    # The base config of its runs by dotted field, without the machine's; None in older files.
    base: dict[str, Any] | None = None
    runs: tuple[StudyRun, ...]

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of all scores of a pre-training: tasks, then evaluations."""
        return self.tasks + self.evaluations

    @property
    def num_scores(self) -> int:
        """The number of scores of a pre-training, including scores of earlier checkpoints."""
        return len(self.measured) + len(self.evaluations) * len(self.evaluation_shares)


def rename_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a study with the fields of RENAMED under their names of today."""
    values = rename(values)
    found = {name: value for name, value in values.items() if name not in RENAMED}
    found |= {RENAMED[name]: values[name] for name in RENAMED if name in values}
    stated, old = found.get("hypotheses", ()), found.pop(OLD_LINES, None)
    if isinstance(stated, list | tuple) and isinstance(old, list | tuple):
        stated = [*(x for x in stated if isinstance(x, str)), *old]
    elif old is not None:  # damaged: the check of the field says so
        stated = old
    if isinstance(stated, list | tuple):
        stated = tuple(tuple(x) if isinstance(x, list) else x for x in stated)
    found["hypotheses"] = stated
    if isinstance(tables := found.get("tables"), list | tuple):
        found["tables"] = [RENAMED.get(name, name) for name in tables]
    if found.get("scale") == OLD_SYNTHETIC:
        found["scale"] = SYNTHETIC
    return found


def rename_default(study: AnyStudy) -> AnyStudy:
    """Returns a study with the variant OLD_DEFAULT, if it has one, named DEFAULT."""
    new = {OLD_DEFAULT: DEFAULT}
    groups: dict[str, Any] = {
        group: {
            name: dataclasses.replace(own, variants=tuple(new.get(x, x) for x in own.variants))
            for name, own in getattr(study, group).items()
        } for group in ("stages", "rows")
    }  # fmt: skip
    hypotheses = tuple(
        (re.sub(rf"\b{OLD_DEFAULT}\b", DEFAULT, line[0]), *line[1:])
        if line and isinstance(line, tuple) and isinstance(line[0], str) else line
        for line in study.hypotheses
    )  # fmt: skip
    variants = {new.get(name, name): lines for name, lines in study.variants.items()}
    return dataclasses.replace(study, variants=variants, hypotheses=hypotheses, **groups)


def read(path: pathlib.Path) -> StudyFile:
    """Returns the content of a study's file.

    Raises:
      ValueError: it is damaged, or a name in it could lead out of the study's folder.
    """
    try:
        values = json_files.read_object(path) or {}
        if missing := [name for name in NEEDED if name not in values]:
            raise Unreadable(path, f"lacks {', '.join(missing)}")
        facts = rename_default(json_files.fill(StudyFile, rename_fields(values), path))
        for name in (facts.name, *facts.measured, *facts.rows, *(run.name for run in facts.runs)):
            if not SAFE.fullmatch(name):
                raise Unreadable(path, f"has {name!r}, which cannot name a folder")
        for run in facts.runs:
            json_files.fill(run_files.RunConfig, run.config, path)
            if run.stage not in facts.stages:
                raise Unreadable(path, f"has no {run.stage!r} in stages, but run {run.name}")
    except Unreadable as error:
        raise ValueError(
            f"{path} is damaged ({error.reason}); move it away, and `study plan` or `study run`"
            " writes it again"
        ) from None
    runs = [
        dataclasses.replace(
            run, config=with_moved_fields(run.config),
            variant=DEFAULT if run.variant == OLD_DEFAULT else run.variant,
        ) for run in facts.runs
    ]  # fmt: skip
    return dataclasses.replace(facts, runs=tuple(runs))
