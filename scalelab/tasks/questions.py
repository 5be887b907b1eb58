"""Questions with a span of a text as answer: files in SQuAD's layout.

A record's texts are question and context. Its label is a JSON list of the accepted answers, each
[text, first character]; the character is -1 where the context does not have the text there.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.helpers.names import brief
from scalelab.tasks import files
from scalelab.tasks.records import Records

EVERY = 5  # of so many articles one goes to a dev set that is carved


def read(path: Path, split: str, *, carved: bool) -> Records:
    """Reads a file in the layout of SQuAD v1.1.

    With `carved` the split "dev" is every fifth article of the file, and others are the rest.
    Articles have a title; paragraphs without one are articles by their context.

    Raises:
      ValueError: the file cannot be read, has another layout, or has a question without an answer;
        or no question of a train set has its answer in the context.
    """
    content, text = files.read_text(path)
    try:
        rows = list(_questions(json.loads(text)["data"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected the layout of SQuAD v1.1 ({error!r})") from None
    places = {article: i for i, article in enumerate(dict.fromkeys(row[0] for row in rows))}
    if carved:
        is_dev = split == "dev"
        rows = [row for row in rows if (places[row[0]] % EVERY == EVERY - 1) == is_dev]
    if not rows:
        raise ValueError(f"{path}: there are no questions for {split}")
    labels, num_absent = [], 0
    for _, name, question, context, answers in rows:
        if not answers or not all(text for text, _ in answers):
            raise ValueError(f"{path}: the question {name} ({brief(question)}) has no answer")
        placed = [
            (text, start if context[start : start + len(text)] == text and start >= 0 else -1)
            for text, start in answers
        ]
        num_absent += placed[0][1] < 0
        labels.append(json.dumps(placed))
    if split != "dev" and num_absent == len(rows):
        raise ValueError(f"{path}: no question has its answer at its place in the context")
    texts = [row[2] for row in rows], [row[3] for row in rows]
    remarks = []
    if carved:
        part = "every fifth article" if split == "dev" else "four of five articles"
        remarks.append(f"{split} is {part} of {path.name}, NOT an official set")
    if num_absent:
        remarks.append(
            f"{num_absent:,} of {len(rows):,} questions of {split} whose answer is not at its place"
            " in the context; training leaves them out"
        )
    digest = hashlib.sha256(content + split.encode()).hexdigest()
    return Records(texts, np.array(labels), str(path), digest, remarks=tuple(remarks))


def _questions(data: Any) -> Iterator[tuple[str, str, str, str, list[tuple[str, int]]]]:
    """Yields article, id, question, context and answers."""
    for article in data:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            for asked in paragraph["qas"]:
                answers = [(str(a["text"]), int(a["answer_start"])) for a in asked["answers"]]
                title = article.get("title") or context
                yield title, str(asked["id"]), str(asked["question"]), str(context), answers
