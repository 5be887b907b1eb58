"""Sentence reordering: in which of 3! orders are three parts of a text?

Sun et al. 2020, "ERNIE 2.0", 4.2.2, which cuts texts into one to m parts; here m = 3 always.
"""

import dataclasses
from typing import ClassVar

from scalelab.formats.sentence_tasks import ORDERS
from scalelab.objectives import Baseline, Setting, sentence_distance

NEEDS = ("order",)
HEADS, SEES = sentence_distance.HEADS, sentence_distance.SEES
BASELINE = Baseline("accuracy", 1 / len(ORDERS), 0.05)


@dataclasses.dataclass(frozen=True)
class SentenceReorder(sentence_distance.SentenceDistance):
    """One class for each of `ORDERS`."""

    name: ClassVar[str] = "sentence_reorder"
    label: ClassVar[str] = "order"
    num_classes: ClassVar[int] = len(ORDERS)


def make(setting: Setting, options: None = None) -> SentenceReorder:
    """Makes the objective."""
    del setting, options
    return SentenceReorder()
