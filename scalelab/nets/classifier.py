"""A pre-trained net with a head for a labelled task."""

from typing import Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn.masks import Context, Mask

Batch = dict[str, jax.Array]


class States(Protocol):
    """The part of `objectives.Pass` that a classifier calls."""

    def hidden(self, net: nn.Module, batch: Batch) -> jax.Array: ...  # noqa: D102


class Classifier(nn.Module):
    """Net -> the vector of one token of each row -> scores.

    Attributes:
      body: a system's net.
      head: (vectors [B, F], ctx) -> scores [B, C] float32.
      reads: "first": a row is its first token's vector; "last": its last token's.
      num_orders: rows of an example, one after another; their vectors are added.
    """

    body: nn.Module
    head: nn.Module
    reads: str
    num_orders: int = 1

    def __call__(self, batch: Batch, ctx: States, *, train: bool) -> jax.Array:
        """Scores examples: [B, C] float32.

        Args:
          batch: tokens [B * num_orders, T], lengths, examples, and second_starts of the same rows.
          ctx: computes the states of the body, and keeps them for objectives beside the task.
          train: whether dropout is on.
        """
        return self.classify(ctx.hidden(self.body, batch), batch, train=train)

    def classify(self, hidden: jax.Array, batch: Batch, *, train: bool) -> jax.Array:
        """Scores [B, C] of hidden states [B * num_orders, T, F]."""
        if self.reads == "first":
            vectors = hidden[:, 0]
        else:
            last = jnp.maximum(batch["lengths"] - 1, 0)
            vectors = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
        vectors = vectors.reshape(-1, self.num_orders, vectors.shape[-1]).sum(axis=1)
        examples = batch["examples"][:: self.num_orders]
        nowhere = jnp.zeros((len(examples), 1), jnp.int32)
        ctx = Context(mask=Mask(), positions=nowhere, examples=examples, train=train)
        return self.head(vectors, ctx)
