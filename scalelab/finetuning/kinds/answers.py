"""Right or wrong of each answer to a question (MultiRC: Khashabi et al. 2018, NAACL).

A record's texts are a passage, and a question with its answers, a line each; its label is a class
for each answer, joined by blanks. Each answer is an example: the passage with question and answer.
"""

import dataclasses

import numpy as np

from scalelab.finetuning.kinds import Decoded, classify
from scalelab.tasks import examples
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task

HEAD = "double"
NUM_OUTPUTS = None
vectors, loss, chance_loss = classify.vectors, classify.loss, classify.chance_loss


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes the token rows of all answers; `facts` has the record of each, `owners`."""
    each, owners = split(task, records)
    passages, *pairs = each.texts
    second = [f"{question} {answer}" for question, answer in zip(*pairs, strict=True)]
    made = examples.encode([passages, second], each.labels, reading, both_orders=False)
    return dataclasses.replace(made, facts={"owners": owners})


def split(task: Task, records: Records) -> tuple[Records, np.ndarray]:
    """Returns the passage, question and class of each of n answers, and its record [n]."""
    asked = [text.split("\n") for text in records.texts[1]]
    owners = np.repeat(np.arange(len(asked)), [len(lines) - 1 for lines in asked])
    passages = [records.texts[0][owner] for owner in owners]
    pairs = [(question, answer) for question, *answers in asked for answer in answers]
    labels, classes = None, task.labels or ()
    if records.labels is not None:
        spelt = [label for own in records.labels for label in own.split()]
        labels = np.array([classes.index(label) for label in spelt], np.int32)
    texts = (passages, *map(list, zip(*pairs, strict=True)))
    return dataclasses.replace(records, texts=texts, labels=labels), owners


def decode(
    task: Task, records: Records, made: TaskExamples, outputs: np.ndarray, reading: Reading
) -> Decoded:
    """Returns the best classes of each question's answers, joined by blanks; outputs [n, C]."""
    return Decoded(join(task, outputs.argmax(axis=-1), made))


def join(task: Task, classes: np.ndarray, made: TaskExamples) -> np.ndarray:
    """Joins the labels of each question's answers by blanks.

    Args:
      task: the task, with labels.
      classes: [n] int, of all answers.
      made: the examples, with `owners`.
    """
    own = np.array(task.labels)[classes]
    parts = np.split(own, np.flatnonzero(np.diff(made.facts["owners"])) + 1)
    return np.array([" ".join(part) for part in parts])
