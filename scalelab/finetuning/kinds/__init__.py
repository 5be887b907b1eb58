"""Kinds of head for labelled tasks: one module each, found by the name in `Task.kind`.

A module exports:

  HEAD: "double" or "single": the head's layers where the config leaves them open
  HAS_OWN_OUTPUTS: whether the outputs are not the task's labels
  num_outputs(labels) -> outputs of the head, given the task's labels
  num_rows(task, both_orders) -> rows of tokens of one example
  vectors(hidden [B R, T, F], batch, reads, R) -> [B, ..., F], which the head maps to scores
  make_loss(task) -> function of (scores [B, ..., C], batch) -> (sum, weight)
  encode(task, records, reading, both_orders) -> TaskExamples
  decode(task, records, examples, outputs [n, ..., C]) -> Decoded, an answer for each record
  chance_loss(train) -> the loss of the best constant prediction; None: not known
"""

from types import ModuleType
from typing import NamedTuple

import numpy as np

from scalelab.helpers.names import load_module


class Decoded(NamedTuple):
    """The answers of a net."""

    answers: np.ndarray  # [n] classes, scores or texts, as in predictions.tsv
    outputs: np.ndarray | None = None  # [n, C] before the softmax, where answers are classes


def load(name: str) -> ModuleType:
    """Returns the module of a kind; raises ValueError if there is none."""
    return load_module("finetuning.kinds", name)
