"""TyDiQA-GoldP, English: an answer in a given paragraph (Clark et al. 2020, TACL).

XTREME's files: its dev set has no answers, so that dev is every fifth context of the train set, and
tables say so. Scores are those of SQuAD. `max_train_examples` counts windows of contexts.
"""

from collections.abc import Sequence
from pathlib import Path

from scalelab.tasks import questions
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records
from scalelab.tasks.task import Split, Task

FILES = ("tydiqa/tydiqa.goldp.en.train.json",)


def read(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads a part of the train set; raises ValueError if the file is malformed."""
    del labels
    return questions.read(path, split, carved=True)


TASK = Task(
    name="tydiqa",
    title="TyDiQA",
    relation="entailment",
    metrics=("answer_f1", "exact_match"),
    columns=Columns(("question", "context")),
    train=Split("train", FILES),
    dev_splits=(Split("dev", FILES),),
    kind="spans",
    read=read,
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
