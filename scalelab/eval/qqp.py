"""QQP, the Quora Question Pairs (Iyer, Dandekar and Csernai 2017, as split by GLUE).

Do two questions ask the same (1) or not (0)? Some questions of the official files have a line break
in them; `scalelab.tasks.files.read` handles these.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="qqp",
    title="QQP",
    relation="similarity",
    metrics=("accuracy", "f1"),
    labels=("0", "1"),
    classes=("not_duplicate", "duplicate"),
    columns=Columns(("question1", "question2"), "is_duplicate"),
    train=Split("train", ("QQP/train.tsv",), 363846, "qqp/train", broken_lines=True),
    dev_splits=(Split("dev", ("QQP/dev.tsv",), 40430, "qqp/validation", broken_lines=True),),
    test_splits=(Split("test", ("QQP/test.tsv",), 390965, "qqp/test", "QQP.tsv"),),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
