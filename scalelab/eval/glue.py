"""Fine-tunes one model on all nine GLUE tasks and prints one table.

  python -m scalelab.eval.glue --init=RUN --workdir=DIR --data=DATA [--tasks=rte,...] [--seeds=5]

With --config.sharing=hard all tasks are trained at once, on one body with a head for each task.
Writes DIR/<task>/seed<k>/, the same for a model from random weights in DIR/scratch/, and
DIR/glue.md and glue.csv. Start the same command again to continue.
"""

import argparse
import dataclasses

from scalelab.config import cli
from scalelab.eval import program
from scalelab.tasks import submission
from scalelab.tasks import task as task_lib
from scalelab.tasks.task import Task

# MNLI comes before the tasks that may start from its weights; otherwise small tasks come first.
ORDER = ("wnli", "mnli", "rte", "mrpc", "stsb", "cola", "qnli", "qqp", "sst2")
AFTER_MNLI = ("rte", "mrpc", "stsb")  # Liu et al. 2019, RoBERTa, section 5.1


def choose(names: list[str]) -> list[Task]:
    """Returns the tasks of these names: GLUE's in ORDER, then others by name.

    Raises:
      ValueError: there is no such task, or `names` is empty.
    """
    if not names:
        raise ValueError(f"--tasks is empty: expected some of {', '.join(ORDER)}")
    found = {name: task_lib.load_task(name) for name in names}
    more = sorted(found.keys() - set(ORDER))
    return [found[name] for name in (*ORDER, *more) if name in found]


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.eval.glue", __doc__, **program.FINETUNES)
    program.add_flags(made)
    add = made.add_argument
    add("--tasks", type=cli.comma_list, default=list(ORDER), metavar="NAME,NAME",
        help="which tasks; GLUE's nine by default. Others, such as those of"
        " scalelab.tasks.self_supervised, count in no average")  # fmt: skip
    add("--baseline", choices=("run", "none"), default="run",
        help="the same model from random weights: train it too, or leave it out of the"
        " table")  # fmt: skip
    add("--mnli_first", action="store_true",
        help="start RTE, MRPC and STS-B from the run on MNLI; the table says so")  # fmt: skip
    return made


def main(given: argparse.Namespace) -> None:
    """Fine-tunes on every task and prints the table."""
    tasks, workdir = choose(given.tasks), cli.workdir(given)
    values = program.config_values(given)
    if given.form == "text":
        tasks = [task_lib.as_text(task) for task in tasks]
        if given.mnli_first:
            raise ValueError("--mnli_first gives a model with a head: leave out --as=text")
    init, like = cli.required(given.init, "init"), given.like
    if given.mnli is not None:
        raise ValueError("--mnli is for a single task; use --mnli_first here")
    if given.mnli_first and ("mnli" not in given.tasks or init == "none"):
        raise ValueError("--mnli_first needs the task mnli among --tasks, and no --init=none")
    from scalelab import finetune
    from scalelab.eval import glue_table
    from scalelab.finetuning import plan, warm_start

    starts = [(workdir, init, like)]
    if init != "none" and given.baseline == "run":
        starts.append((workdir / "scratch", "none", init))
    names = [task.name for task in tasks]
    fields = {name: program.task_fields(given.per_task, name, names) for name in names}
    if shares := values["sharing"] is not None:
        fields = {name: {"sharing_tasks": ",".join(names)} | own for name, own in fields.items()}
    if shares and given.mnli_first:
        raise ValueError("--mnli_first trains MNLI first, config.sharing all tasks at once")
    asked = program.request(given, warm_start.open_start(init, like), values, fields)
    for task in tasks:
        plan.check(task, asked)
    results = []
    for folder, weights, net in starts if shares and not given.eval_only else ():
        own = dataclasses.replace(asked, start=warm_start.open_start(weights, net))
        results += finetune.fine_tune_jointly(tasks, own, folder)
    for task in tasks if not shares or given.eval_only or given.submit else ():
        for folder, weights, net in starts:
            after_mnli = given.mnli_first and task.name in AFTER_MNLI and weights != "none"
            start = warm_start.open_start(weights, net, str(folder / "mnli") * after_mnli or None)
            submit = given.submit and folder == workdir
            own = dataclasses.replace(asked, start=start, submit=submit)
            results += finetune.fine_tune(task, own, folder / task.name)
    if given.submit:
        for task in tasks:
            for path in (workdir / task.name / "submission").glob("*.tsv"):
                (workdir / "submission").mkdir(exist_ok=True)
                (workdir / "submission" / path.name).write_bytes(path.read_bytes())
        submission.pack(workdir)
    print(glue_table.write(workdir))
    program.stop_if_failed(results)


if __name__ == "__main__":
    cli.run(main, parser())
