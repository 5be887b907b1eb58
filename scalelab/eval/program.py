"""The command line of the fine-tuning tasks: turns flags into arguments of `finetune`."""

import argparse
import json
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from absl import flags

from scalelab.config import cli
from scalelab.config.finetuning import FinetuneConfig
from scalelab.resources import malloc
from scalelab.tasks import recipes, submission
from scalelab.tasks import task as task_lib
from scalelab.tasks.facts import Task

if TYPE_CHECKING:
    from scalelab.finetuning.plan import Options

INIT = cli.INIT
flags.declare_key_flag("init")
LIKE = flags.DEFINE_string(
    "like", None, "With --init=none: take net, shape and tokenizer from this run folder."
)
DATA = flags.DEFINE_string(
    "data",
    None,
    "Folder with CoLA/, SST-2/, ... or the BabyLM Challenge's cola.train.jsonl, ..., or"
    " hf:nyu-mll/glue; default: glue of TensorFlow Datasets.",
)
flags.DEFINE_string(
    "recipe",
    None,
    f"Short for --config=finetune:recipe=...: {', '.join(recipes.RECIPES)}.",
)
PER_TASK = flags.DEFINE_list(
    "per_task",
    [],
    "Fields of a single task, such as rte.epochs=10,mrpc.optim.learning_rate=5e-5.",
)
SEEDS = flags.DEFINE_integer("seeds", 1, "Number of seeds: 0, 1, ...", lower_bound=1)
MNLI = flags.DEFINE_string(
    "mnli", None, "Folder of MNLI runs of the same net; seed k starts from their seed k."
)
EVAL_ONLY = flags.DEFINE_bool(
    "eval_only",
    False,
    "Evaluate finished runs or an imported classifier without training.",
)
SUBMIT = flags.DEFINE_bool(
    "submit", False, "Predict the test sets; write the leaderboard's files and submission.zip."
)


def run(task: str | Callable[[], Task]) -> None:
    """Runs the program of a task of the tables, or of one made after the flags are read."""
    if isinstance(task, str):
        sys.modules["__main__"].__doc__ = task_lib.load_task(task).about  # for --help

    def main(argv: list[str]) -> None:
        del argv
        malloc.keep_freed()
        chosen = task_lib.load_task(task) if isinstance(task, str) else task()
        workdir = cli.workdir()
        # Imported after the flags are checked, so that --help and typos answer at once.
        from scalelab import finetune
        from scalelab.eval import glue_table
        from scalelab.finetuning import warm_start

        start = warm_start.open_start(cli.required(INIT.value, "init"), LIKE.value, MNLI.value)
        overrides = task_fields(chosen.name, [chosen.name])
        finetune.fine_tune(chosen, start, cli.config_values(), workdir, options(), overrides)
        if SUBMIT.value and chosen.name in task_lib.task_names():
            submission.pack(workdir)
        print(glue_table.write(workdir, only=chosen.name))

    program(main)


def program(main: Callable[[list[str]], None]) -> None:
    """Runs `main` as a program; --config defaults to configs/finetune.py."""
    for name in ("config", "workdir"):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    for flag in flags.FLAGS.get_key_flags_for_module(__name__):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    short = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    short.add_argument("-recipe", "--recipe")
    short.add_argument("-config", "--config")
    given, _ = short.parse_known_args(sys.argv[1:])
    if given.config is None:
        recipe = f":recipe={given.recipe}" * (given.recipe is not None)
        sys.argv.insert(1, f"--config=finetune{recipe}")
    elif given.recipe is not None:
        cli.fail(
            "give --recipe or --config, not both: --recipe=NAME is short for"
            " --config=finetune:recipe=NAME"
        )
    cli.run(main, FinetuneConfig)


def options() -> "Options":
    """Returns the options that the flags set."""
    from scalelab.finetuning.plan import Options

    return Options(
        seeds=tuple(range(SEEDS.value)),
        data=DATA.value,
        eval_only=EVAL_ONLY.value,
        submit=SUBMIT.value,
        fixed=tuple(cli.typed_fields()),
    )


def task_fields(task: str, tasks: Collection[str]) -> dict[str, Any]:
    """Returns the fields that --per_task sets for `task`, one of the `tasks` of the program.

    Raises:
      ValueError: a setting is not task.field=value, or its task is not in `tasks`.
    """
    found = {}
    for part in PER_TASK.value:
        left, equals, value = part.partition("=")
        name = next((name for name in tasks if left.startswith(f"{name}.")), None)
        if not equals or name is None:
            raise ValueError(
                f"--per_task {part!r}: expected task.field=value, such as rte.epochs=10, for"
                f" one of {', '.join(tasks)}"
            )
        if name == task:
            field = left.removeprefix(f"{name}.")
            try:
                found[field] = json.loads(value.replace("None", "null"))
            except ValueError:
                found[field] = value
    return found
