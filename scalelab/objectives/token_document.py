"""Token-document relation: does a token occur elsewhere in its document?

Sun et al. 2020, "ERNIE 2.0", 4.2.1. All tokens except special tokens count, hidden ones too.
"""

from scalelab.formats import sentence_tasks
from scalelab.objectives import Setting, capitals

NEEDS, HEADS, SEES = capitals.NEEDS, capitals.HEADS, capitals.SEES
BASELINE = capitals.baseline("token_document")


def make(setting: Setting, options: None = None) -> capitals.WordLabel:
    """Makes the objective: 1 = the token occurs in its document outside the example."""
    del setting, options
    return capitals.WordLabel("token_document", sentence_tasks.ELSEWHERE, None, samples=False)
