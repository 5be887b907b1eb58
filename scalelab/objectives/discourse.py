"""Discourse relation: which marker, such as "However", was between two texts?

Sun et al. 2020, "ERNIE 2.0", 4.2.3; `formats.marks` finds the markers.
"""

from scalelab.formats.marks import MARKERS
from scalelab.objectives import Baseline, Setting, sentence_distance

NEEDS = ("marker",)
HEADS, SEES = sentence_distance.HEADS, sentence_distance.SEES
BASELINE = Baseline("accuracy", 1 / len(MARKERS), 0.05)


def make(setting: Setting, options: None = None) -> sentence_distance.TextLabel:
    """Makes the objective: one class for each of MARKERS."""
    del setting, options
    return sentence_distance.TextLabel("discourse", "marker", len(MARKERS))
