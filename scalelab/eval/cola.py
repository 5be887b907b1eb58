"""CoLA, the Corpus of Linguistic Acceptability (Warstadt et al. 2019, arXiv:1805.12471).

Is a sentence, taken from the literature on linguistics, acceptable (1) or not (0)? Training and dev
files have no header; their columns are source, label, the author's own mark, sentence.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="cola",
    title="CoLA",
    relation="single",
    metrics=("matthews",),
    labels=("0", "1"),
    classes=("unacceptable", "acceptable"),
    columns=Columns(texts=(3,), label=1, num_fields=4),
    test_columns=Columns(("sentence",)),
    train=Split("train", ("CoLA/train.tsv",), 8551, "cola/train"),
    dev_splits=(Split("dev", ("CoLA/dev.tsv",), 1043, "cola/validation"),),
    test_splits=(Split("test", ("CoLA/test.tsv",), 1063, "cola/test", "CoLA.tsv"),),
    tfds_texts=("sentence",),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
