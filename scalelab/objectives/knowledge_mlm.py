"""Knowledge masking: whole words, phrases or entities are hidden and predicted together.

Sun et al. 2019, "ERNIE: Enhanced Representation through Knowledge Integration", 3.2. A format such
as `doc_units` marks the units. Units are tried in a random order; a unit is hidden if it fits the
rest of the budget, mask_rate of the tokens (Devlin et al.'s rule for whole words). All tokens of a
unit become the mask token (80%) or random tokens (10%), or are kept (10%).

Each example draws its level: words, phrases or entities. The published code mixes two levels in
this way (PaddlePaddle/ERNIE, 1.0). Tokens outside phrases and entities are hidden by words. The
paper trains one level after the other: for this make three runs with different rates, each with
`--init=RUN` of the run before.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.config.fields import Share
from scalelab.formats import ENTITY, PHRASE, WORD
from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, example_keys, mlm, named_key

NEEDS = ("units",)
HEADS = ("token",)
SEES = "both"
BASELINE = Baseline("loss", None, 0.5)
LEVELS = np.array([WORD, WORD | PHRASE, WORD | ENTITY])  # bits that join tokens
ARRAYS = ("tokens", "mlm_positions", "mlm_targets", "mlm_weights")


@dataclasses.dataclass(frozen=True)
class Options:
    """Shares of the examples by level; the rest is masked by words."""

    phrase_rate: Share = 1 / 3
    entity_rate: Share = 1 / 3


@dataclasses.dataclass(frozen=True)
class KnowledgeMLM:
    """Knowledge masking; `objectives.Objective` documents the methods.

    Attributes:
      masks: the MLM with the budget, the random tokens and the loss.
      options: shares of the levels.
    """

    masks: mlm.MLM
    options: Options
    name: ClassVar[str] = "knowledge_mlm"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = "masked"
    covers_text: ClassVar[bool] = True

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Masks units of the batch [B, T]; adds the same arrays as `MLM.prepare`."""
        if "mlm_positions" in batch:
            raise ValueError("knowledge_mlm and mlm both choose the masks: take one of them")
        keys = example_keys(named_key(rng, "level"), batch)
        draws = jax.vmap(lambda key: jax.random.uniform(key))(keys)[:, None]
        own = self.options
        levels = jnp.sum(draws < jnp.array([own.phrase_rate + own.entity_rate, own.entity_rate]), 1)
        joined = batch["units"] & jnp.array(LEVELS)[levels][:, None] > 0
        given = batch["tokens"], joined, batch["lengths"], example_keys(rng, batch)
        return batch | dict(zip(ARRAYS, jax.vmap(self._mask_example)(*given), strict=True))

    def _mask_example(
        self, tokens: jax.Array, joined: jax.Array, length: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Masks one example, tokens [T]; `joined` [T]: the token continues the unit before it."""
        max_len = tokens.shape[0]
        counts = self.masks.num_chosen(max_len)
        size = int(counts[-1])
        order_key, action_key, word_key = jax.random.split(key, 3)

        eligible = self.masks.is_text(tokens, length)
        joined = jnp.pad(joined[1:] & eligible[1:] & eligible[:-1], (1, 0))
        places = jnp.arange(max_len)
        first = jax.lax.cummax(jnp.where(joined, 0, places))  # place where each token's unit begins
        sizes = jnp.zeros(max_len, jnp.int32).at[first].add(eligible)  # 0: no unit begins here
        lottery = jnp.where(eligible, jax.random.uniform(order_key, (max_len,))[first], -1.0)
        order = jnp.argsort(-lottery)
        taken = self._take(sizes[order], jnp.array(counts)[jnp.sum(eligible)])
        taken = jnp.zeros(max_len, bool).at[order].set(taken)[first]

        found, positions = jax.lax.top_k(jnp.where(taken & eligible, lottery, -1.0), size)
        units = first[positions]  # the positions of a unit are adjacent
        begins = jax.lax.cummax(jnp.where(units == positions, jnp.arange(size), 0))
        actions = jax.random.uniform(action_key, (size,))[begins]
        return self.masks.hide(tokens, positions, found >= 0, actions, word_key)

    def _take(self, sizes: jax.Array, budget: jax.Array) -> jax.Array:
        """Takes units in order if they fit the rest of the budget; size 0 means no unit: [T]."""

        def take(state: tuple) -> tuple:
            able, taken, left = state
            able &= sizes <= left
            new = able & (jnp.cumsum(jnp.where(able, sizes, 0)) <= left)
            return able & ~new, taken | new, left - jnp.sum(jnp.where(new, sizes, 0))

        start = sizes > 0, jnp.zeros(len(sizes), bool), budget
        return jax.lax.while_loop(lambda state: jnp.any(state[0]), take, start)[1]

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the hidden tokens, as `MLM.losses`."""
        return self.masks.losses(model, batch, ctx)


def make(setting: Setting, options: Options) -> KnowledgeMLM:
    """Makes the objective.

    Raises:
      ValueError: no mask token, or shares of more than 1 in all.
    """
    if (total := options.phrase_rate + options.entity_rate) > 1 + 1e-9:
        raise ValueError(
            f"config.objective_options: phrase_rate + entity_rate = {total:g}: expected at most 1;"
            " the rest of the examples is masked by words"
        )
    return KnowledgeMLM(mlm.make(setting), options)
