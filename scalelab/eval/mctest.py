"""MCTest: four choices for a question on a child's story (Richardson et al. 2013, EMNLP).

The published sets MC160 and MC500, each with its dev and test set; training uses the train sets of
both. The second text of a pair is question and choice, so that a long story loses its end alone.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scalelab.helpers.names import brief
from scalelab.tasks import files
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records
from scalelab.tasks.task import Split, Task

LABELS = ("A", "B", "C", "D")
NUM_QUESTIONS, SETS = 4, ("mc160", "mc500")


def read(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads stories, and the answers beside them; a training split those of both sets.

    Raises:
      ValueError: a file cannot be read, or a line has other fields or another answer.
    """
    paths = [path.with_name(f"{name}.{split}.tsv") for name in SETS] if split == "train" else [path]
    rows: list[tuple[str, ...]] = []
    answers: list[int] = []
    state = hashlib.sha256()
    for file in paths:
        own = [file, file.with_suffix(".ans")]
        contents, lines = [], []
        for content, text in map(files.read_text, own):
            state.update(content)
            contents.append(content)
            lines.append(text.removesuffix("\n").split("\n"))
        if len(lines[0]) != len(lines[1]):
            raise ValueError(f"{own[1]}: expected {len(lines[0])} lines, found {len(lines[1])}")
        for number, pair in enumerate(zip(*lines, strict=True), 1):
            fields = pair[0].rstrip("\r").split("\t")[2:]
            chosen = pair[1].split()
            if len(fields) != 1 + NUM_QUESTIONS * (1 + len(labels)):
                raise ValueError(
                    f"{file}, line {number}: expected a story and {NUM_QUESTIONS} questions with"
                    f" {len(labels)} choices each, found {len(fields)} fields"
                )
            if len(chosen) != NUM_QUESTIONS or not set(chosen) <= set(labels):
                raise ValueError(
                    f"{own[1]}, line {number}: expected {NUM_QUESTIONS} of {', '.join(labels)},"
                    f" found {brief(pair[1])}"
                )
            story = fields.pop(0).replace("\\newline", "\n").replace("\\tab", "\t")
            for place, letter in enumerate(chosen):
                question, *choices = fields[place * 5 : place * 5 + 5]
                asked = question.partition(": ")[2]
                rows.append((story, *(f"{asked} {choice}" for choice in choices)))
                answers.append(labels.index(letter))
    columns = tuple(map(list, zip(*rows, strict=True)))
    return Records(columns, np.array(answers, np.int32), str(path), state.hexdigest())


def _split(name: str, part: str, count: int) -> Split:
    return Split(name, (f"mctest/{part}.tsv",), count)


TASK = Task(
    name="mctest",
    title="MCTest",
    relation="entailment",
    metrics=("accuracy",),
    labels=LABELS,
    columns=Columns(("story", *LABELS)),
    train=_split("train", "mc160.train", 1480),
    dev_splits=(
        _split("dev", "mc500.dev", 200),
        _split("test", "mc500.test", 600),
        _split("mc160_dev", "mc160.dev", 120),
        _split("mc160_test", "mc160.test", 240),
    ),
    kind="choices",
    read=read,
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
