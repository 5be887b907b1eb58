"""Masked language modeling of spans: runs of whole words are hidden and predicted.

Joshi et al. 2020, 3.1: spans of 1 to `max_span` words, their lengths geometric with `span_p`, until
mask_rate of the tokens are hidden. All tokens of a span become the mask token (80%) or random
tokens (10%), or are kept (10%). The first word of a span is uniform over the words where it fits.

On both sides of each span a token stays visible, because `sbo` reads it: spans never touch. The
reference code merges spans that touch. It also cuts the last word at the end of the budget; here
the span is shortened to whole words, so the rest of the budget is less than one word.
"""

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.config.fields import between
from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, example_keys, mlm

NEEDS: tuple[str, ...] = ()
HEADS = ("token",)
SEES = "both"
BASELINE = Baseline("loss", None, 0.5)
ARRAYS = (
    "tokens", "mlm_positions", "mlm_targets", "mlm_weights", "span_lefts", "span_rights",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the objective."""

    # Probability that a span ends after each of its words.
    span_p: Annotated[float, ("a number in (0, 1]", lambda value: 0 < value <= 1)] = 0.2
    max_span: Annotated[int, between(1, 1000)] = 10  # words of the longest span
    whole_words: bool = True  # False: a span consists of tokens, and may begin inside a word


@dataclasses.dataclass(frozen=True)
class SpanMLM:
    """Masked language modeling of spans; `objectives.Objective` documents the methods.

    Attributes:
      masks: the MLM with the budget, the random tokens and the loss.
      options: lengths of the spans.
    """

    masks: mlm.MLM
    options: Options
    name: ClassVar[str] = "span_mlm"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = "masked"
    covers_text: ClassVar[bool] = True

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Masks spans of the batch, [B, T].

        Returns:
          The batch with masked tokens, with mlm_positions (ascending), mlm_targets and mlm_weights
          as `mlm` makes them, and with span_lefts and span_rights int32 [B, P]: for each predicted
          token the positions before and after its span.
        """
        if "mlm_positions" in batch:
            raise ValueError("span_mlm and mlm both choose the masks: take one of them")
        keys = example_keys(rng, batch)
        made = jax.vmap(self._mask_example)(batch["tokens"], batch["lengths"], keys)
        return batch | dict(zip(ARRAYS, made, strict=True))

    def _mask_example(self, tokens: jax.Array, length: jax.Array, key: jax.Array) -> tuple:
        """Masks one example, tokens [T]; returns ARRAYS."""
        max_len = tokens.shape[0]
        counts = self.masks.num_chosen(max_len)
        size = int(counts[-1])
        draw_key, action_key, word_key = jax.random.split(key, 3)

        eligible = self.masks.is_text(tokens, length)
        words = jnp.cumsum(~self.masks.joined(tokens, eligible)) - 1
        sizes = jnp.zeros(max_len, jnp.int32).at[words].add(1)
        begins = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(sizes)])
        free = jnp.zeros(max_len, bool).at[words].set(eligible)
        free &= (begins[:-1] > 0) & (begins[1:] < length)
        budget = jnp.array(counts)[jnp.sum(eligible)]
        span_of_word, bounds = self._place(draw_key, free, begins, budget, size)

        spans = span_of_word[words]
        (positions,) = jnp.nonzero(spans >= 0, size=size, fill_value=0)
        chosen = jnp.arange(size) < jnp.sum(spans >= 0)
        spans = spans[positions]
        actions = jax.random.uniform(action_key, (size,))[spans]
        made = self.masks.hide(tokens, positions, chosen, actions, word_key)
        return *made, *(jnp.where(chosen, x, 0) for x in (*bounds[spans].T,))

    def _place(
        self, key: jax.Array, free: jax.Array, begins: jax.Array, budget: jax.Array, size: int
    ) -> tuple[jax.Array, jax.Array]:
        """Places spans one after another; loops until the budget is used or nothing fits.

        Args:
          key: random key of the draws.
          free: bool [T], words that a span may have.
          begins: int32 [T + 1], the first token of each word, and the one after the last.
          budget: int32 [], tokens to hide.
          size: P, spans at most.

        Returns:
          The span of each word, int32 [T], -1 for none; the positions before and after each span,
          int32 [P, 2].
        """
        places = jnp.arange(len(free))
        numbers = np.arange(1, self.options.max_span + 1)
        ends = jnp.minimum(places[:, None] + numbers, len(free))
        tokens = begins[ends] - begins[:-1, None]
        draws = jax.random.uniform(key, (size, 2))
        shares = (1 - self.options.span_p) ** (numbers - 1)
        above = draws[:, :1] >= jnp.array(np.cumsum(shares)[:-1] / shares.sum())
        lengths = 1 + jnp.sum(above, axis=1)

        def place(state: tuple) -> tuple:
            step, budget, free, spans, bounds = state
            run = jax.lax.cummin(jnp.where(free, len(free), places), reverse=True) - places
            # Number of words of the longest span that begins at each word.
            most = jnp.minimum(run, jnp.sum(tokens <= budget, axis=1))
            length = jnp.minimum(lengths[step], jnp.max(most))
            able = jnp.cumsum((most >= length) & (length > 0))
            rank = jnp.floor(draws[step, 1] * able[-1]).astype(jnp.int32)
            begin = jnp.argmax(able > jnp.minimum(rank, able[-1] - 1))
            end = begin + length
            spans = jnp.where((places >= begin) & (places < end), step, spans)
            bounds = bounds.at[step].set(jnp.stack([begins[begin] - 1, begins[end]]))
            free &= (places < begin - 1) | (places > end)
            budget = jnp.where(length > 0, budget - (begins[end] - begins[begin]), 0)
            return step + 1, budget, free, spans, bounds

        nothing = jnp.full(len(free), -1, jnp.int32), jnp.zeros((size, 2), jnp.int32)
        first = jnp.int32(0), budget, free, *nothing
        return jax.lax.while_loop(lambda s: (s[0] < size) & (s[1] > 0), place, first)[3:]

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the hidden tokens, as `MLM.losses`."""
        return self.masks.losses(model, batch, ctx)


def make(setting: Setting, options: Options) -> SpanMLM:
    """Makes the objective."""
    return SpanMLM(mlm.make(setting, mlm.Options(options.whole_words)), options)
