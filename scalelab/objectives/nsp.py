"""Next sentence prediction: does segment B follow segment A? (Devlin et al. 2019, 3.1)."""

import dataclasses
from typing import ClassVar

from flax import linen as nn

from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, xent

NEEDS = ("random_second",)
BASELINE = Baseline("accuracy", 0.5, 0.05)  # two standard errors of 500 validation examples
HEADS = ("pair",)
SEES = "both"


@dataclasses.dataclass(frozen=True)
class NSP:
    """A label of two classes for a pair; `objectives.Objective` documents the methods.

    Attributes:
      name: name of the objective.
      label: array of the labels [B]: 0 = B follows A, 1 = B is random.
    """

    name: str = "nsp"
    label: str = "random_second"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = None

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the labels [B]; padding examples do not count."""
        logits = model.pair_logits(ctx.hidden(model, batch))
        return xent.class_cross_entropy(
            logits, batch[self.label], batch["lengths"] > 0, accuracy=ctx.accuracy
        )


def make(setting: Setting, options: None = None) -> NSP:
    """Makes the objective."""
    del setting, options
    return NSP()
