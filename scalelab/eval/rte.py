"""RTE, Recognizing Textual Entailment 1, 2, 3 and 5, put together by GLUE.

Does a text entail a hypothesis? (Dagan et al. 2006, Bar Haim et al. 2006, Giampiccolo et al. 2007,
Bentivogli et al. 2009; neutral and contradiction are one class.)
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="rte",
    title="RTE",
    relation="entailment",
    metrics=("accuracy",),
    labels=("entailment", "not_entailment"),
    columns=Columns(("sentence1", "sentence2"), "label"),
    train=Split("train", ("RTE/train.tsv",), 2490, "rte/train"),
    dev_splits=(Split("dev", ("RTE/dev.tsv",), 277, "rte/validation"),),
    test_splits=(Split("test", ("RTE/test.tsv",), 3000, "rte/test", "RTE.tsv"),),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
