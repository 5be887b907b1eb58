"""Relevance: does a text belong to this title?

Sun et al. 2020, "ERNIE 2.0", 4.2.3, "IR relevance". The corpus must have titles: headings, kept
by config.data.keep_headings=True. The paper has three classes; `formats.sentence_tasks` explains
the two classes here.
"""

import dataclasses
from typing import ClassVar

from scalelab.objectives import Baseline, Setting, sentence_distance

NEEDS = ("title",)
HEADS, SEES = sentence_distance.HEADS, sentence_distance.SEES
BASELINE = Baseline("accuracy", 1 / 2, 0.05)


@dataclasses.dataclass(frozen=True)
class Relevance(sentence_distance.SentenceDistance):
    """Two classes, 1 = the title of another document."""

    name: ClassVar[str] = "relevance"
    label: ClassVar[str] = "title"
    num_classes: ClassVar[int] = 2


def make(setting: Setting, options: None = None) -> Relevance:
    """Makes the objective."""
    del setting, options
    return Relevance()
