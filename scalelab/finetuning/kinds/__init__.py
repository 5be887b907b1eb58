"""Kinds of head for labelled tasks: one module each, found by the name in `Task.kind`.

A module exports:

  HEAD: "double" or "single": the head's layers where the config leaves them open; or "words"
  NUM_OUTPUTS: outputs of the head; None: one a label of the task, or one for a score
  num_rows(task, both_orders) -> rows of tokens of one example; absent: 1
  vectors(hidden [B R, T, F], batch, reads, R) -> [B, ..., F], which the head maps to scores
  loss(scores [B, ..., C], batch) -> (sum, weight)
  encode(task, records, reading, both_orders) -> TaskExamples
  decode(task, records, examples, outputs [n, ..., C], reading) -> Decoded, one a record
  chance_loss(train) -> the loss of the best constant prediction; absent: not known
  make_net(body, task, reading, config) -> the model, whose `predict` makes the outputs; absent: a
    Classifier
  PER_TOKEN: whether every token of the text is scored; absent: no
"""

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np

from scalelab.helpers.names import load_module

WORDS = "words"  # the kind that generates label words; and config.head.kind of GENERATED
GENERATED = (WORDS, "answer_words", "texts")  # kinds whose answers the model writes


class Decoded(NamedTuple):
    """The answers of a model."""

    answers: np.ndarray  # [n] classes, scores or texts, as in predictions.tsv
    outputs: np.ndarray | None = None  # [n, C] before the softmax, where answers are classes
    num_invalid: int | None = None  # generated texts that are no label's; None: none are generated


def load(name: str) -> ModuleType:
    """Returns the module of a kind; raises ValueError if there is none."""
    return load_module("finetuning.kinds", name)


def num_outputs(name: str, labels: Sequence[str] | None) -> int:
    """Returns the outputs of a head of some kind, given the task's labels; None: a score."""
    return load(name).NUM_OUTPUTS or len(labels or "1")
