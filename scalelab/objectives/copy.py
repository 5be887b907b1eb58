"""Maximum likelihood of a target whose tokens are generated or copied from the source.

    P(y) = gate P_v(y) + (1 - gate) P_c(y)

P_v is a softmax over the vocabulary. P_c(y) is the attention to the source's places with token y
(See et al. 2017, 2.2; Bi et al. 2020, 3.3). The model reads the start token and then the target
without its last token.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, seq2seq, xent

NEEDS, READS = ("source", "tokens"), ("text_ends",)
HEADS = ("copy",)
SEES = "source + left"
BASELINE = Baseline("loss", None, 0.5, array="tokens")


@dataclasses.dataclass(frozen=True)
class Copy:
    """Maximum likelihood of a mixture; `objectives.Objective` documents the methods.

    Attributes:
      start: id of the token before the target.
    """

    start: int
    name: ClassVar[str] = "copy"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = "next"

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Moves the target to `targets`, as `seq2seq.Seq2Seq.prepare`."""
        return seq2seq.Seq2Seq(self.start).prepare(batch, rng)

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss, the mean of the gate, and the accuracy of the target's tokens."""
        targets, states = batch["targets"], ctx.token_hidden(model, batch)
        weights = (jnp.arange(targets.shape[1]) < batch["lengths"][:, None]).astype(jnp.float32)
        found, weight, gate = {}, jnp.sum(weights), model.gate(states)
        if ctx.accuracy:  # needs all tokens' probabilities
            scores = model.token_logits(states)
            log_prob = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
            hits = jnp.argmax(scores, axis=-1) == targets
            found["accuracy"] = (jnp.sum(hits * weights), weight)
        else:
            features, table, _, shares, tokens = model.split(states)
            copied = jnp.sum(shares * (tokens == targets[..., None]), axis=-1)
            log_prob = mix(xent.token_log_probs(features, table, None, targets), copied, gate)
        return found | {
            "loss": (-jnp.sum(log_prob * weights), weight),
            "gate": (jnp.sum(jax.nn.sigmoid(gate) * weights), weight),
        }


def mix(generated: jax.Array, copied: jax.Array, gate: jax.Array) -> jax.Array:
    """Returns log(g exp(generated) + (1 - g) copied), g = sigmoid(gate); all [...] float32.

    Args:
      generated: log-probabilities of the vocabulary's softmax.
      copied: probabilities of copying, which may be 0.
      gate: scores.
    """
    some = copied > 0
    log_copied = jnp.where(some, jnp.log(jnp.where(some, copied, 1.0)), -1e30)
    return jnp.logaddexp(
        jax.nn.log_sigmoid(gate) + generated, jax.nn.log_sigmoid(-gate) + log_copied
    )


def make(setting: Setting, options: None = None) -> Copy:
    """Makes the objective."""
    del options
    return Copy(setting.special_ids["start"])
