"""A model with an objective that crosses examples: it finds the second half of each text.

The wrong answers are the second halves of the other texts of the batch (Oord et al. 2018, eq. 4).
"""

import dataclasses
import math
from typing import ClassVar

import declared
import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab import systems
from scalelab.objectives import Baseline, Batch, Pairs, Pass
from scalelab.systems import roberta
from scalelab.systems.roberta import (  # noqa: F401
    ADAPTATION,
    FRAME,
    HAS_SOURCE,
    HEADS,
    ORDER,
    PREDICTS,
    SEES,
    SPECIAL_TOKENS,
    build,
)  # fmt: skip

DEPARTURES = (*roberta.DEPARTURES, systems.Departure("objective", "halves", "a test"))


@dataclasses.dataclass(frozen=True)
class Halves:
    """Cross-entropy among the B second halves."""

    name: ClassVar[str] = "halves"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = None
    crosses_examples: ClassVar[bool] = True

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        hidden, middles = ctx.hidden(model, batch), batch["lengths"][:, None] // 2
        places = jnp.arange(hidden.shape[1])
        first, second = places < middles, places >= middles
        second &= places < batch["lengths"][:, None]
        a, b = (
            jnp.einsum("btd,bt->bd", hidden, x / jnp.maximum(x.sum(1, keepdims=True), 1))
            for x in (first, second)
        )
        real = (batch["lengths"] > 0).astype(jnp.float32)
        scores = jnp.where(real > 0, a @ b.T / hidden.shape[2] ** 0.5, -1e30)
        return {"loss": (-jnp.sum(real * jnp.diag(jax.nn.log_softmax(scores))), jnp.sum(real))}


OBJECTIVES = {
    "halves": dict(
        NEEDS=(), HEADS=(), SEES="both", make=lambda setting, options: Halves(),
        BASELINE=Baseline("loss", lambda metrics: math.log(metrics["batch_size"]), 0.1),
    )
}  # fmt: skip
EXPECTED = declared.Expected(
    tokenizer="bytebpe",
    stddevs={"": 0.02},
    first_losses={"halves": math.log(8)},
    num_parameters={},
    decayed=declared.kernels_of_layers() | {"embed/tokens/table", "embed/positions/table"},
    peer="no class has its objective",
)
