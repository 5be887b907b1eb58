"""The command line of the fine-tuning tasks: turns flags into arguments of `finetune`."""

import argparse
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from scalelab.config import cli, exits
from scalelab.config.fields import parse_value
from scalelab.config.finetuning import FinetuneConfig
from scalelab.records import run_files
from scalelab.resources import host
from scalelab.tasks import recipes, submission
from scalelab.tasks import task as task_lib
from scalelab.tasks.facts import Task

if TYPE_CHECKING:
    from scalelab.finetuning.plan import Request

DATA = (
    "folder with CoLA/, SST-2/, ... or the BabyLM Challenge's cola.train.jsonl, ..., or"
    " hf:nyu-mll/glue; default: glue of TensorFlow Datasets"
)
FINETUNES: dict[str, Any] = {"config": FinetuneConfig, "setup": host.keep_freed}


def add_flags(made: cli.Parser, data: str = DATA) -> None:
    """Adds the flags of all fine-tuning programs; `data` is the help of --data."""
    add = made.add_argument
    add("--workdir", metavar="DIR", help=cli.WORKDIR)
    add("--init", metavar="RUN", help=f"{cli.INIT}. Also none: random weights")
    add("--like", metavar="RUN",
        help="with --init=none: take model, shape and tokenizer from this run folder")  # fmt: skip
    add("--data", metavar="DIR", help=data)
    add("--recipe", metavar="NAME",
        help=f"short for --config=finetune:recipe=...: {', '.join(recipes.RECIPES)}")  # fmt: skip
    add("--per_task", action="extend", type=cli.comma_list, default=[], metavar="FIELD,FIELD",
        help="fields of a single task, such as rte.epochs=10,mrpc.optim.learning_rate=5e-5",
    )  # fmt: skip
    add("--seeds", type=cli.positive, default=1, metavar="N",
        help="number of seeds: 0, 1, ...; default: 1")  # fmt: skip
    add("--mnli", metavar="DIR",
        help="folder of MNLI runs of the same model; seed k starts from their seed k")  # fmt: skip
    add("--eval_only", action="store_true",
        help="evaluate finished runs or an imported classifier without training")  # fmt: skip
    add("--as", dest="form", choices=("text",),
        help="text: the model reads the task as text and generates the label's words, for encoder-"
        "decoders and left-to-right models; default: a head scores the classes")  # fmt: skip
    add("--submit", action="store_true",
        help="predict the test sets; write the leaderboard's files and submission.zip")  # fmt: skip


def parser() -> cli.Parser:
    """Returns the command line: a command for each task."""
    made = cli.Parser("scalelab eval", __doc__)
    commands = made.add_commands()
    for name in task_lib.task_names():
        text = task_lib.load_task(name).about
        add_flags(commands.add_parser(name, description=text, **FINETUNES))
    return made


def main(given: argparse.Namespace) -> None:
    """Fine-tunes on the task that the command names."""
    fine_tune(given, task_lib.load_task(given.command))


def run(task: Task | str) -> None:
    """Runs the program of a task, with the arguments that the user typed."""
    name = task if isinstance(task, str) else task.name
    cli.run(main, parser(), [name, *sys.argv[1:]])


def fine_tune(given: argparse.Namespace, task: Task) -> None:
    """Fine-tunes on a task and prints its table."""
    workdir, values = cli.workdir(given), config_values(given)
    if given.form == "text":
        task = task_lib.as_text(task)
        if given.mnli is not None:
            raise ValueError("--mnli gives the weights of a model with a head: leave out --as=text")
    # Imported after the flags are checked, so that --help and typos answer at once.
    from scalelab import finetune
    from scalelab.eval import glue_table
    from scalelab.finetuning import warm_start

    start = warm_start.open_start(cli.required(given.init, "init"), given.like, given.mnli)
    own = {task.name: task_fields(given.per_task, task.name, [task.name])}
    results = finetune.fine_tune(task, request(given, start, values, own), workdir)
    if given.submit and task.name in task_lib.task_names():
        submission.pack(workdir)
    print(glue_table.write(workdir, only=task.name))
    stop_if_failed(results)


def stop_if_failed(results: Iterable[Mapping[str, Any]]) -> None:
    """Raises exits.Stopped with exit code 1 if a fine-tuning run in `results` failed."""
    failed = [r for r in results if r["status"] == run_files.FAILED]
    named = dict.fromkeys(f"{r['task']} seed {r['seed']}: {r['degenerate']}" for r in failed)
    if named:
        raise exits.Stopped(f"failed seeds, which have no score: {'; '.join(named)}", 1)


def config_values(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the config's values; --config defaults to configs/finetune.py.

    Raises:
      ValueError: --recipe and --config are both given, or the config has a mistake.
    """
    if given.config is None:
        given.config = f"finetune:recipe={given.recipe}" if given.recipe else "finetune"
    elif given.recipe is not None:
        raise ValueError(
            "give --recipe or --config, not both: --recipe=NAME is short for"
            " --config=finetune:recipe=NAME"
        )
    values = cli.config_values(given)
    if "recipe" not in values:
        raise ValueError(
            f"--config={given.config} is not of a fine-tuning: use finetune:recipe=NAME"
        )
    return values


def request(given: argparse.Namespace, *asked: Any) -> "Request":
    """Returns a fine-tuning with the options that flags set; `asked` are the request's others."""
    from scalelab.finetuning.plan import Request

    return Request(
        *asked,
        seeds=tuple(range(given.seeds)),
        data=given.data,
        eval_only=given.eval_only,
        submit=given.submit,
        fixed=tuple(given.fields),
    )


def task_fields(settings: Iterable[str], task: str, tasks: Collection[str]) -> dict[str, Any]:
    """Returns the fields that --per_task sets for a task.

    Args:
      settings: texts task.field=value.
      task: name of the task.
      tasks: names of the program's tasks.

    Raises:
      ValueError: a setting is not task.field=value, or its task is not in `tasks`.
    """
    found = {}
    for part in settings:
        left, equals, value = part.partition("=")
        name = next((name for name in tasks if left.startswith(f"{name}.")), None)
        if not equals or name is None:
            raise ValueError(
                f"--per_task {part!r}: expected task.field=value, such as rte.epochs=10, for"
                f" one of {', '.join(tasks)}"
            )
        if name == task:
            found[left.removeprefix(f"{name}.")] = parse_value(value)
    return found
