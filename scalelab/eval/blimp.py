"""BLiMP: 67 paradigms of minimal pairs in 12 phenomena (Warstadt et al. 2020).

  python -m scalelab.eval.blimp --run=RUN --data=DIR --workdir=DIR

DIR holds the paradigms' files, <paradigm>.jsonl, or has them in data/. The columns `ngram` and
`lstm` have the accuracies of the paper's 5-gram model and LSTM, as its authors have corrected them
(means 61.2 and 69.8), if DIR holds published/models_summary.jsonl of the paper's repository. The
paper's Transformer-XL has 69.6 and its GPT-2 83.0.
"""

import pathlib
from typing import TYPE_CHECKING

from scalelab.eval import pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program
from scalelab.helpers import files

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = "published/models_summary.jsonl"
MODELS = ["ngram", "lstm"]
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
        for row in files.read_lines(path, KEYS)
    ]


def read_published(folder: pathlib.Path) -> "pd.DataFrame":
    """Returns the accuracies of the paper's models by paradigm, phenomenon, and their mean."""
    import pandas as pd

    path, names = folder / PUBLISHED, ["UID", "linguistics_term"]
    if not path.exists():
        return pd.DataFrame()
    frame = pd.DataFrame(files.read_lines(path, (*names, *MODELS)))
    frame = frame[frame["UID"] != "overall"]
    levels = [frame.groupby(name)[MODELS].mean() for name in names]
    means = frame[MODELS].mean()
    return pd.concat([*levels, pd.DataFrame({"mean": means, "all items": means}).T])


YARDSTICK = pairs.yardstick(
    "blimp", read, "folder of the paradigms' files", published=read_published
)
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
