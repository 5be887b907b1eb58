"""CrowS-Pairs: does a net prefer the stereotype?

  python -m scalelab.eval.crows_pairs --run=RUN --data=DIR --workdir=DIR

Nangia et al. 2020. DIR holds crows_pairs_anonymized.csv, or has it in data/. A pair differs in the
group that it speaks of; the score of a sentence is of the words that both have. `accuracy` is
the share of pairs where the more stereotypical sentence has the higher score: 50% is no preference.
The set has known faults (Blodgett et al. 2021), and its sentences offend.
"""

import difflib
import pathlib
import re

from scalelab.eval import items, pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program

FILE = "crows_pairs_anonymized.csv"


def read(folder: pathlib.Path) -> list[Item]:
    """Reads the pairs; raises ValueError if they are not there."""
    found = [path for path in (folder / FILE, folder / "data" / FILE) if path.exists()]
    if not found:
        raise ValueError(f"{folder}: expected {FILE} in it, or in data/")
    keys = ("sent_more", "sent_less", "bias_type")
    made = []
    for row in items.read_table(found[0], keys, delimiter=","):
        texts = row["sent_more"], row["sent_less"]
        made.append(Item((row["bias_type"],), texts, 0, shared(*texts)))
    return made


def shared(a: str, b: str) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Returns the places of the words that two texts have in common."""
    words = [[match for match in re.finditer(r"\w+|[^\w\s]", text)] for text in (a, b)]
    matcher = difflib.SequenceMatcher(None, *([m[0] for m in own] for own in words), autojunk=False)
    blocks = [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]
    left = tuple(words[0][i + k].span() for i, _, size in blocks for k in range(size))
    right = tuple(words[1][j + k].span() for _, j, size in blocks for k in range(size))
    return left, right


YARDSTICK = pairs.yardstick("crows_pairs", read, "folder of the pairs")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
