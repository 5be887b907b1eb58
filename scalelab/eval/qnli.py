"""QNLI, inference made of SQuAD's questions (Rajpurkar et al. 2016, as turned into pairs by GLUE).

Does a sentence hold the answer to a question? The sets are those of GLUE's second release.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="qnli",
    title="QNLI",
    relation="entailment",
    metrics=("accuracy",),
    labels=("entailment", "not_entailment"),
    columns=Columns(("question", "sentence"), "label"),
    train=Split("train", ("QNLI/train.tsv",), 104743, "qnli/train"),
    dev_splits=(Split("dev", ("QNLI/dev.tsv",), 5463, "qnli/validation"),),
    test_splits=(Split("test", ("QNLI/test.tsv",), 5463, "qnli/test", "QNLI.tsv"),),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
