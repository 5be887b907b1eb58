"""Token-document relation: does a token occur elsewhere in its document?

Sun et al. 2020, "ERNIE 2.0", 4.2.1. All tokens except special tokens count, hidden ones too.
"""

import dataclasses
from typing import ClassVar

from scalelab.formats import sentence_tasks
from scalelab.objectives import Setting, capitals

NEEDS, HEADS, SEES = capitals.NEEDS, capitals.HEADS, capitals.SEES
BASELINE = capitals.baseline("token_document")


@dataclasses.dataclass(frozen=True)
class TokenDocument(capitals.Capitals):
    """Two classes, 1 = the token occurs in its document outside the example."""

    name: ClassVar[str] = "token_document"
    bit: ClassVar[int] = sentence_tasks.ELSEWHERE
    samples: ClassVar[bool] = False


def make(setting: Setting, options: None = None) -> TokenDocument:
    """Makes the objective."""
    del setting, options
    return TokenDocument(None)
