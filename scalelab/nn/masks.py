"""Attention masks as structures: fields say which keys a query may see; attention expands them."""

import flax.struct
import jax
import jax.numpy as jnp

ONE_TEXT = (
    "this model reads a row as one text, but the format puts several texts into a row: set"
    " --config.format_options.across_documents=False, or choose another format or system"
)
Step = jax.Array | None  # int32 [], training steps taken so far; None: not known


@flax.struct.dataclass
class Mask:
    """Which keys a query may attend to; the fields combine by "and".

    For queries i = 0..3 and keys j = 0..3 (x = may see), lengths = 3:

        lengths alone    causal=True
        x x x .          x . . .
        x x x .          x x . .
        x x x .          x x x .
        x x x .          x x x .

    Attributes:
      lengths: [B] int32, keys at this index and beyond are padding; None: no padding.
      query_positions: [B, T] int32, index of each query among the keys; None: query i is at key i.
      visible: [B, T, 2] int32, the first key that each query sees and the key after the last, in
        place of `causal`: such masks differ by example; None: no such limits.
      ranks: [B, S] int32, place of each key in an order of prediction; None: no order.
      query_ranks: [B, T] int32, a query sees the keys of this rank and of lower ones.
      causal: a query sees no key after itself.
    """

    lengths: jax.Array | None = None
    query_positions: jax.Array | None = None
    visible: jax.Array | None = None
    ranks: jax.Array | None = None
    query_ranks: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)

    def dense(self, num_queries: int, num_keys: int) -> jax.Array:
        """Returns a mask, bool, broadcastable to [B, N, T, S], True = may see."""
        keys = jnp.arange(num_keys)[None, None, :]
        allowed = jnp.ones((1, 1, 1), bool)
        if self.visible is not None:
            first, stop = self.visible[:, :, :1], self.visible[:, :, 1:]
            allowed &= (keys >= first) & (keys < stop)
        elif self.causal:
            queries = self.query_positions
            if queries is None:
                queries = jnp.arange(num_queries)[None, :]
            allowed &= keys <= queries[:, :, None]
        if self.lengths is not None:
            allowed &= keys < self.lengths[:, None, None]
        if self.ranks is not None:
            assert self.query_ranks is not None
            allowed &= self.ranks[:, None, :] <= self.query_ranks[:, :, None]
        return allowed[:, None, :, :]


def texts_of_places(ends: jax.Array, size: int) -> jax.Array:
    """Returns the number of the text at each place of rows, int32 [B, size].

    Padding behind the texts has the number of the last one.

    Args:
      ends: [B, K] int32, the end of each text in its row, ascending.
      size: places of a row.
    """
    return jnp.sum(jnp.arange(size) >= ends[:, :-1, None], axis=1)


def bounds_of_texts(ends: jax.Array, texts: jax.Array) -> jax.Array:
    """Returns the first place and the end of texts in their rows, [B, T, 2], as `Mask.visible`.

    Args:
      ends: [B, K] int32, the end of each text in its row, ascending.
      texts: [B, T] int32, numbers of texts.
    """
    first = jnp.pad(ends[:, :-1], ((0, 0), (1, 0)))
    return jnp.take_along_axis(jnp.stack([first, ends], axis=-1), texts[..., None], axis=1)


def positions_in_texts(size: int, bounds: jax.Array | None) -> jax.Array:
    """Returns the position of each place in its text, int32 [B, size], or [1, size] for one text.

    Args:
      size: places of a row.
      bounds: [B, size, 2], as `bounds_of_texts`; None: a row is one text.
    """
    places = jnp.arange(size)[None]
    return places if bounds is None else places - bounds[..., 0]


@flax.struct.dataclass
class Context:
    """The inputs of a layer in addition to its hidden states; only `layer` differs between layers.

    Attributes:
      mask: which keys each query may attend to.
      positions: [B, T] int32, position of each token in its text (or cache); [1, T] where all
        examples have the same.
      examples: [B] int32, index of each example in the global batch: keys dropout.
      bias: added to the scores of self-attention, broadcastable to [B, N, T, S]; None: nothing.
      source: [B, S, D], the states that cross-attention reads; None: they are in its cache, or the
        model has no source.
      source_mask: which source states may be seen; None: the model has no source.
      segments: [B, S] int32, segment of each key, for attention that tells whether a key is in the
        segment of the query; None: it does not.
      step: int32 [], number of the training step; None outside training.
      layer: int32 [], index of the layer, set by the stack.
      train: True turns dropout on.
    """

    mask: Mask
    positions: jax.Array
    examples: jax.Array
    bias: jax.Array | None = None
    source: jax.Array | None = None
    source_mask: Mask | None = None
    segments: jax.Array | None = None
    step: Step = None
    layer: jax.Array | None = None
    train: bool = flax.struct.field(pytree_node=False, default=False)

    @property
    def num_real(self) -> jax.Array:
        """The number of real tokens of each row in this call, [B] int32."""
        assert self.mask.lengths is not None  # a cache counts the tokens of its rows
        return (self.positions < self.mask.lengths[:, None]).sum(axis=1)
