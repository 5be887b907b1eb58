"""BLiMP: 67 paradigms of minimal pairs in 12 phenomena (Warstadt et al. 2020).

  python -m scalelab.eval.blimp --run=RUN --data=DIR --workdir=DIR

DIR holds the paradigms' files, <paradigm>.jsonl, or has them in data/. Guessing gives 50%. The
paper's n-gram model has 61.2, its LSTM 69.8, its Transformer-XL 69.6 and its GPT-2 83.0, as its
authors have corrected them.
"""

import pathlib

from scalelab.eval import items, pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program

KEYS = ("sentence_good", "sentence_bad", "UID", "linguistics_term")


def read(folder: pathlib.Path) -> list[Item]:
    """Reads all paradigms of a folder, in alphabetical order.

    Raises:
      ValueError: there is none, or a line lacks a key.
    """
    paths = sorted([*folder.glob("*.jsonl"), *folder.glob("data/*.jsonl")])
    if not paths:
        raise ValueError(f"{folder}: expected <paradigm>.jsonl files of BLiMP in it or in data/")
    return [
        Item((row["UID"], row["linguistics_term"]), (row["sentence_good"], row["sentence_bad"]), 0)
        for path in paths
        for row in items.read_lines(path, KEYS)
    ]


YARDSTICK = pairs.yardstick("blimp", read, "folder of the paradigms' files")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
