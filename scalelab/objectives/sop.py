"""Sentence-order prediction (Lan et al. 2020, 3.1): which of two segments came first?"""

from scalelab.objectives import Setting, nsp

NEEDS = ("swapped",)
HEADS, SEES, BASELINE = nsp.HEADS, nsp.SEES, nsp.BASELINE


def make(setting: Setting, options: None = None) -> nsp.NSP:
    """Makes the objective: two classes as in NSP, 0 = in order, 1 = swapped."""
    del setting, options
    return nsp.NSP("sop", "swapped")
