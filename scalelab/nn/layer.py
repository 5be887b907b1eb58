"""Transformer layers, one Module for each place of the norms; signature (carry, ctx, cache)."""

import jax
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nn import axes
from scalelab.nn.axes import constrain
from scalelab.nn.dropout import Dropout
from scalelab.nn.masks import Context


class PostNorm(nn.Module):
    """x = norm(x + sublayer(x)), for attention and then the feed-forward network.

    Vaswani et al. 2017, 3.1; BERT, RoBERTa and the original GPT.

    Attributes:
      attention: (x, ctx, cache) -> (x, cache).
      ffn: x -> x.
      attention_norm: applied after the attention's residual sum.
      ffn_norm: applied after the feed-forward residual sum.
      dropout_rate: on the output of each sublayer.
    """

    attention: nn.Module
    ffn: nn.Module
    attention_norm: nn.Module
    ffn_norm: nn.Module
    dropout_rate: float

    def setup(self) -> None:
        """Makes the dropouts of the two sublayers."""
        self.attention_dropout = Dropout(self.dropout_rate)
        self.ffn_dropout = Dropout(self.dropout_rate)

    def init_cache(self, batch_size: int, max_len: int) -> ArrayPytree:
        """The attention's empty cache."""
        return self.attention.init_cache(batch_size, max_len)

    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Applies the layer to carry [B, T, D]."""
        mixed, cache = self.attention(carry, ctx, cache)
        x = self.attention_norm(carry + self.attention_dropout(mixed, ctx))
        x = self.ffn_norm(x + self.ffn_dropout(self.ffn(x), ctx))
        return constrain(x, axes.BATCH, axes.LENGTH, axes.WIDTH), cache


class PreNorm(nn.Module):
    """x = x + sublayer(norm(x)), for attention and then the feed-forward network.

    Radford et al. 2019, 2.3 (GPT-2). The stack needs a norm after its last layer.

    Attributes:
      attention: (x, ctx, cache) -> (x, cache).
      ffn: x -> x.
      attention_norm: applied to the attention's input.
      ffn_norm: applied to the feed-forward network's input.
      dropout_rate: on the output of each sublayer.
    """

    attention: nn.Module
    ffn: nn.Module
    attention_norm: nn.Module
    ffn_norm: nn.Module
    dropout_rate: float

    def setup(self) -> None:
        """Makes the dropouts of the two sublayers."""
        self.attention_dropout = Dropout(self.dropout_rate)
        self.ffn_dropout = Dropout(self.dropout_rate)

    def init_cache(self, batch_size: int, max_len: int) -> ArrayPytree:
        """The attention's empty cache."""
        return self.attention.init_cache(batch_size, max_len)

    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Applies the layer to carry [B, T, D]."""
        mixed, cache = self.attention(self.attention_norm(carry), ctx, cache)
        x = carry + self.attention_dropout(mixed, ctx)
        x = x + self.ffn_dropout(self.ffn(self.ffn_norm(x)), ctx)
        return constrain(x, axes.BATCH, axes.LENGTH, axes.WIDTH), cache
