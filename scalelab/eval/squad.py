"""SQuAD v1.1: questions on Wikipedia whose answer is a span (Rajpurkar et al. 2016, EMNLP).

Scores are exact match and F1 of evaluate-v1.1.py. Where DATA/squad has no train-v1.1.json, the
published dev set is split by article, and tables say so: 80% train, 20% dev. `max_train_examples`
counts windows of contexts.
"""

from collections.abc import Sequence
from pathlib import Path

from scalelab.tasks import questions
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records
from scalelab.tasks.task import Split, Task

TRAIN = ("train-v1.1.json", "train-v1.1.json.xz")
DEV = "dev-v1.1.json"


def read(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads a split; raises ValueError if the file is malformed."""
    del labels
    carved = not any((path.parent / name).exists() for name in TRAIN)
    return questions.read(path, split, carved=carved)


TASK = Task(
    name="squad",
    title="SQuAD",
    relation="entailment",
    metrics=("answer_f1", "exact_match"),
    columns=Columns(("question", "context")),
    train=Split("train", tuple(f"squad/{name}" for name in (*TRAIN, DEV)), 87599),
    dev_splits=(Split("dev", (f"squad/{DEV}",), 10570),),
    kind="spans",
    read=read,
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
