"""Discourse relation: which marker, such as "However", was between two texts?

Sun et al. 2020, "ERNIE 2.0", 4.2.3; `formats.marks` finds the markers.
"""

import dataclasses
from typing import ClassVar

from scalelab.formats.marks import MARKERS
from scalelab.objectives import Baseline, Setting, sentence_distance

NEEDS = ("marker",)
HEADS, SEES = sentence_distance.HEADS, sentence_distance.SEES
BASELINE = Baseline("accuracy", 1 / len(MARKERS), 0.05)


@dataclasses.dataclass(frozen=True)
class Discourse(sentence_distance.SentenceDistance):
    """One class for each of MARKERS."""

    name: ClassVar[str] = "discourse"
    label: ClassVar[str] = "marker"
    num_classes: ClassVar[int] = len(MARKERS)


def make(setting: Setting, options: None = None) -> Discourse:
    """Makes the objective."""
    del setting, options
    return Discourse()
