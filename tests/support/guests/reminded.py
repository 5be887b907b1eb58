"""A masked model with a memory: RoBERTa whose states add the mean state of the row's last batch."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab import systems
from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.objectives import Batch
from scalelab.systems import roberta
from scalelab.systems.roberta import (  # noqa: F401
    ADAPTATION,
    DEPARTURES,
    FRAME,
    HAS_SOURCE,
    HEADS,
    PREDICTS,
    SEES,
    SPECIAL_TOKENS,
)  # fmt: skip

ORDER = "contiguous"


class Net(nn.Module):
    """See the module; the memory is [B, D]."""

    EMBEDDING = ("body/embed",)
    TOKEN_TABLE = "body/embed/tokens/table"

    body: Encoder

    @nn.compact
    def __call__(
        self, batch: Batch, *, train: bool, cache: None = None, step: Any = None
    ) -> tuple[jax.Array, None]:
        hidden, _ = self.body(batch, train=train, step=step)
        empty = partial(jnp.zeros, (len(hidden), hidden.shape[-1]))
        names = axes.BATCH, axes.WIDTH
        memory = self.variable("carried", "memory", nn.with_logical_partitioning(empty, names))
        hidden = hidden + memory.value[:, None]
        if self.is_mutable_collection("carried") and not self.is_initializing():
            inside = jnp.arange(hidden.shape[1])[None] < batch["lengths"][:, None]
            mean = hidden.mean(axis=1, where=inside[..., None])
            memory.value = jax.lax.stop_gradient(jnp.nan_to_num(mean))
        return hidden, None

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        return self.body.token_features(hidden)


def build(sizes: systems.Sizes, options: None, vocab_size: int) -> Net:
    return Net(roberta.build(sizes, options, vocab_size))
