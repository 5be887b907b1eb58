"""The encoder: every token sees every other."""

import jax
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nn.masks import Context, Mask, Step, positions_in_texts

Batch = dict[str, jax.Array]


class Encoder(nn.Module):
    """Embeddings -> layers -> hidden states, and the heads on them.

    Attributes:
      embed: (batch, ctx) -> [B, T, D], with a token table [V, E] at `tokens.table`.
      stack: (carry, ctx, cache) -> (carry, cache).
      token_head: hidden -> (features [..., E], bias) for the table that scores tokens.
      pair_head: hidden [B, T, D] -> [B, C]; None: the family has none.
      label_heads: see `nn.heads.LabelHeads`; None: the family has none.
      output_embed: the table that scores tokens; None: the table of `embed` (tied).
    """

    EMBEDDING = ("embed",)  # paths of the modules that turn tokens into vectors
    TOKEN_TABLE = "embed/tokens/table"

    embed: nn.Module
    stack: nn.Module
    token_head: nn.Module
    pair_head: nn.Module | None = None
    output_embed: nn.Module | None = None
    label_heads: nn.Module | None = None

    def __call__(
        self, batch: Batch, *, train: bool, cache: ArrayPytree = None, step: Step = None
    ) -> tuple[jax.Array, ArrayPytree]:
        """Computes hidden states [B, T, D] without a cache, as `nets.Model`.

        The batch may have second_starts [B] for pairs of texts, and visible [B, T, 2]
        (`nn.masks.Mask`) if an objective sets the attention mask; or bounds [B, T, 2]
        (`nn.masks.bounds_of_texts`) if rows have several texts, which do not see each other.
        """
        assert cache is None, "an encoder takes no cache"
        bounds = batch.get("bounds")
        mask = Mask(lengths=batch["lengths"], visible=batch.get("visible", bounds))
        positions = positions_in_texts(batch["tokens"].shape[1], bounds)
        ctx = Context(mask, positions, batch["examples"], step=step, train=train)
        hidden, _ = self.stack(self.embed(batch, ctx), ctx, None)
        return hidden, None

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., E], table [V, E] and bias [V] or None for hidden [..., D]."""
        features, bias = self.token_head(hidden)
        output = self.embed.tokens if self.output_embed is None else self.output_embed
        return features, output.table, bias

    def pair_logits(self, hidden: jax.Array) -> jax.Array:
        """Returns the scores of the two classes of a sentence pair: [B, T, D] -> [B, 2] float32.

        Raises:
          ValueError: the family has no head for pairs.
        """
        if self.pair_head is None:
            raise ValueError("this model has no pair head; build a system whose HEADS name 'pair'")
        return self.pair_head(hidden)

    def label_logits(
        self, hidden: jax.Array, task: str, num_classes: int, of_text: bool
    ) -> jax.Array:
        """Returns the scores of labels, as `nets.Model`."""
        assert self.label_heads is not None
        return self.label_heads(hidden, task, num_classes, of_text)
