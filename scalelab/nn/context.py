"""What every layer of a net may need to know about the batch besides its input."""

import flax.struct
import jax

from scalelab.nn.masks import Mask


@flax.struct.dataclass
class Context:
    """Broadcast to all layers.

    Attributes:
      mask: who may attend to whom.
      positions: [B, T] int32, position of each token in its sequence (or cache); [1, T] where all
        examples have the same.
      examples: [B] int32, index of each example in the global batch: keys dropout.
      bias: added to attention scores, broadcastable to [B, N, T, S]; None: nothing.
      train: True turns dropout on.
    """

    mask: Mask
    positions: jax.Array
    examples: jax.Array
    bias: jax.Array | None = None
    train: bool = flax.struct.field(pytree_node=False, default=False)
