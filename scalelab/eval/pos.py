"""Part-of-speech tagging: UPOS of UD English EWT (Silveira et al. 2014, LREC).

Words are syntactic words. Scores are the accuracy over words, on the official dev and test sets.
"""

from collections.abc import Sequence
from pathlib import Path

from scalelab.eval.probes import treebank
from scalelab.tasks import tagging
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records
from scalelab.tasks.task import Split, Task

TAGS = (  # a word that the net does not see is answered with the first
    "X", "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN",
    "PUNCT", "SCONJ", "SYM", "VERB",
)  # fmt: skip


def read(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads a CoNLL-U file; raises ValueError if it is malformed or has another tag."""
    del split
    sentences = treebank.read_file(path)
    return tagging.make_records(path, ((s.words, s.upos) for s in sentences), labels)


def _split(name: str, count: int) -> Split:
    path = f"ud-english-ewt/en_ewt-ud-{name}.conllu"
    return Split(name, (path, f"{path}.xz"), count)


TASK = Task(
    name="pos",
    title="POS",
    relation="single",
    metrics=("word_accuracy",),
    labels=TAGS,
    columns=Columns(("words",)),
    train=_split("train", 12544),
    dev_splits=(_split("dev", 2001), _split("test", 2077)),
    kind="tags",
    read=read,
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
