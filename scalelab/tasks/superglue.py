"""SuperGLUE: its seven tasks with classes, and their readers (Wang et al. 2019, arXiv:1905.00537).

--data holds BoolQ/, CB/, ..., each with the official train.jsonl and val.jsonl. Metrics are as in
the paper's table 1. Inputs are as in its BERT baseline (section 4.1), with one difference: the
baseline also reads the states of certain words; here the text marks these words (`* word *`, WSC's
pronoun `# it #`), as in T5 (Raffel et al. 2020, JMLR 21), so every head fits. COPA joins premise
and choice by "because" or "so" in place of a question.

--data may instead hold boolq, multirc or wsc as <task>.train.jsonl and <task>.valid.jsonl of the
BabyLM Challenge. Inputs are then the challenge's (evaluation_pipeline/finetune/dataset.py of
babylm/evaluation-pipeline-2025), except that MultiRC's paragraph comes first. Each answer of
MultiRC is a separate record, so `question_match` is the accuracy that the challenge reports.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.helpers.names import brief
from scalelab.tasks import data_files
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import JSON_LINES, Columns, digest
from scalelab.tasks.records import Labels, Records

JOINED_BY = {"cause": "because", "effect": "so"}
Row = Mapping[str, Any]
Made = tuple[tuple[str, ...], list[Any]]  # texts and labels of a record


def read(
    path: Path, split: str, labels: Sequence[str], *, convert: Callable[[Row], Iterable[Made]],
    several: bool = False,
) -> Records:  # fmt: skip
    """Reads a file of JSON lines.

    Args:
      path: the file.
      split: unused.
      labels: names of the classes.
      convert: row -> records, each texts and a label.
      several: whether several labels of one record become one text, joined by blanks.

    Raises:
      ValueError: the file cannot be read, or a row lacks a key or has a wrong value.
    """
    if path.match(JSON_LINES):
        convert = BABYLM.get(path.name.partition(".")[0], convert)
    rows: list[tuple[str, ...]] = []
    places: list[str] = []
    spelt: list[list[str]] = []
    for number, row in data_files.read_objects(path):
        with data_files.place(path, number, f"a row of {path.parent.name}"):
            for texts, own in convert(row):
                if not all(isinstance(text, str) for text in texts):
                    raise ValueError(f"expected texts, found {brief(texts)}")
                rows.append(texts)
                places.append(f"{path}, line {number}")
                spelt.append([x if isinstance(x, str) else json.dumps(x) for x in own])
    classes = Labels(tuple(labels))
    found = classes.array((where, x) for where, own in zip(places, spelt, strict=True) for x in own)
    if several:
        found = np.array([" ".join(own) for own in spelt])
    columns = tuple(map(list, zip(*rows, strict=True)))
    if not columns:
        raise ValueError(f"{path}: there are no rows of data")
    return Records(columns, found, str(path), digest(path))


def join_choices(row: Row) -> tuple[str, list[str]]:
    """Returns the beginning of COPA's sentence, and its two ends."""
    if "choice3" in row:
        raise ValueError("has more than two choices")
    if row["question"] not in JOINED_BY:
        raise ValueError(f"question {brief(row['question'])}: expected cause or effect")
    begun = f"{row['premise'].rstrip('.')} {JOINED_BY[row['question']]}"
    return begun, [_uncapitalize(row[name]) for name in ("choice1", "choice2")]


def _uncapitalize(text: str) -> str:
    return text if text.startswith(("I ", "I'")) else text[:1].lower() + text[1:]


def mark(text: str, begin: int, end: int, sign: str = "*") -> str:
    """Puts signs around a span of a text.

    Args:
      text: the text.
      begin: its first character in the span.
      end: the character after the span.
      sign: the sign.

    Raises:
      ValueError: the range is not inside the text.
    """
    if not 0 <= begin < end <= len(text):
        raise ValueError(f"the span from {begin} to {end} runs past {brief(text)}")
    return f"{text[:begin]}{sign} {text[begin:end]} {sign}{text[end:]}"


# --- Rows into records ---------------------------------------------------------------------------


def _pair(row: Row, first: str, second: str) -> Iterator[Made]:
    label = row["answer"] if "label" not in row and "answer" in row else row["label"]
    yield (row[first], row[second]), [label]  # BoolQ's own release has `answer`


def _copa(row: Row) -> Iterator[Made]:
    begun, ends = join_choices(row)
    yield (begun, *ends), [row["label"]]


def _multirc(row: Row) -> Iterator[Made]:
    for asked in row["passage"]["questions"]:
        if not asked["answers"]:
            raise ValueError(f"the question {brief(asked['question'])} has no answer")
        lines = [asked["question"], *(answer["text"] for answer in asked["answers"])]
        texts = "\n".join(" ".join(line.split()) for line in lines)
        yield (row["passage"]["text"], texts), [answer["label"] for answer in asked["answers"]]


