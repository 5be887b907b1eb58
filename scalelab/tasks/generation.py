"""Tasks whose answer is a text that the model writes: files and table.

A record's label is a JSON list of the accepted answers, each [text, -1], as in `tasks.questions`.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from scalelab.helpers.names import brief
from scalelab.tasks import data_files, files
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records

Read = Callable[[Path, str, Sequence[str]], Records]


def _texts(value: object) -> list[str]:
    """Returns one text, or a list of texts, as a list; raises TypeError for another value."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in found):
        raise TypeError(f"neither a text nor a list of texts: {brief(value)}")
    return found


def _records(rows: Iterable[tuple[str, Sequence[str]]], path: Path, digest: str) -> Records:
    """Makes records of (text, accepted answers); raises ValueError for an answer that is empty."""
    texts, labels = [], []
    for number, (text, answers) in enumerate(rows, 1):
        if not text.strip() or not answers or not all(answer.strip() for answer in answers):
            raise ValueError(
                f"{path}: row {number} has an empty text or answer: {brief([text, *answers])}"
            )
        texts.append(text)
        labels.append(json.dumps([[answer, -1] for answer in answers]))
    if not texts:
        raise ValueError(f"{path}: there are no rows of data")
    return Records((texts,), np.array(labels), str(path), digest)


def read_parallel(path: Path, split: str, labels: Sequence[str], *, to: str) -> Records:
    """Reads a file of sentences, one a line, and its translation of the same name but for `to`.

    Args:
      path: file of the sentences; its name has ".en".
      split: unused.
      labels: unused.
      to: ending of the translation in place of "en".

    Raises:
      ValueError: the translation is missing, or has another number of lines.
    """
    other = path.with_name(path.name.replace(".en", f".{to}"))
    ours, theirs = (list(data_files.read_lines(own)) for own in (path, other))
    if len(ours) != len(theirs):
        raise ValueError(f"{path} has {len(ours):,} lines, and {other} has {len(theirs):,}")
    state = hashlib.sha256((files.digest(path) + files.digest(other)).encode())
    pairs = ((x.strip(), (y.strip(),)) for x, y in zip(ours, theirs, strict=True))
    return _records(pairs, path, state.hexdigest())


