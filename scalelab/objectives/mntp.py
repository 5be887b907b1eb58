"""Masked next-token prediction and causal language modeling by example, with one head.

Charpentier and Samuel 2024, "GPT or BERT: why not both?". State k - 1 predicts token k in both:

| example | input | a state sees | predicted |
|---|---|---|---|
| masked | tokens masked as in `mlm` | all tokens | the masked tokens |
| causal | the tokens | itself and the tokens before it | all tokens but the first |

Each example draws its kind: the number of masked examples is binomial, and the draw is a pure
function of seed, step and example. An example of n tokens has weight n - 1 for both kinds, so the
kinds count by their share of the examples. In the reference code, too: each device has one kind,
and devices count equally. A masked first token has no loss, because no state is before it.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config.fields import Share
from scalelab.nn.axes import useful
from scalelab.objectives import (
    Baseline,
    Batch,
    Pairs,
    Pass,
    Setting,
    example_keys,
    mlm,
    named_key,
    xent,
)

NEEDS: tuple[str, ...] = ()
HEADS = ("token",)
SEES = "left"
BASELINE = Baseline("loss", None, 0.5)  # half a nat below the unigrams: the model uses the context


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the objective."""

    # Share of masked examples; in the reference code (train_multi_gpu.py) 15 of 16.
    masked_rate: Share = 15 / 16


@dataclasses.dataclass(frozen=True)
class MNTP:
    """Masked next-token prediction; `objectives.Objective` documents the methods.

    Attributes:
      masks: the MLM that chooses the tokens to predict of a masked example.
      masked_rate: share of masked examples.
    """

    masks: mlm.MLM
    masked_rate: float
    name: ClassVar[str] = "mntp"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = "next"
    covers_text: ClassVar[bool] = True

    @property
    def shifts_masks(self) -> bool:
        """True if some examples are masked."""
        return self.masked_rate > 0

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Masks the masked examples, and sets the attention mask of each example.

        Returns:
          The batch with masked tokens, visible [B, T, 2], mntp_targets int32 and mntp_weights
          float32 [B, T] of the states, and mntp_totals float32 [B], the sums of the weights.
        """
        key = named_key(rng, "kind")
        keys = example_keys(key, batch)
        is_masked = (jax.vmap(jax.random.uniform)(keys) < self.masked_rate)[:, None]
        tokens, places = batch["tokens"], jnp.arange(batch["tokens"].shape[1], dtype=jnp.int32)
        masked = self.masks.prepare(batch, rng)
        rows = jnp.arange(len(tokens))[:, None]
        chosen = jnp.zeros(tokens.shape, jnp.float32)
        chosen = chosen.at[rows, masked["mlm_positions"]].add(masked["mlm_weights"]).at[:, 0].set(0)
        is_next = (places < batch["lengths"][:, None] - 1).astype(jnp.float32)
        counted = jnp.where(is_masked, jnp.roll(chosen, -1, axis=1), is_next)
        num_counted = jnp.sum(counted, axis=1)
        totals = jnp.where(num_counted > 0, jnp.sum(is_next, axis=1), 0)
        stops = jnp.where(is_masked, len(places), places + 1)
        return batch | {
            "tokens": jnp.where(is_masked, masked["tokens"], tokens),
            "visible": jnp.stack([jnp.zeros_like(stops), stops], axis=-1),
            "mntp_targets": jnp.roll(tokens, -1, axis=1),
            "mntp_weights": counted * (totals / jnp.maximum(num_counted, 1))[:, None],
            "mntp_totals": totals,
        }

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of token t + 1 at hidden state t of [B, T, D]."""
        targets, weights = batch["mntp_targets"], batch["mntp_weights"]
        hidden, num_places = ctx.token_hidden(model, batch), targets.shape[1]
        with useful((num_places - 1) / num_places):  # the last column predicts nothing
            features, table, bias = model.token_features(hidden)
            found = xent.token_cross_entropy(
                features, table, bias, targets, weights, accuracy=ctx.accuracy
            )
        weight = jnp.sum(batch["mntp_totals"])  # exact, unlike the sum of rounded quotients
        return {name: (total, weight) for name, (total, _) in found.items()}


def make(setting: Setting, options: Options) -> MNTP:
    """Makes the objective; raises ValueError without a mask token."""
    return MNTP(mlm.make(setting), options.masked_rate)
