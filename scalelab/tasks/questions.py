"""Questions that a span of a text or one of several choices answers: files and table.

With spans a record's texts are question and context. Its label is a JSON list of the accepted
answers, each [text, first character]. The character is -1 if the text is not there in the context.
With choices a record's texts are a beginning and each choice.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.helpers.names import brief
from scalelab.tasks import data_files, files
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Labels, Records

EVERY = 5  # every fifth article is dev, if there is no official dev set
SQUAD_TRAIN = ("train-v1.1.json", "train-v1.1.json.xz")
ENDINGS = ("ending0", "ending1", "ending2", "ending3")
NUM_QUESTIONS, MCTEST_SETS = 4, ("mc160", "mc500")


def read_spans(
    path: Path, split: str, labels: Sequence[str], *, carved: bool | None = None
) -> Records:
    """Reads a file in the layout of SQuAD v1.1.

    An article is known by its title, a paragraph without a title by its context.

    Args:
      path: the file.
      split: "train", or a dev or test split.
      labels: unused.
      carved: True: the split "dev" is every fifth article of the file, other splits are the rest;
        None: True if SQuAD's train file is absent.

    Raises:
      ValueError: the file cannot be read, has another layout, or has a question without an answer;
        or no question of a train set has its answer in the context.
    """
    if carved is None:
        carved = not any((path.parent / name).exists() for name in SQUAD_TRAIN)
    content = data_files.read_json(path)
    with data_files.place(path, expected="the layout of SQuAD v1.1"):
        rows = list(_questions(content["data"]))
    places = {article: i for i, article in enumerate(dict.fromkeys(row[0] for row in rows))}
    if carved:
        is_dev = split == "dev"
        rows = [row for row in rows if (places[row[0]] % EVERY == EVERY - 1) == is_dev]
    if not rows:
        raise ValueError(f"{path}: there are no questions for {split}")
    spelt, num_absent = [], 0
    for _, name, question, context, answers in rows:
        if not answers or not all(text.strip() for text, _ in answers):
            raise ValueError(f"{path}: the question {name} ({brief(question)}) has no answer")
        placed = [
            (text, start if context[start : start + len(text)] == text and start >= 0 else -1)
            for text, start in answers
        ]
        num_absent += placed[0][1] < 0
        spelt.append(json.dumps(placed))
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
    digest = files.digest(path, split)
    return Records(texts, np.array(spelt), str(path), digest, remarks=tuple(remarks))


def _questions(data: Any) -> Iterator[tuple[str, str, str, str, list[tuple[str, int]]]]:
    """Yields article, id, question, context and answers."""
    for article in data:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            for asked in paragraph["qas"]:
                answers = [(str(a["text"]), int(a["answer_start"])) for a in asked["answers"]]
                title = article.get("title") or context
                yield str(title), str(asked["id"]), str(asked["question"]), str(context), answers


def read_swag(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads a CSV file; raises ValueError if it has other columns, choices or labels."""
    made, spelt = [], []
    needed = ("sent1", "sent2", *ENDINGS, "label")
    for number, row in data_files.read_table(path, needed, ",", quoted=True):
        if "ending4" in row:
            raise ValueError(f"{path}: expected {len(ENDINGS)} endings, found the column ending4")
        made.append((row["sent1"], *(f"{row['sent2']} {row[name]}" for name in ENDINGS)))
        spelt.append((f"{path}, line {number}", row["label"]))
    columns = tuple(map(list, zip(*made, strict=True)))
    answers = Labels(tuple(labels)).array(spelt)
    return Records(columns, answers, str(path), files.digest(path))


