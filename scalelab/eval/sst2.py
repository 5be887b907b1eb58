"""SST-2, the Stanford Sentiment Treebank in two classes (Socher et al. 2013, EMNLP).

Is a phrase of a film review positive (1) or negative (0)? Training rows are phrases of the parsed
sentences, dev and test rows whole sentences.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="sst2",
    title="SST-2",
    relation="single",
    metrics=("accuracy",),
    labels=("0", "1"),
    classes=("negative", "positive"),
    columns=Columns(("sentence",), "label"),
    train=Split("train", ("SST-2/train.tsv",), 67349, "sst2/train"),
    dev_splits=(Split("dev", ("SST-2/dev.tsv",), 872, "sst2/validation"),),
    test_splits=(Split("test", ("SST-2/test.tsv",), 1821, "sst2/test", "SST-2.tsv"),),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
