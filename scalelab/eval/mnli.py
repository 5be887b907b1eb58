"""MNLI, Multi-Genre Natural Language Inference (Williams et al. 2018, arXiv:1704.05426).

Does a premise entail a hypothesis, contradict it, or neither? Two dev and two test sets: from the
genres of the training set (matched) and from others (mismatched). A dev file has each annotator's
label too; scores use `gold_label`.

AX is not a separate task: GLUE's diagnostic set (Wang et al. 2019, arXiv:1804.07461, section 4) has
these labels and no training set. The MNLI model predicts it for the leaderboard.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="mnli",
    title="MNLI",
    relation="entailment",
    metrics=("accuracy",),
    labels=("entailment", "neutral", "contradiction"),
    columns=Columns(("sentence1", "sentence2"), "gold_label"),
    train=Split("train", ("MNLI/train.tsv",), 392702, "mnli/train"),
    dev_splits=(
        Split("matched", ("MNLI/dev_matched.tsv",), 9815, "mnli/validation_matched"),
        Split("mismatched", ("MNLI/dev_mismatched.tsv",), 9832, "mnli/validation_mismatched"),
    ),
    test_splits=(
        Split("test_matched", ("MNLI/test_matched.tsv",), 9796, "mnli/test_matched", "MNLI-m.tsv"),
        Split(
            "test_mismatched",
            ("MNLI/test_mismatched.tsv",),
            9847,
            "mnli/test_mismatched",
            "MNLI-mm.tsv",
        ),
        Split("AX", ("AX/AX.tsv", "diagnostic/diagnostic.tsv"), 1104, "ax/test", "AX.tsv"),
    ),
    tfds_texts=("premise", "hypothesis"),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