def read_dialogsum(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads dialogues with one summary, or three as in the test set."""
    rows = []
    for number, row in data_files.read_objects(path, ("dialogue",)):
        own = [row[name] for name in row if name.rstrip("123") == "summary"]
        if not own or not all(isinstance(text, str) for text in own):
            raise ValueError(f"{path}, line {number}: has no 'summary'")
        rows.append((row["dialogue"].replace("\n", " "), own))
    return _records(rows, path, files.digest(path))


def read_pairs(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads texts, or lists of their sentences, with one or more answers."""
    rows = []
    for number, row in data_files.read_objects(path, others=("source", "target")):
        with data_files.place(path, number):
            rows.append((" ".join(_texts(row["source"])), _texts(row["target"])))
    return _records(rows, path, files.digest(path))


def read_e2e(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads attribute lists with their texts; outside training a list and all its texts are one."""
    rows = [own for _, own in data_files.read_table(path, ("mr", "ref"), ",", quoted=True)]
    pairs = [(own["mr"], (own["ref"],)) for own in rows]
    if split != "train":
        texts: dict[str, list[str]] = {}
        for own in rows:
            texts.setdefault(own["mr"], []).append(own["ref"])
        pairs = [*texts.items()]
    return _records(pairs, path, files.digest(path, split))


def read_webquestions(path: Path, split: str, labels: Sequence[str]) -> Records:
    """Reads questions with their accepted answers."""
    with data_files.place(path, expected="a list of questions"):
        rows = [(str(q["qText"]), _texts(q["answers"])) for q in data_files.read_json(path)]
    return _records(rows, path, files.digest(path))


def _task(
    name: str, title: str, about: str, read: Read, prompt: str, folder: str,
    splits: dict[str, tuple[str, int | None]], metrics: tuple[str, ...], answer_len: int,
) -> Task:  # fmt: skip
    """Makes a row; `splits` is name -> file or "file|another", and published rows; train first."""
    made = [
        TaskSplit(split, tuple(f"{folder}/{own}" for own in names.split("|")), count)
        for split, (names, count) in splits.items()
    ]
    return Task(
        name=name, title=title, about=about, relation="single", kind="texts", read=read,
        metrics=metrics, columns=Columns(("text",)), train=made[0], dev_splits=tuple(made[1:]),
        prompt=prompt, answer_len=answer_len,
    )  # fmt: skip


ROUGE = ("rouge2", "rouge1", "rouge_l")


MULTI30K = tuple(
    _task(
        f"multi30k_{to}", f"Multi30k en-{to}",
        f"Multi30k: image captions from English to {language} (Elliott et al. 2016, VL).",
        functools.partial(read_parallel, to=to), f"translate English to {language}:",
        "multi30k/task1/raw",
        {
            "train": ("train.en.gz", 29000), "dev": ("val.en.gz", 1014),
            "test_2016": ("test_2016_flickr.en.gz", 1000),
            "test_2017": ("test_2017_flickr.en.gz", 1000),
        },
        ("bleu",), 64,
    )
    for to, language in (("de", "German"), ("fr", "French"))
)  # fmt: skip

GENERATION = (
    *MULTI30K,
    _task(
        "dialogsum", "DialogSum", "DialogSum: dialogues (Chen et al. 2021, Findings of ACL).",
        read_dialogsum, "summarize:", "dialogsum",
        {
            "train": ("dialogsum.train.jsonl|dialogsum.train.jsonl.xz", 12460),
            "dev": ("dialogsum.dev.jsonl", 500), "test": ("dialogsum.test.jsonl", 500),
        },
        ROUGE, 96,
    ),
    _task(
        "scitldr", "SciTLDR",
        "SciTLDR: one-sentence summaries of abstracts (Cachola et al. 2020, Findings of EMNLP).",
        read_pairs, "summarize:", "scitldr/SciTLDR-A",
        {"train": ("train.jsonl", 1992), "dev": ("dev.jsonl", 619), "test": ("test.jsonl", 618)},
        ROUGE, 64,
    ),
    _task(
        "e2e", "E2E", "E2E: attributes of a restaurant as text (Novikova et al. 2017, SIGDIAL).",
        read_e2e, "describe:", "e2e",
        {
            "train": ("trainset.csv|trainset.csv.xz", 42061), "dev": ("devset.csv", 547),
            "test": ("testset_w_refs.csv", 630),
        },
        ("bleu", "rouge_l"), 80,
    ),
    _task(
        "cipher", "Cipher", "Cipher: into a second synthetic language (python -m scalelab.worlds).",
        read_pairs, "translate:", "cipher",
        {"train": ("train.jsonl", None), "dev": ("dev.jsonl", None), "test": ("test.jsonl", None)},
        ("bleu", "exact_match"), 64,
    ),
    _task(
        "summary", "Summary",
        "Summary: what is good or bad in a synthetic passage (python -m scalelab.worlds).",
        read_pairs, "summarize:", "summary",
        {"train": ("train.jsonl", None), "dev": ("dev.jsonl", None), "test": ("test.jsonl", None)},
        (*ROUGE, "exact_match"), 64,
    ),
    *(
        _task(
            name, name.capitalize(), f"{name.capitalize()}: {about} (python -m scalelab.worlds).",
            read_pairs, f"{name}:", name,
            {own: (f"{own}.jsonl", None) for own in ("train", "dev", "test")},
            ("exact_match", "bleu"), 64,
        )
        for name, about in (
            ("recall", "the value of each key in a list of pairs, synthetic"),
            ("copy", "synthetic texts to repeat"),
            ("reverse", "synthetic texts to repeat from their end"),
        )
    ),
    _task(
        "webquestions", "WebQuestions",
        "WebQuestions: questions without a text to read (Berant et al. 2013, EMNLP).",
        read_webquestions, "question:", "webquestions",
        {"train": ("trainmodel.json", 2834), "dev": ("val.json", 755), "test": ("test.json", 2032)},
        ("exact_match", "answer_f1"), 24,
    ),
)  # fmt: skip
