"""A new encoder before the encoder of a pre-trained model, for translation.

Lewis et al. 2020 (BART), 3.4. The new encoder reads the source. Its states take the place of the
token embeddings of the pre-trained encoder, which keeps its positions and norm. So a model of one
language can learn to translate from another. The method "new_encoder" trains the new encoder, these
positions, and the query, key and value kernels of the first pre-trained layer. A second fine-tuning
trains all parameters.

The paper gives the new encoder a vocabulary of its own. Here both languages share one vocabulary,
but the new encoder has its own token table.
"""

import copy

import jax
import optax
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.finetuning.methods import NEW_ENCODER, Names, train_only, zero_update
from scalelab.nn import axes
from scalelab.nn.attention import PROJECTIONS
from scalelab.nn.axes import constrain
from scalelab.nn.dropout import Dropout
from scalelab.nn.embed import InputEmbed
from scalelab.nn.masks import Context
from scalelab.nn.stack import Stack
from scalelab.optim.adamw import parameter_name

KERNELS = tuple(f"body/encoder/layer/attention/{name}/kernel" for name in PROJECTIONS)
POSITIONS = "body/source_embed/positions/"


class NewEncoder(nn.Module):
    """Tokens [B, S] -> hidden states [B, S, D]."""

    embed: nn.Module  # (batch, ctx) -> [B, S, D]
    stack: nn.Module  # (carry, ctx, cache) -> (carry, cache), of layers that end with a norm

    def __call__(self, batch: dict[str, jax.Array], ctx: Context) -> jax.Array:
        """Reads the source.

        Args:
          batch: tokens [B, S], as for `InputEmbed`.
          ctx: mask, positions, and whether dropout is on.
        """
        return self.stack(self.embed(batch, ctx), ctx, None)[0]


class EncodedInput(nn.Module):
    """Replaces `InputEmbed`: adds positions to states of a new encoder, then norm and dropout."""

    new_encoder: nn.Module  # (batch, ctx) -> [B, S, D], instead of the token embeddings
    positions: nn.Module  # the pre-trained model's
    norm: nn.Module  # the pre-trained model's
    dropout_rate: float  # after the norm
    dtype: DTypeLike  # dtype of the result

    @nn.compact
    def __call__(self, batch: dict[str, jax.Array], ctx: Context) -> jax.Array:
        """Embeds tokens: [B, S, D] of `dtype`.

        Args:
          batch: tokens [B, S], as for `InputEmbed`.
          ctx: mask, positions, and whether dropout is on.
        """
        x = self.norm(self.new_encoder(batch, ctx) + self.positions(ctx.positions))
        x = Dropout(self.dropout_rate, name="dropout")(x.astype(self.dtype), ctx)
        return constrain(x, axes.BATCH, axes.LENGTH, axes.WIDTH)


def add_new_encoder(body: nn.Module, num_layers: int) -> nn.Module:
    """Returns an unbound encoder-decoder that reads its source through a new encoder.

    The `num_layers` layers of the new encoder are like those of the pre-trained one.

    Raises:
      ValueError: the model has no encoder, or one without embeddings of its own.
    """
    old, stack = getattr(body, "source_embed", None), getattr(body, "encoder", None)
    if not (isinstance(old, InputEmbed) and isinstance(stack, Stack)):
        raise ValueError(
            f"config.new_encoder_layers = {num_layers}: a new encoder takes the place of the"
            " embeddings of an encoder, and this model has no encoder with embeddings of its own;"
            " bart and mass have one"
        )
    # Copied, because a Flax module in two places shares its parameters.
    new = NewEncoder(copy.deepcopy(old), copy.deepcopy(stack).clone(num_layers=num_layers))
    given = new, old.positions, old.norm, old.dropout_rate, old.dtype
    return body.clone(source_embed=EncodedInput(*given))


def train_first_step(
    tx: optax.GradientTransformation, names: Names
) -> optax.GradientTransformation:
    """Restricts `tx` to the parameters that the paper's first step trains."""
    assert set(KERNELS) <= names.keys(), "the layers of the encoder have other names"

    def is_trained(path: str) -> bool:
        parts = path.split("/")
        return parts[0] == "head" or NEW_ENCODER in parts or path.startswith((POSITIONS, *KERNELS))

    def keep_first_layer(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        if parameter_name(path) not in KERNELS:
            return leaf
        return zero_update(leaf).at[0].set(leaf[0])

    def update(updates: optax.Updates, _: object) -> optax.Updates:
        return jax.tree_util.tree_map_with_path(keep_first_layer, updates)

    return optax.chain(train_only(tx, is_trained), optax.stateless(update))
