"""Sentence reordering: in which of 3! orders are three parts of a text?

Sun et al. 2020, "ERNIE 2.0", 4.2.2, which cuts texts into one to m parts; here m = 3 always.
"""

from scalelab.formats.sentence_tasks import ORDERS
from scalelab.objectives import Baseline, Setting, sentence_distance

NEEDS = ("order",)
HEADS, SEES = sentence_distance.HEADS, sentence_distance.SEES
BASELINE = Baseline("accuracy", 1 / len(ORDERS), 0.05)


def make(setting: Setting, options: None = None) -> sentence_distance.TextLabel:
    """Makes the objective: one class for each of `ORDERS`."""
    del setting, options
    return sentence_distance.TextLabel("sentence_reorder", "order", len(ORDERS))
