"""COPA: the more plausible cause or effect (Roemmele et al. 2011; in SuperGLUE).

  python -m scalelab.eval.copa --run=RUN --data=DIR --workdir=DIR

DIR holds val.jsonl, or has it in COPA/. The premise is joined to each choice by "because" or "so";
a choice's score is of its own words, given the premise (Brown et al. 2020, 2.4).
"""

import pathlib

from scalelab.eval import pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program
from scalelab.helpers import files
from scalelab.tasks.superglue import join_choices


def read(folder: pathlib.Path) -> list[Item]:
    """Reads the validation set; raises ValueError if it is not there."""
    path = next((p for p in (folder / "COPA/val.jsonl", folder / "val.jsonl") if p.exists()), None)
    if path is None:
        raise ValueError(f"{folder}: expected val.jsonl in it, or in COPA/")
    found = []
    for row in files.read_lines(path, ("premise", "choice1", "choice2", "question", "label")):
        begun, ends = join_choices(row)
        texts = tuple(f"{begun} {end}" for end in ends)
        spans = tuple(((len(begun), len(text)),) for text in texts)
        found.append(Item((row["question"],), texts, int(row["label"]), spans))
    return found


YARDSTICK = pairs.yardstick("copa", read, "folder of the set", folder="superglue")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
