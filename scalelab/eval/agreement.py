"""Agreement of subject and verb, in three sets of sentences.

  python -m scalelab.eval.agreement --run=RUN --data=DIR --workdir=DIR

DIR holds what is there of colorlessgreen/English (Gulordava et al. 2018, "Colorless green recurrent
networks dream hierarchically"), linzen_testset (sentences of Linzen et al. 2016, as the former
filtered them) and marvin_linzen (Marvin and Linzen 2018, a table of pairs). In the first two a net
reads the sentence up to the verb, in the right and in the wrong form; a masked net, too, sees
nothing after it.
"""

import csv
import pathlib

from scalelab.eval import items, pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program

GREEN = "colorlessgreen/English/generated.tab"
LINZEN = "linzen_testset/subj_agr_filtered"
MARVIN = "marvin_linzen/pairs_sample.tsv"


def read(folder: pathlib.Path) -> list[Item]:
    """Reads the sets that are in a folder.

    Raises:
      ValueError: none is, or one is not as its authors publish it.
    """
    found = [*_green(folder / GREEN), *_linzen(folder / LINZEN), *_marvin(folder / MARVIN)]
    if not found:
        raise ValueError(f"{folder}: expected {GREEN}, {LINZEN}.gold and .text, or {MARVIN} in it")
    return found


def _green(path: pathlib.Path) -> list[Item]:
    rows = items.read_table(path, ("constr_id", "sent_id", "class", "form", "len_prefix", "sent"))
    found = []
    for right, wrong in zip(rows[::2], rows[1::2], strict=True):
        if (right["class"], wrong["class"]) != ("correct", "wrong"):
            raise ValueError(f"{path}: expected rows of a correct and a wrong form in turn")
        prefix = right["sent"].split()[: int(right["len_prefix"])]
        kind = "original" if right["sent_id"] == "0" else "nonce"
        texts = tuple(" ".join([*prefix, row["form"]]) for row in (right, wrong))
        found.append(Item((f"green: {kind}", "green"), texts, 0))
    return found


def _linzen(path: pathlib.Path) -> list[Item]:
    gold, text = (path.with_name(f"{path.name}.{kind}") for kind in ("gold", "text"))
    if not gold.exists():
        return []
    found = []
    with gold.open(encoding="utf-8") as golds, text.open(encoding="utf-8") as lines:
        for row, line in zip(csv.reader(golds, delimiter="\t"), lines, strict=True):
            at, right, wrong, attractors = row
            prefix = line.split()[: int(at)]
            texts = tuple(" ".join([*prefix, form]) for form in (right, wrong))
            found.append(Item((f"linzen: {attractors} attractors", "linzen"), texts, 0))
    return found


def _marvin(path: pathlib.Path) -> list[Item]:
    rows = items.read_table(path, ("test case", "grammatical", "ungrammatical"), quoting=False)
    return [
        Item(
            (f"marvin: {row['test case'].split('--')[0]}", "marvin"),
            (row["grammatical"], row["ungrammatical"]),
            0,
        )
        for row in rows
    ]


YARDSTICK = pairs.yardstick("agreement", read, "folder of the sets")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
