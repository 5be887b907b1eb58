"""Capitalization prediction: does the word of a hidden token begin with a capital?

Sun et al. 2020, "ERNIE 2.0", 4.2.1. The paper's model reads text without case and predicts all
words. Ours reads case, so that a visible token tells its label: the loss counts tokens that an
objective of the same sum, such as `knowledge_mlm`, has replaced by the mask token.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from scalelab.formats import CAPITAL, sentence_tasks
from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, xent

NEEDS = ("word_labels",)
HEADS = ("labels",)
SEES = None


def baseline(name: str) -> Baseline:
    """Returns the loss of the best constant probability of the label 1."""

    def constant(metrics: Mapping[str, float]) -> float | None:
        rate = metrics.get(f"{name}_rate")
        chances = [] if rate is None else [x for x in (rate, 1 - rate) if x > 0]
        return -sum(x * math.log(x) for x in chances) if chances else None

    return Baseline("loss", constant, 0.02)


BASELINE = baseline("capitals")


@dataclasses.dataclass(frozen=True)
class WordLabel:
    """A label for each token; `objectives.Objective` documents the methods.

    Attributes:
      name: name of the objective and of its head.
      bit: the bit of `word_labels` that is the label.
      mask_id: id of the tokens that count; None: all tokens that are not special.
      samples: as in `objectives.Objective`.
    """

    name: str
    bit: int
    mask_id: int | None
    samples: bool
    predicts: ClassVar[str | None] = None

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy, and share of label 1) of the tokens that count."""
        bits, tokens = batch["word_labels"], batch["tokens"]
        counts = bits & sentence_tasks.TEXT > 0
        if self.mask_id is not None:
            counts &= tokens == self.mask_id
        labels = (bits & self.bit > 0).astype(jnp.int32).reshape(-1)
        logits = model.label_logits(ctx.hidden(model, batch), self.name, 2, False).reshape(-1, 2)
        counts = counts.reshape(-1)
        found = xent.class_cross_entropy(logits, labels, counts, accuracy=ctx.accuracy)
        if ctx.accuracy:
            found["rate"] = jnp.sum(labels * counts).astype(jnp.float32), found["loss"][1]
        return found


def make(setting: Setting, options: None = None) -> WordLabel:
    """Makes the objective."""
    del options
    return WordLabel("capitals", CAPITAL, setting.special_ids["mask"], samples=True)
