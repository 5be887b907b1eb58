"""A self-supervised task: is a sentence in its original order, or were two words exchanged?

Not a benchmark: `python -m scalelab.tasks.self_supervised` makes it from any corpus, and the
labels follow from how its rows are made. Every sentence occurs in both versions, so
that a bag of words gives half of the answers right.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="swapped_words",
    title="SwappedWords",
    relation="single",
    metrics=("accuracy",),
    labels=("original", "swapped"),
    columns=Columns(("sentence",), "word_order"),
    train=Split("train", ("SwappedWords/train.tsv",)),
    dev_splits=(Split("dev", ("SwappedWords/dev.tsv",)),),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
