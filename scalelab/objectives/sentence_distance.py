"""Sentence distance: B follows A, is elsewhere in the document, or is in another document.

Sun et al. 2020, "ERNIE 2.0", 4.2.2. Examples of other kinds have the label -1 and do not count.
"""

import dataclasses
from typing import ClassVar

from flax import linen as nn

from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, nsp, xent

NEEDS = ("distance",)
HEADS, SEES = ("labels",), nsp.SEES
BASELINE = Baseline("accuracy", 1 / 3, 0.05)


@dataclasses.dataclass(frozen=True)
class TextLabel:
    """A label of a text, by a head for it; `objectives.Objective` documents the methods.

    Attributes:
      name: name of the objective and of its head.
      label: array of the labels [B]; -1: none.
      num_classes: C.
    """

    name: str
    label: str
    num_classes: int
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = None

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the labels [B]; examples with -1 do not count."""
        labels = batch[self.label]
        logits = model.label_logits(ctx.hidden(model, batch), self.name, self.num_classes, True)
        counts = (batch["lengths"] > 0) & (labels >= 0)
        return xent.class_cross_entropy(logits, labels, counts, accuracy=ctx.accuracy)


def make(setting: Setting, options: None = None) -> TextLabel:
    """Makes the objective."""
    del setting, options
    return TextLabel("sentence_distance", "distance", 3)
