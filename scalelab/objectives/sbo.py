"""Span boundary objective: each token of a hidden span from the two tokens next to the span.

Joshi et al. 2020, 3.2: the head sees the states x of the visible tokens on either side of the span
(s, ..., e) and the position of token i in it: y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1}). `span_mlm` in
the same sum draws the spans.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, xent

NEEDS: tuple[str, ...] = ()
HEADS = ("boundary",)
SEES = "both"
BASELINE = Baseline("loss", None, 0.5)


@dataclasses.dataclass(frozen=True)
class SBO:
    """The span boundary objective; `objectives.Objective` documents the methods."""

    name: ClassVar[str] = "sbo"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = None
    beside: ClassVar[tuple[str, ...]] = ("span_mlm",)

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the hidden tokens."""
        hidden, lefts = ctx.token_hidden(model, batch), batch["span_lefts"]
        left, right = (
            jnp.take_along_axis(hidden, places[..., None], axis=1)
            for places in (lefts, batch["span_rights"])
        )
        features, table, bias = model.boundary_features(left, right, batch["mlm_positions"] - lefts)
        targets, weights = batch["mlm_targets"], batch["mlm_weights"]
        return xent.token_cross_entropy(
            features, table, bias, targets, weights, accuracy=ctx.accuracy
        )


def make(setting: Setting, options: None = None) -> SBO:
    """Makes the objective."""
    del setting, options
    return SBO()
