"""Next sentence prediction: does segment B follow segment A? (Devlin et al. 2019, 3.1)."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.objectives import Baseline

NEEDS = ("random_second",)
NEEDS_CAUSAL = False
BASELINE = Baseline("accuracy", 0.5, 0.05)  # two standard errors of 500 validation examples

Batch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class NSP:
    """Two classes, 0 = B follows A, 1 = B is random; see `scalelab.objectives` for the methods."""

    name: ClassVar[str] = "nsp"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    samples: ClassVar[bool] = False

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Returns the batch as it is: the format made the labels."""
        del rng
        return batch

    def num_predicted(self, length: int) -> int:
        """Positions that pass through the token head: none."""
        del length
        return 0

    def weight(self, batch: Batch) -> jax.Array:
        """Examples that are not padding."""
        return jnp.sum(batch["lengths"] > 0).astype(jnp.float32)

    def terms(
        self, model: nn.Module, hidden: jax.Array, batch: Batch, *, accuracy: bool = False
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Loss (and accuracy) of batch["random_second"] [B]."""
        labels = batch["random_second"]
        weights = (batch["lengths"] > 0).astype(jnp.float32)
        weight = jnp.sum(weights)
        logits = model.pair_logits(hidden)
        log_probs = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0]
        terms = {"loss": (jnp.sum(losses * weights), weight)}
        if accuracy:
            hits = jnp.argmax(logits, axis=-1) == labels
            terms["accuracy"] = (jnp.sum(hits * weights), weight)
        return terms


def make(*, vocab_size: int, special_ids: Mapping[str, int], mask_rate: float) -> NSP:
    """Makes the objective; it needs none of the arguments."""
    del vocab_size, special_ids, mask_rate
    return NSP()
