"""Sentence-order prediction (Lan et al. 2020, 3.1): which of two segments came first?"""

import dataclasses
from typing import ClassVar

import jax
from flax import linen as nn

from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, xent

NEEDS = ("swapped",)
HEADS = ("pair",)
SEES = "both"
BASELINE = Baseline("accuracy", 0.5, 0.05)  # two standard errors of 500 validation examples


@dataclasses.dataclass(frozen=True)
class SOP:
    """Two classes, 0 = in order, 1 = swapped; see `scalelab.objectives` for the methods."""

    name: ClassVar[str] = "sop"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = None

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Returns the batch as it is: the format made the labels."""
        del rng
        return batch

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Loss (and accuracy) of batch["swapped"] [B], of examples that are not padding."""
        logits = model.pair_logits(ctx.hidden(model, batch))
        return xent.class_cross_entropy(
            logits, batch["swapped"], batch["lengths"] > 0, accuracy=ctx.accuracy
        )


def make(setting: Setting, options: None = None) -> SOP:
    """Makes the objective."""
    del setting, options
    return SOP()
