"""All nine GLUE tasks of one net, and one table.

  python -m scalelab.eval.glue --init=RUN --workdir=DIR --data=DATA [--tasks=rte,...] [--seeds=5]

Leaves DIR/<task>/seed<k>/, the same of a net that starts from random weights in DIR/scratch/, and
DIR/glue.md and glue.csv. Started again, it goes on where it was stopped.
"""

import dataclasses

from absl import flags

from scalelab import finetune
from scalelab.config import cli
from scalelab.resources import malloc
from scalelab.tasks import submission, task

# MNLI before the tasks that may start from its weights; the small ones first otherwise.
ORDER = ("wnli", "mnli", "rte", "mrpc", "stsb", "cola", "qnli", "qqp", "sst2")
AFTER_MNLI = ("rte", "mrpc", "stsb")  # Liu et al. 2019, RoBERTa, section 5.1

TASKS = flags.DEFINE_list(
    "tasks",
    list(ORDER),
    "Which tasks, joined by commas; GLUE's nine by default. Others, such as the probes of"
    " scalelab.data.probes, count in no average.",
)
BASELINE = flags.DEFINE_enum(
    "baseline",
    "run",
    ("run", "none"),
    "The same net from random weights, beside: trained too, or left out of the table.",
)
MNLI_FIRST = flags.DEFINE_bool(
    "mnli_first", False, "Start RTE, MRPC and STS-B from the run on MNLI; the table says so."
)


def chosen(names: list[str]) -> list[task.Task]:
    """The tasks of these names: GLUE's in ORDER, then others by name.

    Raises:
      ValueError: there is no such task, or none at all.
    """
    if not names:
        raise ValueError(f"--tasks is empty: expected some of {', '.join(ORDER)}")
    found = {name: task.load_task(name) for name in names}
    others = sorted(found.keys() - set(ORDER))
    return [found[name] for name in (*ORDER, *others) if name in found]


def main(argv: list[str]) -> None:
    """Fine-tunes on every task and prints the table."""
    del argv
    malloc.keep()
    tasks = chosen(TASKS.value)
    workdir = cli.workdir()
    init, like = cli.required(finetune.INIT.value, "init"), finetune.LIKE.value
    if MNLI_FIRST.value and "mnli" not in TASKS.value:
        raise ValueError("--mnli_first needs the task mnli among --tasks")
    if finetune.MNLI.value is not None:
        raise ValueError("--mnli is for a single task; here --mnli_first says the same")
    if MNLI_FIRST.value and init == "none":
        raise ValueError(
            "--mnli_first starts tasks from the weights of MNLI, --init=none asks for random ones:"
            " leave one out"
        )
    from scalelab.finetuning import start as finetune_start
    from scalelab.lab.tasks import glue_table

    values, options = cli.config_values(), finetune.options()
    starts = [(workdir, init, like)]
    if init != "none" and BASELINE.value == "run":
        starts.append((workdir / "scratch", "none", init))
    opened = [finetune_start.open_start(weights, net) for _, weights, net in starts]
    names = [one.name for one in tasks]
    for one in tasks:
        finetune.check(one, opened[0], values, options, finetune.settings(one.name, names))
    for one in tasks:
        for folder, weights, net in starts:
            mnli = str(folder / "mnli") if MNLI_FIRST.value and one.name in AFTER_MNLI else None
            mnli = None if weights == "none" else mnli
            start = finetune_start.open_start(weights, net, mnli)
            fields = finetune.settings(one.name, names)
            asked = options if folder == workdir else dataclasses.replace(options, submit=False)
            finetune.fine_tune(one, start, values, folder / one.name, asked, fields)
    if options.submit:
        for one in tasks:
            written = workdir / one.name / "submission"
            for path in written.glob("*.tsv"):
                (workdir / "submission").mkdir(exist_ok=True)
                (workdir / "submission" / path.name).write_bytes(path.read_bytes())
        submission.pack(workdir)
    print(glue_table.write(workdir, best=finetune.BEST.value))


if __name__ == "__main__":
    finetune.program(main)
