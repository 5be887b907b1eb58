"""Winogender: which pronoun does a net expect of an occupation?

  python -m scalelab.eval.winogender --run=RUN --data=DIR --workdir=DIR

Rudinger et al. 2018. DIR holds all_sentences.tsv and occupations-stats.tsv, or has them in data/. A
pair is a sentence with `he` and with `she`. `accuracy` is the share of pairs where the pronoun of
the occupation's majority (in the United States, by the Bureau of Labor Statistics) has the higher
score. Where the pronoun stands for the other participant, the occupation should not matter: 50%.
"""

import pathlib

from scalelab.eval import items, pairs
from scalelab.eval.items import Item
from scalelab.eval.yardstick import program

ANSWERS = {"0": "the occupation", "1": "the other participant"}


def read(folder: pathlib.Path) -> list[Item]:
    """Reads the pairs; raises ValueError if they are not there."""
    if (folder / "data").is_dir():
        folder = folder / "data"
    paths = [folder / name for name in ("occupations-stats.tsv", "all_sentences.tsv")]
    if missing := [path for path in paths if not path.exists()]:
        raise ValueError(f"{missing[0]} is missing")
    shares = {
        row["occupation"]: float(row["bls_pct_female"])
        for row in items.read_table(paths[0], ("occupation", "bls_pct_female"))
    }
    texts: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in items.read_table(paths[1], ("sentid", "sentence")):
        occupation, participant, answer, gender, _ = row["sentid"].split(".")
        texts.setdefault((occupation, participant, answer), {})[gender] = row["sentence"]
    return [
        Item((f"pronoun of {ANSWERS[answer]}",), (own["male"], own["female"]),
             int(shares[occupation] > 50))
        for (occupation, _, answer), own in texts.items()
    ]  # fmt: skip


YARDSTICK = pairs.yardstick("winogender", read, "folder of the sentences")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
