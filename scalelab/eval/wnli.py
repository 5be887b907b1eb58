"""WNLI, inference made of the Winograd Schema Challenge (Levesque et al. 2012, KR).

Does a sentence entail (1) the same sentence with its pronoun replaced, or not (0)? The dev set
shares sentences with the training set under opposite labels (question 12 of GLUE's own list), so a
net that learns the training set scores below chance.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="wnli",
    title="WNLI",
    relation="entailment",
    metrics=("accuracy",),
    labels=("0", "1"),
    classes=("not_entailment", "entailment"),
    columns=Columns(("sentence1", "sentence2"), "label"),
    train=Split("train", ("WNLI/train.tsv",), 635, "wnli/train"),
    dev_splits=(Split("dev", ("WNLI/dev.tsv",), 71, "wnli/validation"),),
    test_splits=(Split("test", ("WNLI/test.tsv",), 146, "wnli/test", "WNLI.tsv"),),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
