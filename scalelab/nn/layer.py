"""Transformer layers: one Module with norms after, one with norms before each sublayer.

A layer with cross-attention has a pair of caches: (self-attention's, cross-attention's).
"""

from functools import partial
from typing import Any, Protocol

import jax
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nn import axes
from scalelab.nn.axes import constrain
from scalelab.nn.dropout import Dropout
from scalelab.nn.masks import Context


class Layer(Protocol):
    """The signature of a layer, and of a stack of layers."""

    def __call__(
        self, carry: ArrayPytree, ctx: Context, cache: ArrayPytree
    ) -> tuple[ArrayPytree, ArrayPytree]:
        """Returns the carry after the layer, and the cache with the tokens of this call.

        Args:
          carry: [B, T, D], or another pytree.
          ctx: what the pass gives to layers: masks, positions, source, whether dropout is on.
          cache: what the layer keeps of earlier tokens; None: a whole pass.
        """
        ...


def _init_cache(layer: Any, batch_size: int, max_len: int, *source_len: int) -> ArrayPytree:
    own = layer.attention.init_cache(batch_size, max_len)
    cross = layer.cross_attention
    return own if cross is None else (own, cross.init_cache(batch_size, *source_len))


class PostNorm(nn.Module):
    """x = norm(x + sublayer(x)), for attention and then the feed-forward network.

    Vaswani et al. 2017, 3.1; BERT, RoBERTa and the original GPT.

    Attributes:
      attention: (x, ctx, cache) -> (x, cache).
      ffn: (x, ctx) -> x.
      attention_norm: applied after the attention's residual sum.
      ffn_norm: applied after the feed-forward residual sum.
      dropout_rate: dropout on the output of each sublayer.
      cross_attention: as `attention`, applied after it; None: the layer sees no source.
      cross_norm: applied as `attention_norm`, for the cross-attention.
    """

    attention: nn.Module
    ffn: nn.Module
    attention_norm: nn.Module
    ffn_norm: nn.Module
    dropout_rate: float
    cross_attention: nn.Module | None = None
    cross_norm: nn.Module | None = None

    def init_cache(self, *sizes: int) -> ArrayPytree:
        """Returns an empty cache for `sizes` B and T; B, T and S for a layer with cross-attention.

        A KeyValueCache of zeros [B, N, T, K]; with cross-attention also one of zeros [B, N, S, K].
        """
        return _init_cache(self, *sizes)

    @nn.compact
    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Applies the layer to [B, T, D], as `Layer`."""
        drop = partial(Dropout, self.dropout_rate)
        own, cross = (cache, None) if self.cross_attention is None else cache or (None, None)
        mixed, own = self.attention(carry, ctx, own)
        x = self.attention_norm(carry + drop(name="attention_dropout")(mixed, ctx))
        if self.cross_attention is not None:
            assert self.cross_norm is not None, "cross_attention needs cross_norm"
            mixed, cross = self.cross_attention(x, ctx, cross)
            x = self.cross_norm(x + drop(name="cross_dropout")(mixed, ctx))
        x = self.ffn_norm(x + drop(name="ffn_dropout")(self.ffn(x, ctx), ctx))
        cache = own if self.cross_attention is None else (own, cross)
        return constrain(x, axes.BATCH, axes.LENGTH, axes.WIDTH), cache


class PreNorm(nn.Module):
    """x = x + sublayer(norm(x)), for attention and then the feed-forward network.

    Radford et al. 2019, 2.3 (GPT-2). The stack needs a norm after its last layer. It has the
    attributes of PostNorm; each norm is applied to the input of its sublayer.
    """

    attention: nn.Module
    ffn: nn.Module
    attention_norm: nn.Module
    ffn_norm: nn.Module
    dropout_rate: float
    cross_attention: nn.Module | None = None
    cross_norm: nn.Module | None = None

    def init_cache(self, *sizes: int) -> ArrayPytree:
        """Returns an empty cache, as `PostNorm.init_cache`."""
        return _init_cache(self, *sizes)

    @nn.compact
    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Applies the layer to [B, T, D], as `Layer`."""
        drop = partial(Dropout, self.dropout_rate)
        own, cross = (cache, None) if self.cross_attention is None else cache or (None, None)
        mixed, own = self.attention(self.attention_norm(carry), ctx, own)
        x = carry + drop(name="attention_dropout")(mixed, ctx)
        if self.cross_attention is not None:
            assert self.cross_norm is not None, "cross_attention needs cross_norm"
            mixed, cross = self.cross_attention(self.cross_norm(x), ctx, cross)
            x = x + drop(name="cross_dropout")(mixed, ctx)
        x = x + drop(name="ffn_dropout")(self.ffn(self.ffn_norm(x), ctx), ctx)
        cache = own if self.cross_attention is None else (own, cross)
        return constrain(x, axes.BATCH, axes.LENGTH, axes.WIDTH), cache


class Unchanged(nn.Module):
    """A layer without parameters: it returns its input, for models whose states are the input."""

    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Returns the carry and the cache."""
        return carry, cache
