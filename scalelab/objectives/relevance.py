"""Relevance: does a text belong to this title?

Sun et al. 2020, "ERNIE 2.0", 4.2.3, "IR relevance". The corpus must have titles: headings, kept
by config.data.keep_headings=True. The paper has three classes; `formats.sentence_tasks` explains
the two classes here.
"""

from scalelab.objectives import Baseline, Setting, sentence_distance

NEEDS = ("title",)
HEADS, SEES = sentence_distance.HEADS, sentence_distance.SEES
BASELINE = Baseline("accuracy", 1 / 2, 0.05)


def make(setting: Setting, options: None = None) -> sentence_distance.TextLabel:
    """Makes the objective: two classes, 1 = the title of another document."""
    del setting, options
    return sentence_distance.TextLabel("relevance", "title", 2)
