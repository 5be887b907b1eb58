"""Does the text matter, at equal tokens? T5 on repeated, dirty and duplicated text.

  python -m scalelab.study run --config=configs/studies/t5_data.py:seeds=3 --workdir=DIR

| arm | training documents | passes at synthetic |
|---|---|--:|
| default | 20,000 | 0.46 |
| passes_4 | the first 2,300 | 4 |
| passes_16 | the first 575 | 16 |
| passes_64 | the first 143 | 66 |
| dirty | 20,000; every second one has its words in random order | 0.46 |
| cleaned | the 10,950 of `dirty` that C4's rules keep | 0.84 |
| copies | 20,000; every second one is a copy of one of the first 100 | 0.46 |
| deduplicated | the 10,050 different ones of `copies` | 0.92 |

Raffel et al. 2020, 3.4.1, 3.4.2 and tables 8 and 9, find that filtered text is better, and that
repeats lower the training loss and the scores. scalelab/worlds/cleaning.py has the rules. A line in
random order rarely ends in a period: C4's rules keep all 10,000 clean documents and 950 others. A
budget counts the tokens of sources and targets, and BERT's style has both, so a pass takes twice
the tokens of the text. All arms have the same validation text.
Objective, pairs, recipe and scores are those of t5_scaling.py, scales those of t5_objectives.py.
At nano the corpus has WikiText's layout, its first 17,000 articles take the place of the 20,000
documents, and all texts are written beside its folder.
"""

import lzma
import pathlib
import re

import ml_collections
import numpy as np

from scalelab.config import files
from scalelab.data.corpora.wikitext import is_heading
from scalelab.helpers.files import write_text
from scalelab.worlds import cleaning

PASSES = (4, 16, 64)
WHOLE = 0.46  # passes over the whole text at scale synthetic
COPIED = 100
RULES = {"cleaned": "dirty", "deduplicated": "copies"}  # arm -> the arm whose text it is made of
DOCUMENTS = {"synthetic": 20_000, "nano": 17_000}  # of the whole text
TITLE = re.compile(r"(?m)^(?= = [^=])")  # headings of sections have more signs
SENTENCE = re.compile(r"(?<= [.?!])(?=\s+\S)")  # the end of a sentence but the last


def change(documents: list[str], arm: str) -> list[str]:
    """Returns the training documents of an arm of the table above."""
    name, _, passes = arm.rpartition("_")
    if name == "passes":
        return documents[: max(1, int(WHOLE * len(documents) / int(passes)))]
    if arm == "whole":
        return documents
    if arm in RULES:
        return (cleaned if arm == "cleaned" else deduplicated)(change(documents, RULES[arm]))
    rng, first = np.random.default_rng(0), documents[:COPIED]
    for i in range(1, len(documents), 2):
        if arm == "copies":
            documents[i] = first[rng.integers(len(first))]
        else:
            lines = documents[i].split("\n")
            documents[i] = "\n".join(x if is_heading(x) else shuffled(x, rng) for x in lines)
    return documents


def shuffled(line: str, rng: np.random.Generator) -> str:
    """Returns a line with its words in random order."""
    return " ".join(["", *rng.permutation(line.split()), ""]) if line.strip() else line


def cleaned(documents: list[str]) -> list[str]:
    """Returns the documents, with their headings, that have a line which C4's rules keep."""
    found = []
    for document in documents:
        lines = document.split("\n")
        kept = {*cleaning.clean([x for x in lines if not is_heading(x)])}
        if kept:
            found.append("\n".join(x for x in lines if x in kept or is_heading(x) or not x.strip()))
    return found


def deduplicated(documents: list[str]) -> list[str]:
    """Returns the documents, with their titles, that have a sentence which is no repeat."""
    titles, texts = zip(*(document.split("\n", 1) for document in documents), strict=True)
    kept = cleaning.deduplicate([SENTENCE.split(text) for text in texts])
    return [f"{title}\n{''.join(text)}" for title, text in zip(titles, kept, strict=True) if text]


def rewritten(folder: pathlib.Path, arm: str, count: int) -> pathlib.Path:
    """Writes the text of an arm beside `folder`, once, from its first `count` documents.

    Files are written whole, the training text last: without it an interrupted copy begins again.
    """
    path = folder.with_name(f"{folder.name}-{arm}")
    folder, made = folder.expanduser(), path.expanduser()
    if not (made / "wiki.train.raw").exists():
        if not any((folder / f"wiki.train.raw{end}").exists() for end in ("", ".xz")):
            raise ValueError(f"{folder}: expected wiki.train.raw or wiki.train.raw.xz in it")
        made.mkdir(exist_ok=True)
        for split in ("valid", "test", "train"):
            file = folder / f"wiki.{split}.raw"
            if file.exists():
                text = file.read_text(encoding="utf-8")
            elif file.with_name(f"{file.name}.xz").exists():
                text = lzma.open(f"{file}.xz", "rt", encoding="utf-8").read()
            else:
                continue
            if split == "train":
                first, *documents = TITLE.split(text)
                text = first + "".join(change(documents[:count], arm))
            write_text(made / f"wiki.{split}.raw", text)
    return path


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    objectives = files.load(files.FOLDER / "studies/t5_objectives.py")
    config, shape = objectives.settings(arguments)
    if "tokens=" in arguments:
        raise ValueError("t5_data counts passes at one budget for each scale: leave tokens= out")
    config.name = "t5_data"
    config.title = "Repeated, dirty and duplicated text"
    config.question = "How much worse is pre-training on text that is repeated, dirty or copied?"
    config.fields += ("data.format=denoising", "format_options.style=bert_style")
    folder = pathlib.Path(config.pretrain.data.corpus.removeprefix("wikitext:"))
    if config.scale == "nano":
        text = rewritten(folder, "whole", DOCUMENTS["nano"])
        config.pretrain.data.corpus = f"wikitext:{text}"
    arms = (*(f"passes_{passes}" for passes in PASSES), "dirty", "copies", *RULES)
    for arm in arms:
        text = rewritten(folder, arm, DOCUMENTS[config.scale])
        config.variants[arm] = (f"data.corpus=wikitext:{text}",)
    config.stages.main = dict(
        systems=("t5",), shapes=(shape,), variants=("default", *arms), finetune="all"
    )
    config.stage_order = ("main",)
    lines = [f"default > {arm}" for arm in arms if arm not in RULES]
    lines += [f"{arm} > {before}" for arm, before in RULES.items()]
    config.hypotheses = tuple((line, config.primary) for line in lines)
    return config
