"""A user's own task: `train.tsv`, `dev.tsv` and optionally `test.tsv` in one folder.

  python -m scalelab.eval.tsv --init=RUN --workdir=DIR --data=FOLDER \
      --kind=classification --columns=question,answer,verdict

The files' first line names the columns; fields are separated by tabs, without quoting. The classes
are the labels of the training file. `test.tsv` is only predicted; its labels are not read.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from scalelab.config import cli
from scalelab.eval import program
from scalelab.tasks import files
from scalelab.tasks.facts import RELATIONS, Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.task import load_task, task_names

KINDS = ("classification", "regression")
MOST_CLASSES = 1000  # a label column with more classes probably has texts or scores


def make_task(
    data_dir: str | os.PathLike[str],
    kind: str,
    columns: Sequence[str],
    *,
    relation: str | None = None,
) -> Task:
    """Describes the task in a folder.

    Args:
      data_dir: the folder.
      kind: "classification" or "regression".
      columns: one or two text columns, then the label column.
      relation: relation of two texts, "entailment" (the default) or "similarity".

    Raises:
      ValueError: the columns or the training file's labels do not fit.
    """
    if len(columns) not in (2, 3) or len(set(columns)) < len(columns) or not all(columns):
        raise ValueError(
            "columns: expected one or two text columns and the label's, each once, such as"
            f" text,label or text_a,text_b,label; got {','.join(columns)!r}"
        )
    *texts, label = columns
    if relation is not None and len(texts) == 1:
        raise ValueError(f"relation: {relation} needs two text columns; got {texts[0]!r}")
    labeled = Columns(tuple(texts), label)
    folder = files.folder(data_dir)
    classes = kind == "classification"
    name = folder.resolve().name
    published = [load_task(task) for task in task_names()]
    if name.casefold() in {spelt.casefold() for t in published for spelt in (t.name, t.title)}:
        name = f"own-{name}"  # differs from the published task's name
    return Task(
        name=name,
        title=name,
        relation="single" if len(texts) == 1 else relation or "entailment",
        metrics=("accuracy",) if classes else ("pearson", "spearman"),
        labels=_classes(folder / "train.tsv", labeled) if classes else None,
        columns=labeled,
        train=TaskSplit("train", ("train.tsv",)),
        dev_splits=(TaskSplit("dev", ("dev.tsv",)),),
        test_splits=(TaskSplit("test", ("test.tsv",), submission=f"{name}.tsv"),),
    )


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.eval.tsv", __doc__, **program.FINETUNES)
    program.add_flags(made, "folder with train.tsv, dev.tsv and perhaps test.tsv")
    add = made.add_argument
    add("--kind", required=True, choices=KINDS,
        help="whether a row's label is a class or a number")  # fmt: skip
    add("--columns", required=True, type=cli.comma_list, metavar="NAME,NAME",
        help="names of the one or two text columns, then of the label column")  # fmt: skip
    add("--relation", choices=RELATIONS[1:],
        help="for two texts: similarity if their order is irrelevant (GPT-style models see both"
        " orders), else entailment, the default")  # fmt: skip
    return made


def main(given: argparse.Namespace) -> None:
    """Fine-tunes on the task of the flags; raises ValueError as `make_task`."""
    data = cli.required(given.data, "data")
    program.fine_tune(given, make_task(data, given.kind, given.columns, relation=given.relation))


def _classes(path: Path, columns: Columns) -> tuple[str, ...]:
    """Returns the labels of a training file, sorted."""
    labels = sorted(set(files.read_labels(path, columns)))
    if not 2 <= len(labels) <= MOST_CLASSES:
        raise ValueError(
            f"{path}: expected from 2 to {MOST_CLASSES} different labels in the column"
            f" {columns.label!r}, found {len(labels)}; to predict numbers, use"
            " --kind=regression"
        )
    return tuple(labels)


if __name__ == "__main__":
    cli.run(main, parser())