def _wic(row: Row) -> Iterator[Made]:
    spans = ((row[f"sentence{k}"], row[f"start{k}"], row[f"end{k}"]) for k in "12")
    first, second = (mark(*span) for span in spans)
    yield (first, second), [row["label"]]


def _wsc(row: Row) -> Iterator[Made]:
    target, words = row["target"], row["text"].split()
    spans = [(target[f"span{k}_index"], target[f"span{k}_text"], "*#"[k - 1]) for k in (1, 2)]
    for place, named, sign in sorted(spans, reverse=True):
        stop = place + len(named.split())
        if not 0 <= place < stop <= len(words):
            raise ValueError(f"{named!r} at word {place} runs past the text")
        words[place:stop] = [sign, *words[place:stop], sign]
    yield (" ".join(words),), [row["label"]]


def _babylm_boolq(row: Row) -> Iterator[Made]:
    yield (row["question"], row["passage"]), [_truth(row)]


def _babylm_multirc(row: Row) -> Iterator[Made]:
    question, answer = (" ".join(row[name].split()) for name in ("question", "answer"))
    yield (row["paragraph"], f"Question: {question} Answer:\n{answer}"), [row["label"]]


def _babylm_wsc(row: Row) -> Iterator[Made]:
    pronoun, phrase = row["span2_text"], row["span1_text"]
    yield (f'Does "{pronoun}" refer to "{phrase}" in this passage?', row["text"]), [_truth(row)]


def _truth(row: Row) -> str:
    if row["label"] not in (0, 1):
        raise ValueError(f"label {brief(row['label'])}: expected 0 or 1")
    return _BOOL[row["label"]]


BABYLM = {"boolq": _babylm_boolq, "multirc": _babylm_multirc, "wsc": _babylm_wsc}
_BOOL, _NLI = ("false", "true"), ("premise", "hypothesis")


# --- The table -----------------------------------------------------------------------------------


def _task(
    title: str,
    sizes: tuple[int, int],
    labels: tuple[str, ...],
    columns: tuple[str, ...],
    convert: Callable[..., Iterable[Made]],
    about: str,
    metrics: tuple[str, ...] = ("accuracy",),
    kind: str = "classify",
) -> Task:
    """Makes a task; `sizes` are the numbers of rows of train and dev."""
    if convert is _pair:
        convert = functools.partial(_pair, first=columns[0], second=columns[1])
    return Task(
        name=f"superglue_{title.lower()}",
        title=f"SuperGLUE {title}",
        about=about,
        relation="single" if len(columns) == 1 else "entailment",
        metrics=metrics,
        labels=labels,
        columns=Columns(columns),
        train=TaskSplit("train", (f"{title}/train.jsonl",), sizes[0]),
        dev_splits=(TaskSplit("dev", (f"{title}/val.jsonl",), sizes[1]),),
        kind=kind,
        read=functools.partial(read, convert=convert, several=kind == "answers"),
    )


SUPERGLUE = (
    _task("BoolQ", (9427, 3270), _BOOL, ("passage", "question"), _pair,
          "BoolQ: a yes or no question on a passage (Clark et al. 2019, NAACL; in SuperGLUE)."),
    _task("CB", (250, 56), ("entailment", "contradiction", "neutral"), _NLI, _pair,
          "CB, CommitmentBank: entailment of an embedded clause (de Marneffe et al. 2019; in"
          " SuperGLUE).", ("accuracy", "macro_f1")),
    _task("COPA", (400, 100), ("0", "1"), ("premise", "choice1", "choice2"), _copa,
          "COPA: the more plausible cause or effect (Roemmele et al. 2011; in SuperGLUE),"
          " fine-tuned.", kind="choices"),
    _task("MultiRC", (5131, 953), ("0", "1"), ("passage", "question"), _multirc,
          "MultiRC: which answers to a question are right (Khashabi et al. 2018, NAACL; in"
          " SuperGLUE).", ("f1a", "question_match"), kind="answers"),
    _task("RTE", (2490, 277), ("entailment", "not_entailment"), _NLI, _pair,
          "RTE: does a text entail a hypothesis, in the files of SuperGLUE (Wang et al. 2019)."),
    _task("WiC", (5428, 638), _BOOL, ("sentence1", "sentence2"), _wic,
          "WiC: has a word one sense in two sentences (Pilehvar and Camacho-Collados 2019, NAACL;"
          " in SuperGLUE)."),
    _task("WSC", (554, 104), _BOOL, ("text",), _wsc,
          "WSC: does a pronoun stand for a phrase (Levesque et al. 2012; in SuperGLUE),"
          " fine-tuned."),
)  # fmt: skip
