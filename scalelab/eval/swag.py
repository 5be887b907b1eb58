"""SWAG: which of four endings goes on from a sentence (Zellers et al. 2018, EMNLP).

The first text is `sent1`, the choices are `sent2` with each ending (Devlin et al. 2019, 4.4).
"""

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path

from scalelab.tasks import files
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Labels, Records
from scalelab.tasks.task import Split, Task

ENDINGS = ("ending0", "ending1", "ending2", "ending3")


def read(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads a CSV file; raises ValueError if it has other columns, choices or labels."""
    del split
    content, text = files.read_text(path)
    rows = csv.DictReader(text.splitlines(keepends=True))
    needed, found = {"sent1", "sent2", *ENDINGS, "label"}, {*(rows.fieldnames or ())}
    if needed - found or "ending4" in found:
        raise ValueError(
            f"{path}: expected the columns {', '.join(sorted(needed))} and no more endings, found"
            f" {', '.join(sorted(found))}"
        )
    made, spelt = [], []
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        if None in row or None in row.values():
            raise ValueError(f"{where}: expected {len(found)} fields, found another number")
        made.append((row["sent1"], *(f"{row['sent2']} {row[name]}" for name in ENDINGS)))
        spelt.append((where, row["label"]))
    if not made:
        raise ValueError(f"{path}: there are no rows of data")
    columns = tuple(map(list, zip(*made, strict=True)))
    answers = Labels(tuple(labels)).array(spelt)
    return Records(columns, answers, str(path), hashlib.sha256(content).hexdigest())


TASK = Task(
    name="swag",
    title="SWAG",
    relation="entailment",
    metrics=("accuracy",),
    labels=("0", "1", "2", "3"),
    columns=Columns(("sent1", *ENDINGS)),
    train=Split("train", ("swag/train.csv",), 73546),
    dev_splits=(Split("dev", ("swag/val.csv",), 20006),),
    kind="choices",
    read=read,
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
