"""Dropout with masks that depend on the example, not on its place in the batch."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn.masks import Context

# Factors of the indices of an element, last axis first. Two axes of up to 65,536 never collide; the
# third (attention heads) is spread by 2^32 divided by the golden ratio.
STRIDES = (1, 2**16, 0x9E3779B1)


def _mix(x: jax.Array) -> jax.Array:
    """Permutes uint32 so that every input bit flips each output bit half of the time.

    The function "lowbias32" of Wellons 2018, "Prospecting for hash functions".
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def random_words(key: jax.Array, examples: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws 32 random bits per element: a function of key, example and element indices alone.

    Padding an example to another length does not change the bits.

    JAX's generator makes the key of each example. The indices of an element are hashed with this
    key: that is random enough for dropout, and XLA fuses it with its use. JAX's generator for each
    element would cost a fifth of the training step on CPU at length 512.

    Args:
      key: a JAX random key.
      examples: [B] int32, index of each example in the global batch.
      shape: [B, ...], of at most len(STRIDES) more axes.

    Returns:
      uint32 array of `shape`.
    """
    words = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (2,)))(examples)
    first, second = (words[:, i].reshape(-1, *(1 for _ in shape[1:])) for i in (0, 1))
    rank = len(shape)
    assert rank <= 1 + len(STRIDES), shape
    places = jnp.zeros((1,) * rank, jnp.uint32)
    for axis in range(1, rank):
        index = jax.lax.iota(jnp.uint32, shape[axis]).reshape(
            [-1 if k == axis else 1 for k in range(rank)]
        )
        places = places + index * jnp.uint32(STRIDES[rank - 1 - axis])
    return _mix(_mix(places + first) ^ second)


class Dropout(nn.Module):
    """Sets a share of the elements to zero and scales the others up, in training.

    The factor is 1 / (1 - rate) (Srivastava et al. 2014, 4).
    Splitting a batch (microbatches, devices) cannot move a mask: the random key is folded with the
    index of the example in the global batch.

    Attributes:
      rate: probability of zero, in [0, 1).
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """Applies dropout.

        Args:
          x: [B, ...].
          ctx: examples, and whether dropout is on.
        """
        if self.rate == 0.0 or not ctx.train:
            return x
        words = random_words(self.make_rng("dropout"), ctx.examples, x.shape)
        keep = words >= jnp.uint32(round(self.rate * 2**32))
        return jnp.where(keep, x * (1.0 / (1.0 - self.rate)), jnp.zeros_like(x))