def read_mctest(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads stories and their answers; the training split has the stories of both sets.

    Raises:
      ValueError: a file cannot be read, or a line has other fields or another answer.
    """
    paths = (
        [path.with_name(f"{name}.{split}.tsv") for name in MCTEST_SETS]
        if split == "train"
        else [path]
    )
    rows: list[tuple[str, ...]] = []
    answers: list[int] = []
    state = hashlib.sha256()
    for file in paths:
        own = [file, file.with_suffix(".ans")]
        for name in own:
            state.update(data_files.read_bytes(name))
        lines = [list(data_files.read_lines(name)) for name in own]
        if len(lines[0]) != len(lines[1]):
            raise ValueError(f"{own[1]}: expected {len(lines[0])} lines, found {len(lines[1])}")
        for number, pair in enumerate(zip(*lines, strict=True), 1):
            fields = pair[0].split("\t")[2:]
            chosen = pair[1].split()
            size = 1 + NUM_QUESTIONS * (1 + len(labels))
            if (len(fields), len(chosen)) != (size, NUM_QUESTIONS) or {*chosen} - {*labels}:
                raise ValueError(
                    f"{file}, line {number}: expected a story, {NUM_QUESTIONS} questions with"
                    f" {len(labels)} choices each, and as many answers in {own[1].name}"
                )
            story = fields.pop(0).replace("\\newline", "\n").replace("\\tab", "\t")
            for place, letter in enumerate(chosen):
                question, *choices = fields[place * 5 : place * 5 + 5]
                asked = question.partition(": ")[2]
                rows.append((story, *(f"{asked} {choice}" for choice in choices)))
                answers.append(labels.index(letter))
    columns = tuple(map(list, zip(*rows, strict=True)))
    return Records(columns, np.array(answers, np.int32), str(path), state.hexdigest())


def _spans(
    name: str, title: str, train: TaskSplit, dev: TaskSplit, carved: bool | None, about: str
) -> Task:
    return Task(
        name=name, title=title, about=about, relation="entailment", kind="spans",
        metrics=("answer_f1", "exact_match"), columns=Columns(("question", "context")),
        read=functools.partial(read_spans, carved=carved), train=train, dev_splits=(dev,),
    )  # fmt: skip


SQUAD_DEV, TYDIQA = "squad/dev-v1.1.json", ("tydiqa/tydiqa.goldp.en.train.json",)
QUESTIONS = (
    _spans(
        "squad", "SQuAD",
        TaskSplit("train", (*(f"squad/{name}" for name in SQUAD_TRAIN), SQUAD_DEV), 87599),
        TaskSplit("dev", (SQUAD_DEV,), 10570), None, """\
SQuAD v1.1: questions on Wikipedia whose answer is a span (Rajpurkar et al. 2016, EMNLP).

Scores are exact match and F1 of evaluate-v1.1.py. Where DATA/squad has no train-v1.1.json, the
published dev set is split by article, and tables say so: 80% train, 20% dev. `max_train_examples`
counts windows of contexts.
""",
    ),
    _spans("tydiqa", "TyDiQA", TaskSplit("train", TYDIQA), TaskSplit("dev", TYDIQA), True, """\
TyDiQA-GoldP, English: an answer in a given paragraph (Clark et al. 2020, TACL).

XTREME's files: its dev set has no answers, so that dev is every fifth context of the train set, and
tables say so. Scores are those of SQuAD. `max_train_examples` counts windows of contexts.
"""),
    Task(
        name="swag", title="SWAG", relation="entailment", kind="choices", read=read_swag,
        metrics=("accuracy",), labels=("0", "1", "2", "3"), columns=Columns(("sent1", *ENDINGS)),
        train=TaskSplit("train", ("swag/train.csv",), 73546),
        dev_splits=(TaskSplit("dev", ("swag/val.csv",), 20006),), about="""\
SWAG: which of four endings goes on from a sentence (Zellers et al. 2018, EMNLP).

The first text is `sent1`, the choices are `sent2` with each ending (Devlin et al. 2019, 4.4).
""",
    ),
    Task(
        name="mctest", title="MCTest", relation="entailment", kind="choices", read=read_mctest,
        metrics=("accuracy",), labels=tuple("ABCD"), columns=Columns(("story", *"ABCD")),
        train=TaskSplit("train", ("mctest/mc160.train.tsv",), 1480),
        dev_splits=tuple(
            TaskSplit(name, (f"mctest/{part}.tsv",), count)
            for name, part, count in (
                ("dev", "mc500.dev", 200), ("test", "mc500.test", 600),
                ("mc160_dev", "mc160.dev", 120), ("mc160_test", "mc160.test", 240),
            )
        ), about="""\
MCTest: four choices for a question on a child's story (Richardson et al. 2013, EMNLP).

The published sets MC160 and MC500, each with its dev and test set; training uses the train sets of
both. The second text of a pair is question and choice, so that a long story loses its end alone.
""",
    ),
)  # fmt: skip
