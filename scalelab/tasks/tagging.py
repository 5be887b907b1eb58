"""Sentences with a tag for each word: files and records.

A record's text has the words of a sentence, and its label the words' tags, joined by blanks.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from scalelab.helpers.names import brief
from scalelab.tasks import files
from scalelab.tasks.records import Records

Sentence = tuple[Sequence[str], Sequence[str]]  # words, tags


def read_columns(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads lines of word, tab, tag; an empty line ends a sentence.

    Raises:
      ValueError: the file cannot be read, or has another line or a tag that is not in `labels`.
    """
    del split
    found: list[tuple[list[str], list[str]]] = [([], [])]
    for number, line in enumerate(files.read_text(path)[1].split("\n"), 1):
        fields = line.removesuffix("\r").split("\t")
        if len(fields) == 2 and fields[0].strip():
            for column, field in zip(found[-1], fields, strict=True):
                column.append(field)
        elif line.strip():
            raise ValueError(
                f"{path}, line {number}: expected a word, a tab and a tag, found {brief(line)}"
            )
        elif found[-1][0]:
            found.append(([], []))
    return make_records(path, [sentence for sentence in found if sentence[0]], labels)


def make_records(path: Path, sentences: Iterable[Sentence], labels: Sequence[str]) -> Records:
    """Makes records of the sentences of a file.

    Raises:
      ValueError: there are none, or a tag is not in `labels`.
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
