"""Sentences with a tag for each word: files, records, and the table of these tasks.

A record's text has the words of a sentence, and its label the words' tags, joined by blanks.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from scalelab.helpers.names import brief
from scalelab.tasks import data_files, treebank
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records

Sentence = tuple[Sequence[str], Sequence[str]]  # words, tags
UPOS = (  # the first is the answer for a word that was cut off
    "X", "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN",
    "PUNCT", "SCONJ", "SYM", "VERB",
)  # fmt: skip


def read_columns(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads lines of word, tab, tag; an empty line ends a sentence.

    Raises:
      ValueError: the file cannot be read, or has a malformed line or a tag outside `labels`.
    """
    found: list[tuple[list[str], list[str]]] = [([], [])]
    for number, fields in data_files.read_fields(path):
        if len(fields) == 2 and fields[0].strip():
            for column, field in zip(found[-1], fields, strict=True):
                column.append(field)
        elif fields[1:] or fields[0].strip():
            raise ValueError(
                f"{path}, line {number}: expected a word, a tab and a tag, found {brief(fields)}"
            )
        elif found[-1][0]:
            found.append(([], []))
    return make_records(path, [sentence for sentence in found if sentence[0]], labels)


def read_upos(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads a CoNLL-U file; raises ValueError if it is malformed or has another tag."""
    return make_records(path, ((s.words, s.upos) for s in treebank.read_file(path)), labels)


def make_records(path: Path, sentences: Iterable[Sentence], labels: Sequence[str]) -> Records:
    """Makes records of the sentences of a file.

    Raises:
      ValueError: there is no sentence, or a tag is not in `labels`.
    """
    texts, tags, known = [], [], set(labels)
    for number, (words, own) in enumerate(sentences, 1):
        if unknown := [tag for tag in own if tag not in known]:
            raise ValueError(
                f"{path}, sentence {number}: the tag {brief(unknown[0])} is not one of this task's:"
                f" {', '.join(labels)}"
            )
        # A blank inside a word must not look like one between words.
        texts.append(" ".join(word.replace(" ", "\N{NO-BREAK SPACE}") for word in words))
        tags.append(" ".join(own))
    if not texts:
        raise ValueError(f"{path}: there are no sentences")
    digest = hashlib.sha256("\n".join([*texts, *tags]).encode()).hexdigest()
    return Records((texts,), np.array(tags), str(path), digest)


def _upos_split(name: str, count: int) -> TaskSplit:
    path = f"ud-english-ewt/en_ewt-ud-{name}.conllu"
    return TaskSplit(name, (path, f"{path}.xz"), count)


TAGGING = (
    Task(
        name="ner", title="NER", relation="single", kind="tags", read=read_columns,
        metrics=("entity_f1", "word_accuracy"), columns=Columns(("words",)),
        labels=("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"),
        train=TaskSplit("train", ("panx/train-en.tsv",), 20000),
        dev_splits=(TaskSplit("dev", ("panx/dev-en.tsv",), 10000),
                    TaskSplit("test", ("panx/test-en.tsv",), 10000)), about="""\
Named entities: English PAN-X (Pan et al. 2017, ACL; splits of Rahimi et al. 2019, ACL).

The tags, IOB2, were made from links in Wikipedia, not by annotators. The main score is F1 of whole
entities, as conlleval computes it, on the official dev and test sets.
""",
    ),
    Task(
        name="pos", title="POS", relation="single", kind="tags", read=read_upos,
        metrics=("word_accuracy",), columns=Columns(("words",)), labels=UPOS,
        train=_upos_split("train", 12544),
        dev_splits=(_upos_split("dev", 2001), _upos_split("test", 2077)), about="""\
Part-of-speech tagging: UPOS of UD English EWT (Silveira et al. 2014, LREC).

Words are syntactic words. Scores are the accuracy over words, on the official dev and test sets.
""",
    ),
)  # fmt: skip
