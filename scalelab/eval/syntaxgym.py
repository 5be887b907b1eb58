"""SyntaxGym: 34 suites in 6 circuits, each a prediction about surprisals (Hu et al. 2020).

  python -m scalelab.eval.syntaxgym --run=RUN --data=DIR --workdir=DIR

DIR holds <suite>.json, or has them in json/. A prediction compares the surprisals of regions of a
sentence in several conditions; an item is right where all comparisons of its prediction hold. If a
suite has several predictions, each makes an item. Predictions of equality are left out: real
numbers are never equal. `chance` is the share of items that hold for independent random surprisals.
"""

import json
import pathlib
import re

from scalelab.eval import items, pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program

CIRCUITS = {  # by the beginning of a suite's name
    "number": "agreement",
    "center_embed": "center embedding",
    "mvrr": "garden-path effects",
    "np": "garden-path effects",
    "nn-nv": "garden-path effects",
    "subordination": "gross syntactic state",
    "npi": "licensing",
    "reflexive": "licensing",
    "fgd": "long-distance dependencies",
    "cleft": "long-distance dependencies",
}
REGION = re.compile(r"\((\d+|\*);%([^%]+)%\)")


def read(folder: pathlib.Path) -> list[Item]:
    """Reads all suites of a folder.

    Raises:
      ValueError: there is none, or one is damaged.
    """
    paths = sorted([*folder.glob("*.json"), *folder.glob("json/*.json")])
    if not paths:
        raise ValueError(f"{folder}: expected <suite>.json files in it or in json/")
    found = []
    for path in paths:
        try:
            suite = json.loads(path.read_text(encoding="utf-8"))
            formulas = [p["formula"] for p in suite["predictions"] if "=" not in p["formula"]]
            for item in suite["items"]:
                found += [_item(path.stem, item["conditions"], text) for text in formulas]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no suite of SyntaxGym: {error!r}") from None
    return found


def _item(suite: str, conditions: list[dict], formula: str) -> Item:
    """Makes an item: the texts are the regions of the formula, each in its sentence."""
    sentences = {c["condition_name"]: c["regions"] for c in conditions}
    asked = list(dict.fromkeys(REGION.findall(formula)))
    texts, spans = [], []
    for region, condition in asked:
        text, edges = join([r["content"] for r in sentences[condition]])
        numbers = [str(r["region_number"]) for r in sentences[condition]]
        texts.append(text)
        spans.append(None if region == "*" else (edges[numbers.index(region)],))
    names = {key: f"x{k}" for k, key in enumerate(asked)}
    code = REGION.sub(lambda match: names[match.groups()], formula)
    code = code.replace("[", "(").replace("]", ")").strip()
    items.parse_formula(code)
    circuit = max((c for c in CIRCUITS if suite.startswith(c)), key=len, default=None)
    groups = suite, CIRCUITS[circuit] if circuit else "others"
    return Item(groups, tuple(texts), 0, tuple(spans), code)


def join(regions: list[str]) -> tuple[str, list[tuple[int, int]]]:
    """Joins regions by spaces; returns the text and the place of each region in it."""
    text, edges = "", []
    for content in regions:
        begin = len(text)
        if content.strip():
            text += " " * bool(text) + content.strip()
        edges.append((begin, len(text)))
    return text, edges


YARDSTICK = pairs.yardstick("syntaxgym", read, "folder of the suites")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
