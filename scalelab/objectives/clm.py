"""Causal language modelling: every token but the first is predicted from those before it.

L = -sum_i log p(x_i | x_<i) (Radford et al. 2018, 3.1). There is no start token in pre-training, so
the first token of an example has no loss term.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.objectives import Baseline, xent

NEEDS: tuple[str, ...] = ()
NEEDS_CAUSAL = True
BASELINE = Baseline("loss", None, 0.5)  # half a nat asks for some use of the context

Batch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class CLM:
    """Next-token prediction; see `scalelab.objectives` for the methods."""

    name: ClassVar[str] = "clm"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    samples: ClassVar[bool] = False

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Returns the batch as it is."""
        del rng
        return batch

    def num_predicted(self, length: int) -> int:
        """Positions of an example of `length` that are predicted."""
        return length - 1

    def weight(self, batch: Batch) -> jax.Array:
        """Tokens that have one before them."""
        return jnp.sum(jnp.maximum(batch["lengths"] - 1, 0)).astype(jnp.float32)

    def terms(
        self, model: nn.Module, hidden: jax.Array, batch: Batch, *, accuracy: bool = False
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Loss (and accuracy) of token t + 1 at hidden state t of [B, T, D]."""
        tokens, lengths = batch["tokens"], batch["lengths"]
        # The last column predicts nothing; keeping it keeps T a round number.
        targets = jnp.roll(tokens, -1, axis=1)
        weights = (jnp.arange(tokens.shape[1]) < lengths[:, None] - 1).astype(jnp.float32)
        features, table, bias = model.token_features(hidden)
        return xent.token_cross_entropy(features, table, bias, targets, weights, accuracy=accuracy)


def make(*, vocab_size: int, special_ids: Mapping[str, int], mask_rate: float) -> CLM:
    """Makes the objective; it needs none of the arguments."""
    del vocab_size, special_ids, mask_rate
    return CLM()
