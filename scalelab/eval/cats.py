"""Commonsense Ability Tests: which of the sentences makes sense (Zhou et al. 2020).

  python -m scalelab.eval.cats --run=RUN --data=DIR --workdir=DIR

DIR holds commonsense_ability_test/<test>.txt, and perhaps Robust_commonsense_test/<change>.txt,
whose pairs come in two versions. A sentence's score is the mean over its tokens. The paper
has GPT-2 (base) at 52.0, BERT (base) at 56.9 and people at 94.5 on average, guessing at 41.6.
"""

import pathlib

from scalelab.eval import pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program

SEPARATOR = "\x01"


def read(folder: pathlib.Path) -> list[Item]:
    """Reads all tests of a folder.

    Raises:
      ValueError: there is none, or a line has no alternatives.
    """
    tests = sorted(folder.glob("commonsense_ability_test/*.txt"))
    robust = sorted(folder.glob("Robust_commonsense_test/*.txt"))
    if not tests:
        raise ValueError(f"{folder}: expected commonsense_ability_test/<test>.txt in it")
    found = []
    for path in (*tests, *robust):
        level = "tests" if path in tests else "robust pairs"
        content = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(content.split("\n"), 1):
            fields = [field.strip() for field in line.split(SEPARATOR)] if line.strip() else []
            size = len(fields) // 2 if path in robust else len(fields)
            for part in (fields[k : k + size] for k in range(0, len(fields), max(size, 1))):
                right, *texts = part
                if not right.isdecimal() or not int(right) < len(texts):
                    raise ValueError(f"{path}, line {number}: expected a place and alternatives")
                texts = tuple(text.replace(" [SEP] ", " ") for text in texts)
                found.append(Item((path.stem, level), texts, int(right)))
    return found


YARDSTICK = pairs.yardstick("cats", read, "folder of the tests", by_mean=True)
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
