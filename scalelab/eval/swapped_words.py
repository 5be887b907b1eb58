"""A self-labelled probe: does a sentence stand as it was written, or were two words exchanged?

No benchmark: `python -m scalelab.data.probes` makes it out of any corpus, and the labels follow
from how its rows are made (scalelab/data/probe_rows.py). Every sentence is there in both versions,
so that without the order of words half of the answers are right.
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
