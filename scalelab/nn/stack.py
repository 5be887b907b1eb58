"""The layer stack: one layer scanned over parameters that are stacked on axis 0."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.helpers.names import nearest
from scalelab.nn import axes
from scalelab.nn.masks import Context

# What the backward pass of a layer may keep: everything, nothing, or results of matrix products.
REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}

# So few layers run without a loop, whose bookkeeping costs time on CPU, at two layers and at nine;
# compiling takes longer for it (benchmarks/RESULTS.md). The parameters are stacked all the same.
UNROLLED_LAYERS = 10


def in_a_loop(num_layers: int, remat: str) -> bool:
    """Whether training runs the layers in a loop.

    Always where something is to be recomputed: only a loop keeps XLA on CPU from merging the two
    forward passes, and keeping it all.
    """
    return num_layers > UNROLLED_LAYERS or remat != "none"


STATES = "states"  # the collection into which each layer puts its result, where somebody asks


class Stack(nn.Module):
    """`num_layers` copies of one layer, each with its own parameters.

    Attributes:
      layer: (carry, ctx, cache) -> (carry, cache).
      num_layers: L.
      remat: name of a policy in REMAT_POLICIES.
    """

    layer: nn.Module
    num_layers: int
    remat: str = "none"

    def init_cache(self, batch_size: int, max_len: int) -> ArrayPytree:
        """The layer's empty cache, stacked on axis 0."""
        one = self.layer.init_cache(batch_size, max_len)
        return jax.tree.map(lambda x: jnp.zeros((self.num_layers, *x.shape), x.dtype), one)

    def __call__(
        self, carry: ArrayPytree, ctx: Context, cache: ArrayPytree
    ) -> tuple[ArrayPytree, ArrayPytree]:
        """Applies all layers.

        Args:
          carry: any pytree, such as [B, T, D].
          ctx: the same for all layers.
          cache: None, or a pytree with leading axis L.

        Returns:
          The carry after the last layer, and the caches after each layer, stacked. Who applies the
          net with mutable=[STATES] also finds there the carry after each layer, stacked.
        """
        if self.remat not in REMAT_POLICIES:
            raise ValueError(
                f"unknown remat policy {self.remat!r}: {nearest(self.remat, REMAT_POLICIES)}"
            )

        policy = REMAT_POLICIES[self.remat]
        # With a cache, too: a step of one token takes as long as reading the parameters does, and a
        # loop would first copy them out of their stack.
        unrolled = not in_a_loop(self.num_layers, self.remat) or cache is not None

        def apply(
            layer: nn.Module, carry: ArrayPytree, ctx: Context, cache: ArrayPytree
        ) -> tuple[ArrayPytree, ArrayPytree]:
            carry, cache = layer(carry, ctx, cache)
            layer.sow(STATES, "carry", carry, reduce_fn=lambda _, new: new, init_fn=lambda: None)
            return carry, cache

        if policy is not None:
            apply = nn.remat(apply, policy=policy, prevent_cse=unrolled)
        scan = nn.scan(
            apply,
            variable_axes={"params": 0, STATES: 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(nn.broadcast, 0),  # pyright: ignore[reportArgumentType]
            out_axes=0,
            length=self.num_layers,
            unroll=self.num_layers if unrolled else 1,
            metadata_params={nn.PARTITION_NAME: axes.LAYERS},
        )
        with axes.part("body"):
            return scan(self.layer, carry, ctx, cache)
