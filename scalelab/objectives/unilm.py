"""UniLM's cloze tasks: `mlm` with one of four attention masks for each example.

Dong et al. 2019, "Unified Language Model Pre-training for Natural Language Understanding and
Generation", 2.2 and 2.3. Segment ids tell the model which mask an example has.

| mask | a token sees | segment ids |
|---|---|---|
| bidirectional | all tokens | 0, and 1 for the second text of a pair |
| left-to-right | itself and the tokens before it | 2 |
| right-to-left | itself and the tokens after it | 3 |
| sequence-to-sequence | source: all source tokens; target: these, itself and its left | 4, 5 |

Source and target are the two texts of a pair. A format without pairs has one text: the target then
begins at a token that is drawn uniformly, but never the first. Each example draws its mask: the
number of examples per mask is binomial, and the draw is a pure function of seed, step and example.

A model with two segments reads all ids above 0 as 1, so it can tell fewer masks apart.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config.fields import Share
from scalelab.objectives import Batch, Pairs, Pass, Setting, example_keys, mlm, named_key

NEEDS, HEADS, SEES, BASELINE = mlm.NEEDS, mlm.HEADS, mlm.SEES, mlm.BASELINE
SEQ2SEQ, LEFT, RIGHT, BOTH = range(4)


@dataclasses.dataclass(frozen=True)
class Options:
    """Shares of the examples by mask (Dong et al. 2019, 2.4); the rest is bidirectional."""

    seq2seq_rate: Share = 1 / 3
    left_to_right_rate: Share = 1 / 6
    right_to_left_rate: Share = 1 / 6


@dataclasses.dataclass(frozen=True)
class UniLM:
    """UniLM's cloze tasks; `objectives.Objective` documents the methods.

    Attributes:
      masks: the MLM that chooses the tokens to predict.
      options: shares of the attention masks.
    """

    masks: mlm.MLM
    options: Options
    name: ClassVar[str] = "unilm"
    samples: ClassVar[bool] = True
    predicts: ClassVar[str | None] = "masked"
    covers_text: ClassVar[bool] = True

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Masks tokens as `MLM.prepare`; adds int32 visible [B, T, 2] and segments [B, T]."""
        kinds, cuts = self._draw(batch, named_key(rng, "attention"))
        is_pair = "second_starts" in batch
        places = jnp.arange(batch["tokens"].shape[1], dtype=jnp.int32)[None]
        second = places >= (batch["second_starts"] if is_pair else cuts)[:, None]
        prefix = jnp.where(kinds == SEQ2SEQ, jnp.sum(~second, axis=1), 0)[:, None]
        kind = kinds[:, None]
        first = jnp.where(kind == RIGHT, places, 0)
        is_open = (kind == RIGHT) | (kind == BOTH)
        stop = jnp.where(is_open, places.shape[1], jnp.maximum(places + 1, prefix))
        segments = jnp.where(kind == LEFT, 2, jnp.where(kind == RIGHT, 3, second * is_pair))
        segments = jnp.where(kind == SEQ2SEQ, 4 + second, segments)
        made = {"visible": jnp.stack([first, stop], axis=-1), "segments": segments}
        return self.masks.prepare(batch, rng) | made

    def _draw(self, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws the mask of each example [B], and the place where its target begins [B]."""
        keys = example_keys(key, batch)
        draws = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        own = self.options
        edges = jnp.array([own.seq2seq_rate, own.left_to_right_rate, own.right_to_left_rate])
        kinds = jnp.sum(draws[:, :1] >= jnp.cumsum(edges), axis=1)

        is_text = self.masks.is_text(batch["tokens"], batch["lengths"])
        before = jnp.floor(draws[:, 1] * (jnp.sum(is_text, axis=1) - 1)).astype(jnp.int32) + 1
        cuts = jnp.argmax(jnp.cumsum(is_text, axis=1) > before[:, None], axis=1)
        return kinds, cuts.astype(jnp.int32)

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of the masked tokens, as `MLM.losses`."""
        return self.masks.losses(model, batch, ctx)


def make(setting: Setting, options: Options) -> UniLM:
    """Makes the objective.

    Raises:
      ValueError: no mask token, or shares of more than 1 in all.
    """
    shares = dataclasses.asdict(options)
    if sum(shares.values()) > 1 + 1e-9:
        given = ", ".join(f"{name} = {share:g}" for name, share in shares.items())
        raise ValueError(
            f"config.objective_options: {given}: expected a sum of at most 1; the rest of the"
            " examples is bidirectional"
        )
    return UniLM(mlm.make(setting), options)
