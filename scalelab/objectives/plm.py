"""Permutation language modeling: the last tokens of a random order are predicted one by one.

Yang et al. 2019, 2.2 and 2.3: L = -sum_{t > c} log p(x_{z_t} | x_{z_<t}) for a random order z. Only
the last 1/K of the tokens are predicted (partial prediction). The order changes who sees whom;
tokens keep their positions. The tokens before the predicted ones see each other, as in the
reference code (zihangdai/xlnet, data_utils.py, `_local_perm`). The model needs the head "query":
states of predicted places that do not contain their tokens.

The predicted tokens are spans, as in the reference code (`_sample_mask`): one span of l tokens
in each context of K l tokens, l up to `max_span` with probabilities proportional to 1 / l, and then
single tokens until ceil(n / K) of the n tokens are predicted. `max_span` = 1 takes single tokens
alone: that is the end of a uniform order. Departs from the reference code: spans are counted in
tokens, not in words, and special tokens are seen by all and never predicted.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.config.fields import Count
from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, example_keys, mlm

NEEDS: tuple[str, ...] = ()
HEADS = ("query",)
SEES = "both"
BASELINE = Baseline("loss", None, 0.5)  # half a nat below the unigrams: the model uses the context
ARRAYS = ("ranks", "mlm_positions", "mlm_targets", "mlm_weights")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the objective."""

    predict_every: Count = 6  # K: one in K tokens is predicted; 1: all tokens
    max_span: Count = 5  # tokens of the longest predicted span


@dataclasses.dataclass(frozen=True)
class PLM:
    """Permutation language modeling; `objectives.Objective` documents the methods.

    Attributes:
      masks: an MLM, for its special tokens and its loss.
      options: which tokens are predicted.
    """

    masks: mlm.MLM
    options: Options
    name: ClassVar[str] = "plm"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = "masked"
    covers_text: ClassVar[bool] = True

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Draws an order for the batch, [B, T].

        Returns:
          The batch with its tokens unchanged, and with ranks int32 [B, T], mlm_positions and
          mlm_targets int32 and mlm_weights float32 [B, P], P = ceil(T / K); unused slots have
          position 0 and weight 0. The predicted tokens have the ranks 1, 2, ... in the order of
          prediction, all others 0: a token sees those of its rank and of lower ones.
        """
        if "mlm_positions" in batch:
            raise ValueError("plm and mlm both choose the predicted tokens: take one of them")
        keys = example_keys(rng, batch)
        made = jax.vmap(self._order_example)(batch["tokens"], batch["lengths"], keys)
        return batch | dict(zip(ARRAYS, made, strict=True))

    def _order_example(self, tokens: jax.Array, length: jax.Array, key: jax.Array) -> tuple:
        """Draws the order of one example, tokens [T]; returns ARRAYS."""
        K, max_len = self.options.predict_every, len(tokens)  # noqa: N806
        size = -(-max_len // K)
        span_key, token_key, order_key = jax.random.split(key, 3)
        eligible = self.masks.is_text(tokens, length)
        total = jnp.sum(eligible)
        slots = jnp.arange(size)
        chosen = slots < -(-total // K)

        index = jnp.cumsum(eligible) - 1  # the place in the text without special tokens
        in_span = self._in_span(span_key, index, total, size)
        draws = jax.random.uniform(token_key, (max_len,))
        # The first spans, then random tokens; a span beyond the budget is cut.
        scores = jnp.where(in_span, 2.0 - index / max_len, draws)
        _, positions = jax.lax.top_k(jnp.where(eligible, scores, -1.0), size)

        draws = jnp.where(chosen, jax.random.uniform(order_key, (size,)), 1.0 + slots)
        ranks = 1 + jnp.argsort(jnp.argsort(draws)).astype(jnp.int32)
        # Unused slots get an index out of range, which mode="drop" ignores.
        outside = jnp.where(chosen, positions, max_len)
        ranks = jnp.zeros(max_len, jnp.int32).at[outside].set(ranks, mode="drop")
        positions = jnp.where(chosen, positions, 0)
        targets = jnp.where(chosen, tokens[positions], 0)
        return ranks, positions, targets, chosen.astype(jnp.float32)

    def _in_span(self, key: jax.Array, index: jax.Array, total: jax.Array, size: int) -> jax.Array:
        """Returns True for the tokens of spans, bool [T].

        Args:
          key: random key.
          index: [T] int32, place of each token in the text.
          total: int32 [], number of tokens in the text.
          size: number of spans, enough for all contexts.
        """
        numbers = np.arange(1, self.options.max_span + 1)
        shares = np.cumsum(1 / numbers) / np.sum(1 / numbers)
        draws = jax.random.uniform(key, (size, 2))
        lengths = 1 + jnp.sum(draws[:, :1] >= jnp.array(shares[:-1]), axis=1)
        contexts = self.options.predict_every * lengths
        offsets = jnp.floor(draws[:, 1] * (contexts - lengths + 1)).astype(jnp.int32)
        begins = jnp.cumsum(contexts) - contexts + offsets
        ends = jnp.where(begins + lengths <= total, begins + lengths, 0)
        return jnp.any((index[:, None] >= begins) & (index[:, None] < ends), axis=1)

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the predicted tokens, as `MLM.losses`."""
        return self.masks.losses(model, batch, ctx)


def make(setting: Setting, options: Options) -> PLM:
    """Makes the objective.

    Raises:
      ValueError: the tokenizer has no mask token, by which evaluations name the predicted tokens.
    """
    return PLM(mlm.make(setting), options)
