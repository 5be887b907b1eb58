"""Sentence-order prediction (Lan et al. 2020, 3.1): which of two segments came first?"""

import dataclasses
from typing import ClassVar

from scalelab.objectives import Setting, nsp

NEEDS = ("swapped",)
HEADS, SEES, BASELINE = nsp.HEADS, nsp.SEES, nsp.BASELINE


@dataclasses.dataclass(frozen=True)
class SOP(nsp.NSP):
    """Two classes as in NSP, 0 = in order, 1 = swapped."""

    name: ClassVar[str] = "sop"
    label: ClassVar[str] = "swapped"


def make(setting: Setting, options: None = None) -> SOP:
    """Makes the objective."""
    del setting, options
    return SOP()
