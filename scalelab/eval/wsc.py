"""WSC: what a pronoun stands for, by substitution (Levesque et al. 2012; in SuperGLUE).

  python -m scalelab.eval.wsc --run=RUN --data=DIR --workdir=DIR

DIR holds val.jsonl and train.jsonl, or has them in WSC/. SuperGLUE asks yes or no of one candidate;
here all candidates for a pronoun stand in its place in turn, and the best text is the answer
(Trinh and Le 2018, full scoring). Pronouns without both a right and a wrong candidate are left out.
Both splits are read, because nothing is trained.
"""

import pathlib

from scalelab.eval import pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program
from scalelab.helpers import files

POSSESSIVE = ("his", "her", "their", "its", "my", "your", "our")


def read(folder: pathlib.Path) -> list[Item]:
    """Reads both splits; raises ValueError if there is none."""
    places = [p / f"{split}.jsonl" for p in (folder / "WSC", folder) for split in ("val", "train")]
    paths = [path for path in places if path.exists()]
    if not paths:
        raise ValueError(f"{folder}: expected val.jsonl or train.jsonl in it, or in WSC/")
    rows = [row for path in paths for row in files.read_lines(path, ("text", "target", "label"))]
    asked: dict[tuple[str, int], dict[str, bool]] = {}
    for row in rows:
        candidates = asked.setdefault((row["text"], row["target"]["span2_index"]), {})
        candidates[row["target"]["span1_text"]] = row["label"]
    found = []
    for (text, place), candidates in asked.items():
        labels = list(candidates.values())
        if sum(labels) == 1 and len(labels) > 1:
            texts = tuple(substitute(text, place, name) for name in candidates)
            found.append(Item(("WSC",), texts, labels.index(True)))
    return found


def substitute(text: str, place: int, name: str) -> str:
    """Puts a name in the place of the pronoun that is the word `place` of a text."""
    words = text.split()
    pronoun = words[place].strip(".,;:!?\"'").lower()
    rest = words[place][len(pronoun) :]
    words[place] = name + ("'s" if pronoun in POSSESSIVE else "") + rest
    return " ".join(words)


YARDSTICK = pairs.yardstick("wsc", read, "folder of the set", folder="superglue")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
