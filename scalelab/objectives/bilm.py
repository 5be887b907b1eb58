"""Language modeling in both directions: each token from those before it, and from those after it.

Peters et al. 2018, 3.1: the sum of both log-likelihoods. Each of the model's two streams sees one
side alone, so no token is hidden. The loss is the mean over the predictions of both directions.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn.axes import useful
from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, xent

NEEDS: tuple[str, ...] = ()
HEADS = ("next", "previous")
SEES = "both"
BASELINE = Baseline("loss", None, 0.5)


@dataclasses.dataclass(frozen=True)
class BiLM:
    """Prediction of the next and of the previous token; see `objectives.Objective`."""

    name: ClassVar[str] = "bilm"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = "next"
    covers_text: ClassVar[bool] = True

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of both directions at hidden states [B, T, 2 D]."""
        tokens, lengths = batch["tokens"], batch["lengths"][:, None]
        num_places = tokens.shape[1]
        places = jnp.arange(num_places)
        hidden = jnp.concatenate(jnp.split(ctx.token_hidden(model, batch), 2, axis=-1))
        # Forward, then backward, each with one place that predicts nothing.
        targets = jnp.concatenate([jnp.roll(tokens, step, axis=1) for step in (-1, 1)])
        sides = places < lengths - 1, (places > 0) & (places < lengths)
        weights = jnp.concatenate(sides).astype(jnp.float32)
        with useful((num_places - 1) / num_places):
            features, table, bias = model.token_features(hidden)
            return xent.token_cross_entropy(
                features, table, bias, targets, weights, accuracy=ctx.accuracy
            )


def make(setting: Setting, options: None = None) -> BiLM:
    """Makes the objective."""
    del setting, options
    return BiLM()
