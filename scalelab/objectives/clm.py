"""Causal language modeling: every token but the first is predicted from the tokens before it.

L = -sum_i log p(x_i | x_<i) (Radford et al. 2018, 3.1). There is no start token in pre-training, so
the first token of an example has no loss term.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn.axes import useful
from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, xent

NEEDS: tuple[str, ...] = ()
HEADS = ("token",)
SEES = "left"
BASELINE = Baseline("loss", None, 0.5)  # half a nat below the unigrams: the model uses the context


@dataclasses.dataclass(frozen=True)
class CLM:
    """Next-token prediction; `objectives.Objective` documents the methods."""

    name: ClassVar[str] = "clm"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = "next"
    covers_text: ClassVar[bool] = True

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of token t + 1 at hidden state t of [B, T, D]."""
        return next_tokens(model, batch, ctx)


def next_tokens(
    model: nn.Module, batch: Batch, ctx: Pass, counts: jax.Array | None = None
) -> Pairs:
    """Returns the loss (and accuracy) of token t + 1 at hidden state t of [B, T, D].

    Args:
      model: bound.
      batch: tokens [B, T], lengths [B].
      ctx: states of the pass.
      counts: bool [B, T], the places whose next token has a loss; None: all but the last.
    """
    tokens, lengths = batch["tokens"], batch["lengths"]
    num_places = tokens.shape[1]
    # The last column has weight 0; it is kept so that T stays a round number.
    targets = jnp.roll(tokens, -1, axis=1)
    weights = jnp.arange(num_places) < lengths[:, None] - 1
    weights = (weights if counts is None else weights & counts).astype(jnp.float32)
    hidden = ctx.token_hidden(model, batch)
    if hasattr(model, "token_log_probs"):
        found = model.token_log_probs(hidden, targets)
        return {"loss": (-jnp.sum(found * weights), jnp.sum(weights))}
    with useful((num_places - 1) / num_places):
        features, table, bias = model.token_features(hidden)
        return xent.token_cross_entropy(
            features, table, bias, targets, weights, accuracy=ctx.accuracy
        )


def make(setting: Setting, options: None = None) -> CLM:
    """Makes the objective."""
    del setting, options
    return CLM()
