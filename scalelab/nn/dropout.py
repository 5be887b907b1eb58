"""Dropout whose masks belong to examples, not to places in a batch."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn.masks import Context

# Of the indices of a place, the last axis first: two axes of up to 65,536 never meet, and the third
# (attention heads) is thrown far off, by the golden ratio of 2^32.
STRIDES = (1, 2**16, 0x9E3779B1)


def _mix(x: jax.Array) -> jax.Array:
    """Permutes uint32 so that every input bit flips each output bit half of the time.

    The function "lowbias32" of C. Wellons, "Prospecting for hash functions" (2018).
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def example_words(key: jax.Array, examples: jax.Array) -> jax.Array:
    """Two random words of each example [B] -> [B, 2] uint32, by JAX's own generator."""
    return jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (2,)))(examples)


def hashed(places: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """32 random bits of each place of an example that has these two words; all uint32."""
    return _mix(_mix(places + first) ^ second)


def random_words(key: jax.Array, examples: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws 32 random bits per element: a function of key, example and place in the example alone.

    A place is made of its indices, so that padding an example to another length moves nothing.

    JAX's own generator makes the key of each example. Within one, places are hashed with that key:
    dropout needs no more, it fuses with what uses it, and the generator's twenty rounds for each
    element would take a fifth of the training step on CPU at length 512.

    Args:
      key: a JAX random key.
      examples: [B] int32, index of each example in the global batch.
      shape: [B, ...], of at most len(STRIDES) more axes.

    Returns:
      uint32 array of `shape`.
    """
    words = example_words(key, examples)
    first, second = (words[:, i].reshape(-1, *(1 for _ in shape[1:])) for i in (0, 1))
    rank = len(shape)
    assert rank <= 1 + len(STRIDES), shape
    places = jnp.zeros((1,) * rank, jnp.uint32)
    for axis in range(1, rank):
        index = jax.lax.iota(jnp.uint32, shape[axis]).reshape(
            [-1 if k == axis else 1 for k in range(rank)]
        )
        places = places + index * jnp.uint32(STRIDES[rank - 1 - axis])
    return hashed(places, first, second)


def threshold(rate: float) -> jax.Array:
    """Words from which on an element is kept."""
    return jnp.uint32(round(rate * 2**32))


def drop(x: jax.Array, key: jax.Array, examples: jax.Array, rate: float) -> jax.Array:
    """Sets a share `rate` of x [B, ...] to zero and scales the rest up; see random_words."""
    keep = random_words(key, examples, x.shape) >= threshold(rate)
    return jnp.where(keep, x * (1.0 / (1.0 - rate)), jnp.zeros_like(x))


class Dropout(nn.Module):
    """Sets a share of the elements to zero and scales the others up, in training.

    Splitting a batch (microbatches, devices) cannot move a mask: the random key is folded with the
    index of the example in the global batch.

    Attributes:
      rate: probability of zero, in [0, 1).
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """Applies dropout to x [B, ...]."""
        if self.rate == 0.0 or not ctx.train:
            return x
        return drop(x, self.make_rng("dropout"), ctx.examples, self.rate)
