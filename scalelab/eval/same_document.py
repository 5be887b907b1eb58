"""A self-supervised task: are two passages from the same document, or from different ones?

Not a benchmark: `python -m scalelab.tasks.self_supervised` makes it from any corpus, and the
labels follow from how its rows are made. Guessing gives half of the answers right;
counting the words that two passages share gives more.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="same_document",
    title="SameDocument",
    relation="similarity",
    metrics=("accuracy",),
    labels=("different", "same"),
    columns=Columns(("passage1", "passage2"), "documents"),
    train=Split("train", ("SameDocument/train.tsv",)),
    dev_splits=(Split("dev", ("SameDocument/dev.tsv",)),),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
