"""Masked language modeling: some tokens are hidden and predicted from all others.

Devlin et al. 2019, 3.1: of the n tokens that are not special, ceil(0.15 n) are chosen; of these
80% become the mask token, 10% a random token, and 10% are kept. The draw is new at every step (Liu
et al. 2019, 4.1), unless config.mask_copies keeps the draws of an example.

With `whole_words` all tokens of a word are chosen, or none (google-research/bert,
create_pretraining_data.py, "whole word masking"). Words are tried in a random order; a word is
skipped if it does not fit the rest of the ceil(0.15 n) tokens. The replacement is drawn for each
token. The tokenizer determines the words: in WordPiece a punctuation mark is a word, in byte-level
BPE it belongs to the word before it.
"""

import dataclasses
import fractions
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, example_keys, xent

NEEDS: tuple[str, ...] = ()
HEADS = ("token",)
SEES = "both"
BASELINE = Baseline("loss", None, 0.5)  # half a nat below the unigrams: the model uses the context

MASKED, RANDOM = 0.8, 0.1  # shares of the chosen tokens; the rest is kept


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the objective."""

    whole_words: bool | None = None  # True: a word's tokens are chosen together; None: separately


@dataclasses.dataclass(frozen=True)
class MLM:
    """Masked language modeling; `objectives.Objective` documents the methods.

    Attributes:
      vocab_size: V.
      mask_id: id of the mask token.
      special_ids: ids that are never chosen and never replace a token.
      mask_rate: share of tokens to predict.
      joins: as in `Setting`, if words are chosen whole; else None.
    """

    vocab_size: int
    mask_id: int
    special_ids: tuple[int, ...]
    mask_rate: float = 0.15
    joins: bytes | None = None
    name: ClassVar[str] = "mlm"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = "masked"
    covers_text: ClassVar[bool] = True

    def num_chosen(self, max_len: int) -> np.ndarray:
        """Returns ceil(mask_rate * n) for n = 0 ... max_len: [max_len + 1] int32.

        It uses fractions, because a float product may exceed an integer and round up.
        """
        rate = fractions.Fraction(str(self.mask_rate))
        return np.array([math.ceil(rate * n) for n in range(max_len + 1)], np.int32)

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Masks the tokens of the batch, [B, T].

        Returns:
          The batch with masked tokens, and with mlm_positions, mlm_targets int32 and mlm_weights
          float32, all [B, P], P = ceil(mask_rate * T); unused slots have position 0 and weight 0.
          A batch with masks is returned unchanged.
        """
        if "mlm_positions" in batch:
            return batch
        keys = example_keys(rng, batch)
        mask_batch = jax.vmap(self._mask_example)
        tokens, positions, targets, weights = mask_batch(batch["tokens"], batch["lengths"], keys)
        masked = dict(
            tokens=tokens, mlm_positions=positions, mlm_targets=targets, mlm_weights=weights
        )
        return batch | masked

    def _mask_example(self, tokens: jax.Array, length: jax.Array, key: jax.Array) -> tuple:
        """Masks one example, tokens [T]."""
        max_len = tokens.shape[0]
        counts = self.num_chosen(max_len)
        size = int(counts[-1])
        order_key, action_key, word_key = jax.random.split(key, 3)

        eligible = self.is_text(tokens, length)
        count = jnp.array(counts)[jnp.sum(eligible)]
        draws = jax.random.uniform(order_key, (max_len,))
        if self.joins is not None:
            draws, count = self._choose_words(draws, tokens, eligible, count)
        _, positions = jax.lax.top_k(jnp.where(eligible, draws, -1.0), size)
        chosen = jnp.arange(size) < count
        actions = jax.random.uniform(action_key, (size,))
        return self.hide(tokens, positions, chosen, actions, word_key)

    def _choose_words(
        self, draws: jax.Array, tokens: jax.Array, eligible: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Chooses words of tokens [T] with at most `count` tokens, in the order of `draws` [T].

        Returns scores [T], which are highest at chosen tokens, and the number of chosen tokens.
        """
        words = jnp.cumsum(~self.joined(tokens, eligible)) - 1
        sizes = jnp.zeros_like(words).at[words].add(eligible)

        def take(left: jax.Array, word: jax.Array) -> tuple[jax.Array, jax.Array]:
            taken = (sizes[word] > 0) & (sizes[word] <= left)
            return left - jnp.where(taken, sizes[word], 0), taken

        order = jnp.argsort(draws)
        left, taken = jax.lax.scan(take, count, order)
        return jnp.zeros(len(draws)).at[order].set(taken)[words], count - left

    def joined(self, tokens: jax.Array, eligible: jax.Array) -> jax.Array:
        """Returns True for tokens that continue the word before: [T] bool.

        Args:
          tokens: [T] int32.
          eligible: [T] bool, False for special tokens.
        """
        if self.joins is None:
            return jnp.zeros(tokens.shape, bool)
        marks = jnp.array(np.frombuffer(self.joins, np.uint8))[tokens]
        joined = (marks[1:] & 1 | marks[:-1] & 2) > 0
        return jnp.pad(joined & eligible[1:] & eligible[:-1], (1, 0))

    def is_text(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        """Returns True for tokens that are neither special nor padding: bool [..., T].

        Args:
          tokens: [..., T].
          lengths: [...].
        """
        special = jnp.isin(tokens, jnp.array(self.special_ids, tokens.dtype))
        return (jnp.arange(tokens.shape[-1]) < lengths[..., None]) & ~special

    def hide(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        chosen: jax.Array,
        actions: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Replaces the chosen tokens of one example.

        Args:
          tokens: [T].
          positions: [P] int32.
          chosen: [P] bool; slots without a chosen position are False.
          actions: [P] uniform draws that decide between mask, random token and no change.
          key: random key for the random tokens.

        Returns:
          The tokens [T], and positions, targets and weights [P] as `prepare` describes them.
        """
        targets = jnp.where(chosen, tokens[positions], 0)
        new = jnp.where(
            actions < MASKED + RANDOM, self._random_tokens(key, len(positions)), targets
        )
        new = jnp.where(actions < MASKED, self.mask_id, new).astype(tokens.dtype)
        # Unchosen slots get an index out of range, which mode="drop" ignores.
        tokens = tokens.at[jnp.where(chosen, positions, len(tokens))].set(new, mode="drop")
        return tokens, jnp.where(chosen, positions, 0), targets, chosen.astype(jnp.float32)

    def _random_tokens(self, key: jax.Array, size: int) -> jax.Array:
        """Draws `size` ids, uniform over the vocabulary without its special tokens."""
        return self.ordinary(jax.random.randint(key, (size,), 0, self.num_ordinary))

    @property
    def num_ordinary(self) -> int:
        """The size of the vocabulary without its special tokens."""
        return self.vocab_size - len(set(self.special_ids))

    def ordinary(self, ranks: jax.Array) -> jax.Array:
        """Maps ranks in [0, num_ordinary), of any shape, to the ids of ordinary tokens."""
        for special in sorted(set(self.special_ids)):
            ranks = ranks + (ranks >= special)
        return ranks

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the chosen tokens; the head reads only P positions."""
        places = batch["mlm_positions"][..., None]
        chosen = jnp.take_along_axis(ctx.token_hidden(model, batch), places, axis=1)
        features, table, bias = model.token_features(chosen)
        targets, weights = batch["mlm_targets"], batch["mlm_weights"]
        return xent.token_cross_entropy(
            features, table, bias, targets, weights, accuracy=ctx.accuracy
        )


def make(setting: Setting, options: Options = Options()) -> MLM:  # noqa: B008
    """Makes the objective.

    Raises:
      ValueError: no mask token.
    """
    ids = setting.special_ids
    joins = setting.joins if options.whole_words else None
    return MLM(setting.vocab_size, ids["mask"], tuple(ids.values()), setting.mask_rate, joins)
