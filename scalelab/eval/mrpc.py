"""MRPC, the Microsoft Research Paraphrase Corpus (Dolan and Brockett 2005, IWP).

Do two sentences from news mean the same (1) or not (0)?
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="mrpc",
    title="MRPC",
    relation="similarity",
    metrics=("accuracy", "f1"),
    labels=("0", "1"),
    classes=("not_equivalent", "equivalent"),
    columns=Columns(("#1 String", "#2 String"), "Quality"),
    train=Split("train", ("MRPC/train.tsv",), 3668, "mrpc/train"),
    dev_splits=(Split("dev", ("MRPC/dev.tsv",), 408, "mrpc/validation"),),
    test_splits=(Split("test", ("MRPC/test.tsv",), 1725, "mrpc/test", "MRPC.tsv"),),
    tfds_texts=("sentence1", "sentence2"),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
