"""A discriminator for tasks and a generator that fills masks: two towers on embeddings."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn import axes
from scalelab.nn.masks import Context, Mask, Step

Batch = dict[str, jax.Array]
Features = tuple[jax.Array, jax.Array, jax.Array | None]


class Tower(nn.Module):
    """An encoder on embeddings: projection and layers.

    Attributes:
      stack: (carry, ctx, cache) -> (carry, cache).
      projection: [B, T, E] -> [B, T, D]; None: D = E.
    """

    stack: nn.Module
    projection: nn.Module | None

    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """Maps embeddings to hidden states [B, T, D].

        Args:
          x: [B, T, E].
          ctx: mask and positions.
        """
        if self.projection is not None:
            with axes.part("embedding"):
                x = self.projection(x)
        return self.stack(x, ctx, None)[0]


class Discriminator(nn.Module):
    """A discriminator for tasks, and the generator of its pre-training.

    Attributes:
      embed: (batch, ctx) -> [B, T, E], with a token table [V, E] at `tokens.table`.
      discriminator: embeddings -> hidden states.
      generator: the same; None: the discriminator's states score tokens, too.
      token_head: generator's hidden -> (features [..., E], bias).
      replaced_head: discriminator's hidden -> scores.
      restored_head: discriminator's hidden -> (features [..., E], bias), for all-tokens MLM.
      generator_embed: as `embed`, for the generator; None: both share `embed`.
      output_embed: the table that scores the generator's tokens; None: its embedding's table.
    """

    EMBEDDING = ("embed", "discriminator/projection")
    TOKEN_TABLE = "embed/tokens/table"

    embed: nn.Module
    discriminator: Tower
    generator: Tower | None
    token_head: nn.Module
    replaced_head: nn.Module
    restored_head: nn.Module
    generator_embed: nn.Module | None = None
    output_embed: nn.Module | None = None

    def __call__(
        self, batch: Batch, *, train: bool, cache: None = None, step: Step = None
    ) -> tuple[jax.Array, None]:
        """Computes the discriminator's hidden states [B, T, D]; arguments as `Encoder`."""
        assert cache is None, "an encoder takes no cache"
        return self._states(self.embed, self.discriminator, batch, train, step), None

    def token_states(self, batch: Batch, *, train: bool, step: Step = None) -> jax.Array:
        """Computes the generator's hidden states [B, T, D of the generator]."""
        embed, tower = self.generator_embed or self.embed, self.generator or self.discriminator
        return self._states(embed, tower, batch, train, step)

    def _states(
        self, embed: Callable[..., jax.Array], tower: Tower, batch: Batch, train: bool, step: Step
    ) -> jax.Array:
        positions = jnp.arange(batch["tokens"].shape[1])[None]
        mask = Mask(lengths=batch["lengths"], visible=batch.get("visible"))
        ctx = Context(mask, positions, batch["examples"], step=step, train=train)
        return tower(embed(batch, ctx), ctx)

    def token_features(self, hidden: jax.Array) -> Features:
        """Returns features [..., E], table and bias for the generator's hidden states [..., D]."""
        features, bias = self.token_head(hidden)
        output = self.output_embed or (self.generator_embed or self.embed).tokens
        return features, output.table, bias

    def replaced_logits(self, hidden: jax.Array) -> jax.Array:
        """Returns the scores [B, T] of the discriminator's states; positive means replaced."""
        return self.replaced_head(hidden)

    def restored_features(self, hidden: jax.Array) -> Features:
        """Returns features, table and bias to restore tokens from the discriminator's states."""
        features, bias = self.restored_head(hidden)
        return features, self.embed.tokens.table, bias
