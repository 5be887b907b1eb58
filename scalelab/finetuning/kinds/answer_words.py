"""Answers to a question, each judged by a generated word, true or false: `answers` as `words`.

The prompt of an answer is `multirc passage: TEXT question: TEXT answer: TEXT`; the scores are those
of the answers of a question together (MultiRC in Raffel et al. 2020, T5, D).
"""

import dataclasses

import numpy as np

from scalelab.finetuning.kinds import Decoded, answers, words
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task, column_names

HEAD, NUM_OUTPUTS = words.HEAD, None
make_net, loss, chance_loss = words.make_net, words.loss, words.chance_loss


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes the rows of prompts of all answers; `facts` as of `answers.encode`."""
    each, owners = answers.split(task, records)
    named = dataclasses.replace(task, columns=Columns((*column_names(task), "answer")))
    made = words.encode(named, each, reading, both_orders)
    return dataclasses.replace(made, facts={"owners": owners})


def decode(
    task: Task, records: Records, made: TaskExamples, outputs: np.ndarray, reading: Reading
) -> Decoded:
    """Returns the classes of each question's answers as `answers`, and invalid texts."""
    classes, _, invalid = words.decode(task, records, made, outputs, reading)
    return Decoded(answers.join(task, classes, made), None, invalid)
