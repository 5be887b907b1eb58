"""Fine-tuning: the engine behind every eval binary.

  python -m scalelab.eval.rte --init=RUN --workdir=DIR --data=GLUE_DIR [--seeds=5]

Leaves DIR/seed0, DIR/seed1, ...: run folders, each with result.json and predictions.tsv. What is
finished is not done again; what was killed continues.
"""

import dataclasses
import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from absl import flags

from scalelab.config import cli
from scalelab.config.finetuning import FinetuneConfig, override, resolve, with_head_kind
from scalelab.resources import malloc
from scalelab.tasks import recipes, submission
from scalelab.tasks import task as task_lib
from scalelab.tasks.task import Task

INIT = cli.INIT
flags.declare_key_flag("init")
LIKE = flags.DEFINE_string(
    "like", None, "With --init=none: the run folder whose net, shape and tokenizer are taken."
)
DATA = flags.DEFINE_string(
    "data",
    None,
    "Folder that holds CoLA/, SST-2/, ...; without it, TensorFlow Datasets' glue.",
)
flags.DEFINE_string(
    "recipe",
    None,
    f"Short for --config=configs/finetune.py:recipe=...: {', '.join(recipes.RECIPES)}.",
)
PER_TASK = flags.DEFINE_list(
    "per_task",
    [],
    "Fields for one task alone, such as rte.epochs=10,mrpc.optim.learning_rate=5e-5.",
)
SEEDS = flags.DEFINE_integer("seeds", 1, "How many seeds: 0, 1, ...", lower_bound=1)
TOGETHER = flags.DEFINE_integer(
    "seeds_together", 1, "Seeds, or rates of a grid, that train in one program; changes no number."
    " For accelerators: on a CPU it is slower than one after another.", lower_bound=1,
)  # fmt: skip
MNLI = flags.DEFINE_string(
    "mnli", None, "Folder of MNLI runs of the same net: each seed starts from that seed's weights."
)
EVAL_ONLY = flags.DEFINE_bool(
    "eval_only",
    False,
    "Evaluate finished runs, or an imported classifier, as they are; train nothing.",
)
SUBMIT = flags.DEFINE_bool(
    "submit", False, "Predict the test sets; write the leaderboard's files and submission.zip."
)
BEST = flags.DEFINE_bool(
    "show_best",
    False,
    "Show the best-on-dev score beside the protocol's, labelled: it is too high.",
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What a fine-tuning is asked to do besides its config.

    Attributes:
      seeds: the seeds to run.
      together: how many of them train in one program.
      data: folder of the tasks' data; None: TensorFlow Datasets.
      eval_only: evaluate finished runs again.
      submit: predict the test sets too.
      fixed: dotted fields that the user has set, which a recipe's own for a task, and its grid,
        leave alone.
    """

    seeds: tuple[int, ...] = (0,)
    together: int = 1
    data: str | None = None
    eval_only: bool = False
    submit: bool = False
    fixed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Request:
    """A task to be adapted to: its data, where to begin, where to keep it, what else is asked."""

    task: Task
    splits: task_lib.Splits
    start: Any
    workdir: pathlib.Path
    options: Options

    def prepare(self, config: FinetuneConfig, part: str = "") -> Any:
        """The finetuning.run.TaskRun of a config; `part` is a folder below the request's own."""
        from scalelab.finetuning import run as finetune_run

        return finetune_run.TaskRun(self.task, self.splits, self.start, config, self.workdir / part)


def run(task: Task | Callable[[], Task]) -> None:
    """The whole program of a task's file: reads the flags, fine-tunes, prints a table.

    Args:
      task: the task, or what makes it once the flags are read.
    """

    def main(argv: list[str]) -> None:
        del argv
        malloc.keep()
        chosen = task() if callable(task) else task
        workdir = cli.workdir()
        from scalelab.finetuning import start as finetune_start

        start = finetune_start.open_start(cli.required(INIT.value, "init"), LIKE.value, MNLI.value)
        values, asked = cli.config_values(), options()
        fine_tune(chosen, start, values, workdir, asked, settings(chosen.name, [chosen.name]))
        if asked.submit and chosen.name in task_lib.task_names():
            submission.pack(workdir)
        from scalelab.lab.tasks import glue_table

        print(glue_table.of_task(workdir, chosen.name, best=BEST.value))

    program(main)


def program(main: Callable[[list[str]], None]) -> None:
    """Runs a binary whose --config is configs/finetune.py unless another is named."""
    for name in ("config", "workdir"):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    for flag in flags.FLAGS.get_key_flags_for_module(__name__):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    names = [argument.lstrip("-").partition("=")[0] for argument in sys.argv[1:]]
    if "config" not in names:
        path = pathlib.Path(__file__).resolve().parent.parent / "configs/finetune.py"
        recipe = ""
        for argument, following in itertools.pairwise([*sys.argv[1:], ""]):
            name, equals, value = argument.lstrip("-").partition("=")
            if name == "recipe" and argument.startswith("-"):
                recipe = f":recipe={value if equals else following}"
        sys.argv.insert(1, f"--config={path}{recipe}")
    elif "recipe" in names:
        cli.fail("--recipe is short for --config=configs/finetune.py:recipe=...: give one of them")
    cli.run(main, FinetuneConfig)


def options() -> Options:
    """What the flags ask for."""
    return Options(
        tuple(range(SEEDS.value)), TOGETHER.value, DATA.value, EVAL_ONLY.value, SUBMIT.value,
        tuple(cli.typed_fields()),
    )  # fmt: skip


def settings(task: str, tasks: Collection[str]) -> dict[str, Any]:
    """The fields that --per_task sets for one task.

    Args:
      task: its name.
      tasks: names of all tasks that are run.

    Raises:
      ValueError: it is not written task.field=value, or is for a task that is not run.
    """
    found = {}
    for part in PER_TASK.value:
        field, equals, value = part.partition("=")
        own = [name for name in tasks if field.startswith(f"{name}.")]  # which may have dots
        name, dot, field = (own[0], ".", field[len(own[0]) + 1 :]) if own else field.partition(".")
        if not equals or not dot:
            raise ValueError(
                f"--per_task {part!r}: expected task.field=value, such as rte.epochs=10"
            )
        if name not in tasks:
            task_lib.load_task(name)
            raise ValueError(
                f"--per_task {part!r}: {name} is not among the tasks that are run:"
                f" {', '.join(tasks)}"
            )
        if name == task:
            try:
                found[field] = json.loads(value.replace("None", "null"))
            except ValueError:
                found[field] = value
    return found


def fine_tune(
    task: Task,
    start: Any,
    values: Mapping[str, Any],
    workdir: pathlib.Path,
    options: Options,
    overrides: Mapping[str, Any] = {},  # noqa: B006 never changed
) -> list[dict[str, Any]]:
    """Fine-tunes every seed that is not finished yet.

    Args:
      task: the task.
      start: a finetuning.start.Start.
      values: fields of `configs/finetune.py`.
      workdir: the seeds' run folders are made in it.
      options: what to do.
      overrides: dotted fields of this task that differ from `values` and from the recipe's own.

    Returns:
      The results of all seeds.

    Raises:
      ValueError: config, data or a folder is not as it should be.
    """
    from scalelab.finetuning import grid as finetune_grid
    from scalelab.finetuning import outcome, said

    if start.classifier is not None:
        values = with_head_kind(values, start.classifier.kind)
    values, axes = _planned(task, values, options, overrides)
    splits = task_lib.load(task, options.data, tests=options.submit)
    request = Request(task, splits, start, workdir, options)
    if _scores_import(request):
        return _score_import(request, values)
    if axes and options.eval_only:
        values = override(values, finetune_grid.chosen(workdir, axes))
    elif axes:
        values = finetune_grid.best(request, values, axes)
    prepared = request.prepare(resolve(values))
    if options.eval_only:
        for seed in options.seeds:
            found = outcome.evaluate_again(prepared, seed)
            print(f"{task.title} seed {seed}: {json.dumps(found)}")
    else:
        print(said.facts(prepared))
        _train(prepared, options)
    if options.submit:
        outcome.submit(prepared, options.seeds)
    return [prepared.result(seed) for seed in options.seeds]


def check(
    task: Task,
    start: Any,
    values: Mapping[str, Any],
    options: Options,
    overrides: Mapping[str, Any],
) -> None:
    """Refuses, before any task is trained, what `fine_tune` would refuse of a task's turn.

    Raises:
      ValueError: a field, or the task's data, is not as it should be, or the net cannot follow.
    """
    from scalelab.finetuning.start import check_fits

    splits = task_lib.load(task, options.data, tests=options.submit)
    values, axes = _planned(task, values, options, overrides)
    for point in itertools.product(*axes.values()):
        config = resolve(override(values, dict(zip(axes, point, strict=True))))
        check_fits(start.opened, config, task.title, num_examples=len(splits.train))


def _planned(
    task: Task, values: Mapping[str, Any], options: Options, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A task's values, and the axes of the recipe's grid that the user has left open."""
    if "recipe" in (*options.fixed, *overrides):
        raise ValueError(
            "a recipe is many fields, which setting its name does not change: use --recipe=NAME"
        )
    recipe = recipes.get(values["recipe"])
    own = {k: v for k, v in recipe.tasks.get(task.name, {}).items() if k not in options.fixed}
    fixed = {*options.fixed, *overrides}
    axes = {field: points for field, points in recipe.grid.items() if field not in fixed}
    return override(values, own | dict(overrides)), axes


def _train(prepared: Any, options: Options) -> None:
    """Trains the seeds that are not finished."""
    from scalelab.finetuning import loop as finetune_loop

    finished = [seed for seed in options.seeds if prepared.claim(seed) is not None]
    if finished:
        named = ", ".join(map(str, finished))
        print(f"{prepared.task.title} seed {named}: finished already, not trained again")
    left = [seed for seed in options.seeds if seed not in finished]
    for i in range(0, len(left), options.together):
        finetune_loop.train(prepared, left[i : i + options.together])


def _scores_import(request: Request) -> bool:
    """Whether --eval_only means an imported classifier, not what was fine-tuned from it here."""
    start, trained = request.start, any(request.workdir.glob("seed*/checkpoints"))
    imported = start.classifier is not None and start.bodies is not None
    return request.options.eval_only and imported and not trained


def _score_import(request: Request, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Scores an imported classifier as it is; there is nothing that a seed could change."""
    from scalelab.finetuning import outcome
    from scalelab.finetuning.course import Course

    own = {"head.kind": request.start.classifier.kind, "feature_layers": None, "lm_weight": 0.0}
    config = dataclasses.replace(resolve(override(values, own)), epochs=0.0)
    prepared = request.prepare(config)
    outcome.score_as_imported(prepared, Course())
    if request.options.submit:
        outcome.submit(prepared, (0,))
    return [prepared.result(0)]
