"""Replaced-token detection (Clark et al. 2020, 2) and the paper's variants of it (3.4).

`mlm` in the same sum trains a generator, which scores the masked positions. A sample from it fills
each masked position, and the discriminator reads the filled text. No gradient passes through the
samples. A sample that equals the original token counts as original. The proposal `uniform` needs no
generator: it samples from the vocabulary without its special tokens.

Variants, as `config.objective_options`:

| the paper's name | positions | target |
|---|---|---|
| ELECTRA | all | replaced |
| ELECTRA 15% | masked | replaced |
| Replace MLM | masked | token |
| All-Tokens MLM | all | token |

With the target `token` the discriminator predicts the original token. With positions `all` it also
predicts the probability of copying its input.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config.fields import choice
from scalelab.nn import axes
from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, example_keys, mlm, xent

NEEDS: tuple[str, ...] = ()
HEADS = ("token", "replaced", "restored")
SEES = "both"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the objective."""

    positions: Annotated[str, choice("all", "masked")] = "all"  # positions with a loss
    target: Annotated[str, choice("replaced", "token")] = "replaced"  # the predicted label
    proposal: Annotated[str, choice("generator", "uniform")] = "generator"  # source of replacements


def _baseline(options: Options) -> Baseline:
    """Returns the baseline: the best constant probability of "replaced", or unigrams for tokens."""
    if options.positions == "masked" and options.target == "token":
        return Baseline("loss", None, 0.5)

    def constant(metrics: Mapping[str, float]) -> float | None:
        rate, nats = metrics.get("rtd_replaced_rate"), metrics.get("unigram_nats")
        if rate is None or (nats is None and options.target == "token"):
            return None
        chances = [x for x in (rate, 1 - rate) if x > 0]
        loss = -sum(x * math.log(x) for x in chances)
        return loss if options.target == "replaced" else loss + rate * (nats or 0.0)

    return Baseline("loss", constant, 0.02)


BASELINE = _baseline


@dataclasses.dataclass(frozen=True)
class RTD:
    """Replaced-token detection; `objectives.Objective` documents the methods.

    Attributes:
      masks: the MLM that chooses the positions, unless another objective has chosen them.
      options: the variant.
    """

    masks: mlm.MLM
    options: Options
    name: ClassVar[str] = "rtd"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = None

    @property
    def beside(self) -> tuple[str, ...]:
        """The objective that trains the generator; empty without a generator."""
        return () if self.options.proposal == "uniform" else ("mlm",)

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Masks the batch; `fill` replaces the masks, because that needs the model."""
        return self.masks.prepare(batch, rng)

    def fill(self, model: nn.Module, batch: Batch, ctx: Pass) -> tuple[jax.Array, jax.Array]:
        """Returns two int arrays [B, T]: the original tokens, and with samples at masked positions.

        Args:
          model: the bound model with the generator.
          batch: masked by `mlm`.
          ctx: keys and states of the pass.
        """
        tokens, places = batch["tokens"], batch["mlm_positions"]
        keys = example_keys(ctx.key("sample"), batch)
        uniforms = jax.vmap(lambda key: jax.random.uniform(key, places.shape[1:]))(keys)
        if self.options.proposal == "uniform":
            sampled = self.masks.ordinary((uniforms * self.masks.num_ordinary).astype(jnp.int32))
        else:
            hidden = ctx.token_hidden(model, batch)
            chosen = jnp.take_along_axis(hidden, places[..., None], axis=1)
            with axes.forward_only():
                features, table, bias = model.token_features(chosen)
                sampled = xent.sample_tokens(features, table, bias, uniforms)
        # Unused slots get an index out of range, which is ignored.
        places = jnp.where(batch["mlm_weights"] > 0, places, tokens.shape[1])
        rows = jnp.arange(len(tokens))[:, None]
        write = tokens.at[rows, places].set
        return write(batch["mlm_targets"], mode="drop"), write(sampled, mode="drop")

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the discriminator's predictions."""
        original, filled = self.fill(model, batch, ctx)
        read = batch | {"tokens": filled}
        hidden = ctx.hidden(model, read)
        length = original.shape[1]
        places, weights = jnp.arange(length)[None], jnp.arange(length) < batch["lengths"][:, None]
        if self.options.positions == "masked":
            places, weights = batch["mlm_positions"], batch["mlm_weights"] > 0
            hidden = jnp.take_along_axis(hidden, places[..., None], axis=1)
        weights = weights.astype(jnp.float32)
        original, filled = (jnp.take_along_axis(x, places, axis=1) for x in (original, filled))
        is_replaced = filled != original
        if self.options.target == "replaced":
            scores = model.replaced_logits(hidden)
            losses = jax.nn.softplus(scores) - scores * is_replaced
            hits = (scores > 0) == is_replaced
            return _mean(losses, hits, is_replaced, weights, ctx.accuracy)
        features, table, bias = model.restored_features(hidden)
        if self.options.positions == "masked":
            return xent.token_cross_entropy(
                features, table, bias, original, weights, accuracy=ctx.accuracy
            )
        chance = xent.token_log_probs(features, table, bias, original)
        scores = model.replaced_logits(hidden)
        # log(c [filled = original] + (1 - c) p), c = 1 - sigmoid(scores), the probability of a copy
        kept = jnp.where(is_replaced, -jnp.inf, jax.nn.log_sigmoid(-scores))
        losses = -jnp.logaddexp(kept, jax.nn.log_sigmoid(scores) + chance)
        return _mean(losses, losses < jnp.log(2.0), is_replaced, weights, ctx.accuracy)


def _mean(
    losses: jax.Array, hits: jax.Array, is_replaced: jax.Array, weights: jax.Array, accuracy: bool
) -> Pairs:
    found = {"loss": losses}
    if accuracy:
        found |= {"accuracy": hits, "replaced_rate": is_replaced}
    return {name: (jnp.sum(each * weights), jnp.sum(weights)) for name, each in found.items()}


def make(setting: Setting, options: Options) -> RTD:
    """Makes the objective."""
    return RTD(mlm.make(setting), options)
