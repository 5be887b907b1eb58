"""A model with nothing inside, whose hidden states and tables are given; and masks undone."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.objectives import Pass


@dataclasses.dataclass
class FakeNet:
    table: Any
    bias: Any = None

    hidden: Any = None  # the states of every batch

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, Any, Any]:
        return hidden, self.table, self.bias

    def pair_logits(self, hidden: jax.Array) -> jax.Array:
        return jnp.stack([hidden[:, 0].sum(-1), hidden[:, 0, 0]], axis=-1)

    def losses(self, objective: Any, batch: Any, *, accuracy: bool = False) -> Any:
        """The losses of an objective on `hidden`."""
        ctx = Pass(jax.random.key(0), accuracy=accuracy)
        ctx.hidden = lambda net, batch: net.hidden
        return objective.losses(self, batch, ctx)


def restored(prepared: Any) -> np.ndarray:
    """The tokens of a prepared batch with the targets back in their places."""
    tokens, chosen = np.array(prepared["tokens"]), prepared["mlm_weights"] > 0
    rows, _ = np.nonzero(chosen)
    tokens[rows, prepared["mlm_positions"][chosen]] = prepared["mlm_targets"][chosen]
    return tokens
