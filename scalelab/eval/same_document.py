"""A self-labelled probe: are two passages from the same document, or from different ones?

No benchmark: `python -m scalelab.data.probes` makes it out of any corpus, and the labels follow
from how its rows are made (scalelab/data/probe_rows.py), which half of guesses get right. Counting
the words that two passages share already gets more.
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
