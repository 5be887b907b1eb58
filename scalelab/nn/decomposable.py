"""A head that compares the tokens of two texts: attend, compare, aggregate.

Parikh et al. 2016, "A decomposable attention model for natural language inference", without its
attention inside a text. On states that do not depend on position, such as word vectors, the scores
depend on the tokens of each text, not on their order.

Departs from the paper:
  - tokens are the model's pieces; the special tokens around a text count as its tokens, as the
    paper's NULL token does;
  - the networks are as wide as the model, 200 in the paper; dropout is `config.head.dropout_rate`;
  - initial kernels are Flax's default; in the paper they are normal with standard deviation 0.01.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn import axes
from scalelab.nn.attention import MASKED_SCORE
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context
from scalelab.nn.product import product

INIT = nn.initializers.lecun_normal()


class ReluLayers(nn.Module):
    """Two layers with ReLU: the paper's F, G and, without its last map, H.

    Attributes:
      width: W.
      dropout_rate: before each layer.
    """

    width: int
    dropout_rate: float

    @nn.compact
    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """Maps [B, ..., E] to [B, ..., W].

        Args:
          x: [B, ..., E].
          ctx: whether dropout is on.
        """
        for name in ("first", "second"):
            names = (axes.WIDTH,), (axes.TRANSFORM,)
            dense = Linear(*names, (self.width,), INIT, jnp.float32, name=name)
            x = jax.nn.relu(dense(Dropout(self.dropout_rate, name=f"{name}_dropout")(x, ctx)))
        return x


class DecomposableHead(nn.Module):
    """Compares two texts token by token, and classifies the sums (equations 1 to 6).

    Attributes:
      num_classes: C.
      width: W, of all layers.
      dropout_rate: before each layer, except the first and the last map.
    """

    num_classes: int
    width: int
    dropout_rate: float

    def setup(self) -> None:
        """Makes the maps: of states (5.1), F, G, H and H's last one."""
        names, classes = ((axes.WIDTH,), (axes.TRANSFORM,)), (axes.CLASSES,)
        self.project = Linear(*names, (self.width,), INIT, jnp.float32, bias_init=None)
        self.attend = ReluLayers(self.width, self.dropout_rate)
        self.compare = ReluLayers(self.width, self.dropout_rate)
        self.aggregate = ReluLayers(self.width, self.dropout_rate)
        self.out = Linear(names[0], classes, (self.num_classes,), INIT, jnp.float32)

    def read(self, hidden: jax.Array, batch: dict[str, jax.Array], ctx: Context) -> jax.Array:
        """Returns the sums of both texts side by side, equations 1 to 5: [B, 1, 2 W] float32.

        Args:
          hidden: [B, T, E], states of rows that hold both texts.
          batch: lengths [B], and second_starts [B], where the second text begins; absent: there is
            no second text.
          ctx: whether dropout is on.
        """
        hidden = hidden.astype(jnp.float32)
        size = jnp.sqrt(jnp.square(hidden).sum(axis=-1, keepdims=True) + 1e-12)
        x = self.project(hidden / size)
        places = jnp.arange(x.shape[1])
        is_token = places < batch["lengths"][:, None]
        is_second = places >= batch.get("second_starts", batch["lengths"])[:, None]
        # A token attends to those of the other text.
        seen = (is_second[:, :, None] != is_second[:, None]) & is_token[:, None]
        keys = self.attend(x, ctx)
        scores = jnp.where(seen, product("btw,bsw->bts", keys, keys), MASKED_SCORE)
        weights = jnp.where(seen, jax.nn.softmax(scores, axis=-1), 0)
        aligned = product("bts,bsw->btw", weights, x)
        compared = self.compare(jnp.concatenate([x, aligned], axis=-1), ctx)
        own = jnp.stack([is_token & ~is_second, is_token & is_second], axis=1)
        sums = product("bkt,btw->bkw", own.astype(compared.dtype), compared)
        return sums.reshape(len(x), 1, -1)

    def __call__(self, vectors: jax.Array, ctx: Context) -> jax.Array:
        """Returns the scores of vectors [B, ..., 2 W], of `read`: equation 6."""
        return self.out(self.aggregate(vectors, ctx))
