"""Maximum likelihood of a target given a source.

Each token is predicted from the source and from the target's tokens before it (Raffel et al. 2020,
2.4). The model reads the start token and then the target without its last token.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, xent

NEEDS, READS = ("source", "tokens"), ("text_ends",)
HEADS = ("token",)
SEES = "source + left"
BASELINE = Baseline("loss", None, 0.5, array="tokens")


@dataclasses.dataclass(frozen=True)
class Seq2Seq:
    """Maximum likelihood of targets; `objectives.Objective` documents the methods.

    Attributes:
      start: id of the token before the target.
    """

    start: int
    name: ClassVar[str] = "seq2seq"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = "next"

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Moves the target, `tokens` [B, T], to `targets`, and puts the start token before it.

        With text_ends (`nets.encdec.split_texts`) it puts the start token before each text.
        """
        del rng
        targets = batch["tokens"]
        tokens = jnp.roll(targets, 1, 1).at[:, 0].set(self.start)
        if "text_ends" in batch:  # a place behind the row is dropped
            begins = batch["text_ends"][:, :-1, 1]
            tokens = tokens.at[jnp.arange(len(tokens))[:, None], begins].set(self.start)
        return batch | {"targets": targets, "tokens": tokens}

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the target's tokens."""
        targets = batch["targets"]
        weights = jnp.arange(targets.shape[1]) < batch["lengths"][:, None]
        features, table, bias = model.token_features(ctx.token_hidden(model, batch))
        return xent.token_cross_entropy(
            features, table, bias, targets, weights.astype(jnp.float32), accuracy=ctx.accuracy
        )


def make(setting: Setting, options: None = None) -> Seq2Seq:
    """Makes the objective."""
    del options
    return Seq2Seq(setting.special_ids["start"])
