"""Word vectors: tell a token's neighbors from noise tokens (Mikolov et al. 2013, 2013b).

In a skip-gram a token's state v scores each neighbor by its row u of the output table, s = v u;
in CBOW the mean of the neighbors' states scores the token. With every true token come k noise
tokens, drawn from the noise distribution q.

  negative sampling (2013b, equation 4):  L = -log sigmoid(s_true) - sum_k log sigmoid(-s_noise)
  noise-contrastive estimation (Gutmann and Hyvarinen 2010):  the same of s - log(k q)

With q = the tokens' frequencies the optimum of the first is s = PMI - log k (Levy and Goldberg
2014). That of the second is s = log p(true token given the other), for any q.

The farthest neighbor is drawn for each token, from 1 to `window` (2013, 3.1 and 3.2). q is counted
in the batch: the frequencies of its tokens to the power of 0.75 (2013b, 2.2), so that the examples
of a batch depend on each other. word2vec.c counts the corpus, skips a noise token that is the true
one, and leaves out some of the frequent tokens; neither of the latter is done here. A skip-gram
draws k noise tokens for each token, not for each pair, which has the same mean. In CBOW word2vec.c
moves each of n neighbors by the gradient of their mean, which is n times the gradient of the loss.
Special tokens count as tokens.
"""

import dataclasses
import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config.fields import Count, Share, choice
from scalelab.nn.product import product
from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, example_keys

NEEDS: tuple[str, ...] = ()
HEADS = ("neighbor",)
SEES = "both"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the objective."""

    pairs: Annotated[str, choice("skip_gram", "cbow")] = "skip_gram"
    loss: Annotated[str, choice("negative_sampling", "nce")] = "negative_sampling"
    window: Count = 5  # W, tokens on each side at most
    negatives: Count = 5  # k, noise tokens for each true one
    noise_power: Share = 0.75  # power of the batch's frequencies


def _baseline(options: Options) -> Baseline:
    """Returns the loss if noise always has the probability k / (k + 1).

    Frequencies alone gain up to 0.25 nats (Zipf's law, V = 30,000, k = 5), hence the margin.
    """
    k = options.negatives
    return Baseline("loss", math.log(1 + k) + k * math.log(1 + 1 / k), 0.3)


BASELINE = _baseline


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """Neighbors against noise; `objectives.Objective` documents the methods."""

    vocab_size: int
    options: Options
    name: ClassVar[str] = "word_vectors"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = None
    crosses_examples: ClassVar[bool] = True

    def noise(self, batch: Batch) -> jax.Array:
        """Returns q [V] float32 of a batch with tokens [B, T] and lengths [B]."""
        tokens = batch["tokens"]
        is_token = jnp.arange(tokens.shape[1]) < batch["lengths"][:, None]
        counts = jnp.zeros(self.vocab_size, jnp.float32).at[tokens].add(is_token, mode="drop")
        powers = jnp.where(counts > 0, counts**self.options.noise_power, 0.0)
        return powers / jnp.maximum(powers.sum(), 1.0)

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Draws windows and noise.

        Returns:
          The batch with reach [B, T] int32, noise_tokens [B, T, k] int32, and the logs of q at
          these and at the tokens: noise_logs [B, T, k], token_logs [B, T] float32.
        """
        tokens, given, q = batch["tokens"], self.options, self.noise(batch)
        limits, logs = jnp.cumsum(q), jnp.log(jnp.maximum(q, 1e-30))

        def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            first, second = jax.random.split(key)
            shape = (tokens.shape[1], given.negatives)
            drawn = jax.random.uniform(second, shape) * limits[-1]
            found = jnp.searchsorted(limits, drawn, side="right").clip(max=self.vocab_size - 1)
            return jax.random.randint(first, shape[:1], 1, given.window + 1), found

        reach, drawn = jax.vmap(draw)(example_keys(rng, batch))
        made = {"reach": reach, "noise_tokens": drawn.astype(jnp.int32)}
        return batch | made | {"noise_logs": logs[drawn], "token_logs": logs[tokens]}

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the mean loss of a true token with its k noise tokens."""
        k, window, tokens = self.options.negatives, self.options.window, batch["tokens"]
        states, true, true_logs = ctx.hidden(model, batch), tokens, batch["token_logs"]
        places, lengths = jnp.arange(tokens.shape[1]), batch["lengths"][:, None, None]
        steps = jnp.array([*range(-window, 0), *range(1, window + 1)])
        others = places[:, None] + steps  # [T, 2 W]
        near = (others >= 0) & (others < lengths) & (places[:, None] < lengths)
        near &= jnp.abs(steps) <= batch["reach"][..., None]
        index = others.clip(0, len(places) - 1)
        if self.options.pairs == "skip_gram":
            counts = near.astype(jnp.float32)
            true, true_logs = (jnp.take(x, index, axis=1) for x in (true, true_logs))
        else:
            chosen = jnp.where(near[..., None], jnp.take(states, index, axis=1), 0)
            states = chosen.sum(axis=2) / near.sum(axis=2)[..., None].clip(1).astype(states.dtype)
            counts = near.any(axis=2)[..., None].astype(jnp.float32)
            true, true_logs = true[..., None], true_logs[..., None]
        features, table, _ = model.token_features(states)
        scored = jnp.concatenate([true, batch["noise_tokens"]], axis=-1)
        rows = jnp.take(table, scored, axis=0, mode="clip").astype(features.dtype)
        scores = product("btd,btjd->btj", features, rows)
        if self.options.loss == "nce":
            scores -= math.log(k) + jnp.concatenate([true_logs, batch["noise_logs"]], axis=-1)
        losses = (jax.nn.softplus(-scores[..., :-k]) * counts).sum(axis=-1)
        losses += jax.nn.softplus(scores[..., -k:]).sum(axis=-1) * counts.sum(axis=-1)
        return {"loss": (losses.sum(), counts.sum())}


def make(setting: Setting, options: Options) -> WordVectors:
    """Makes the objective."""
    return WordVectors(setting.vocab_size, options)
