"""Fine-tuning methods that train some of the parameters, and the modules that they add to a model.

"adapters" (Raffel et al. 2020, T5, 3.5.1) puts two maps with a ReLU between them behind each
feed-forward network (Houlsby et al. 2019) and trains these, the norms and the head.
"gradual_unfreezing" (there too) trains the last layer first, then one layer more at a time (Howard
and Ruder 2018, 3.3), in both stacks of an encoder-decoder. A parameter that is not trained keeps
its bytes.

A new encoder reads the source of a translation (Lewis et al. 2020, BART, 3.4). Its states take the
place of the token embeddings of the pre-trained encoder, which keeps its positions and norm. So a
model of one language can learn to translate from another. "new_encoder" trains the new encoder,
these positions, and the query, key and value kernels of the first pre-trained layer. A second
fine-tuning trains all parameters. The paper gives the new encoder a vocabulary of its own. Here
both languages share one vocabulary, but the new encoder has its own token table.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.attention import PROJECTIONS
from scalelab.nn.dropout import Dropout
from scalelab.nn.embed import InputEmbed
from scalelab.nn.ffn import FeedForward
from scalelab.nn.linear import ZEROS
from scalelab.nn.masks import Context
from scalelab.nn.stack import Stack
from scalelab.optim.adamw import parameter_name

# Values of config.method.
ADAPTERS, UNFREEZING, NEW_ENCODER = "adapters", "gradual_unfreezing", "new_encoder"
# Name of an added module in the paths of parameters -> what it is, and the flags that make it.
ADDED = {
    "adapter": ("adapters", "--config.method=adapters and the --config.adapter_width of that run"),
    NEW_ENCODER: ("a new encoder", "--config.new_encoder_layers to the value of that run"),
}
INIT = nn.initializers.normal(stddev=0.02)
KERNELS = tuple(f"body/encoder/layer/attention/{name}/kernel" for name in PROJECTIONS)
POSITIONS = "body/source_embed/positions/"
Names = Mapping[str, tuple[str, ...]]  # path of a parameter -> the names of its axes


def add_adapters(module: nn.Module, width: int) -> nn.Module:
    """Returns an unbound model with an adapter of hidden size `width` behind each layer's `ffn`.

    Houlsby et al. 2019, 2.1. The output of a new adapter is 0, so that the model computes what it
    computed without it. Stacks that share a network share its adapter.

    Raises:
      ValueError: no layer has an `ffn`, or it is another network than FeedForward.
    """
    if (found := _add_adapters(module, width, {})) is module:
        raise ValueError(
            "config.method = 'adapters': the layers of this model have no feed-forward network"
        )
    return found


def _add_adapters(module: nn.Module, width: int, made: dict[int, nn.Module]) -> nn.Module:
    """`made` has the networks with adapters by the id of the old ones, which stacks may share."""
    changed = {}
    for name in {field.name for field in dataclasses.fields(module)} - {"parent", "name"}:
        value = getattr(module, name)
        if name == "ffn":
            if not isinstance(value, FeedForward):
                raise ValueError(
                    f"config.method = 'adapters': {type(value).__name__} takes no adapter"
                )
            adapter = FeedForward(width, jax.nn.relu, INIT, ZEROS, value.dtype)
            changed[name] = made.setdefault(id(value), value.clone(adapter=adapter))
        elif isinstance(value, nn.Module):
            if (new := _add_adapters(value, width, made)) is not value:
                changed[name] = new
    return module.clone(**changed) if changed else module


def is_trained(path: str, names: Names) -> bool:
    """Returns True for a parameter that "adapters" trains: of an adapter, a norm or the head."""
    parts = path.split("/")
    return parts[0] == "head" or "adapter" in parts or names[path][-1:] == (axes.NORM,)


def train_only(
    tx: optax.GradientTransformation, is_trained: Callable[[str], bool]
) -> optax.GradientTransformation:
    """Restricts `tx` to parameters by their path; the others have no optimizer state."""

    def labels(params: optax.Params) -> optax.Params:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: is_trained(parameter_name(path)),
            params,
            is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata),
        )

    frozen = optax.stateless(lambda updates, _: jax.tree.map(zero_update, updates))
    return optax.partition({True: tx, False: frozen}, labels)


def unfreeze(
    names: Names, num_layers: int, num_steps: int, embedding: Sequence[str]
) -> optax.GradientTransformation:
    """Keeps the updates of the layers that are unfrozen, for the end of an optimizer.

    The training has a stage of equal length for each layer, and a last one for the embeddings. The
    optimizer's moments of all parameters are kept from the first step. A parameter that layers
    share trains as soon as one of them does.

    Args:
      names: the axis names of each parameter; axes.LAYERS and axes.GROUPS tell the layers.
      num_layers: L.
      num_steps: steps of the training.
      embedding: paths of the subtrees that train in the last stage; (): there is no such stage.
    """
    num_stages = num_layers + bool(embedding)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        stage = state.count * num_stages // num_steps

        def keep(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
            name = parameter_name(path)
            is_open = jnp.bool_(True)
            if (axis := names[name][0] if names[name] else "") in (axes.LAYERS, axes.GROUPS):
                ends = jnp.arange(1, len(leaf) + 1)  # layers up to and with each entry's last one
                if axis == axes.GROUPS:
                    ends = -(-ends * num_layers // len(leaf))
                depth = num_layers if axis == axes.GROUPS else len(leaf)
                is_open = (ends >= depth - stage).reshape(-1, *(1 for _ in leaf.shape[1:]))
            elif any(name.startswith(f"{part}/") for part in embedding):
                is_open = stage >= num_layers
            return jnp.where(is_open, leaf, zero_update(leaf))

        kept = jax.tree_util.tree_map_with_path(keep, updates)
        return kept, optax.ScaleByScheduleState(count=state.count + 1)

    zero = lambda params: optax.ScaleByScheduleState(count=jnp.zeros((), jnp.int32))  # noqa: E731
    return optax.GradientTransformation(zero, update)


def zero_update(leaf: jax.Array) -> jax.Array:
    """Returns an update of -0.0: it leaves each bit of a parameter, where 0.0 would change -0.0."""
    return jnp.full_like(leaf, -0.0)


# --- A new encoder ----------------


class NewEncoder(nn.Module):
    """Tokens [B, S] -> hidden states [B, S, D].

    Attributes:
      embed: (batch, ctx) -> [B, S, D].
      stack: (carry, ctx, cache) -> (carry, cache), of layers that end with a norm.
    """

    embed: nn.Module
    stack: nn.Module

    def __call__(self, batch: dict[str, jax.Array], ctx: Context) -> jax.Array:
        """Reads the source.

        Args:
          batch: tokens [B, S], as for `InputEmbed`.
          ctx: mask, positions, and whether dropout is on.
        """
        return self.stack(self.embed(batch, ctx), ctx, None)[0]


class EncodedInput(nn.Module):
    """Replaces `InputEmbed`: adds positions to states of a new encoder, then norm and dropout.

    Attributes:
      new_encoder: (batch, ctx) -> [B, S, D], instead of the token embeddings.
      positions: of the pre-trained model.
      norm: of the pre-trained model.
      dropout_rate: after the norm.
      dtype: dtype of the result.
    """

    new_encoder: nn.Module
    positions: nn.Module
    norm: nn.Module
    dropout_rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, batch: dict[str, jax.Array], ctx: Context) -> jax.Array:
        """Embeds tokens: [B, S, D] of `dtype`.

        Args:
          batch: tokens [B, S], as for `InputEmbed`.
          ctx: mask, positions, and whether dropout is on.
        """
        x = self.norm(self.new_encoder(batch, ctx) + self.positions(ctx.positions))
        x = Dropout(self.dropout_rate, name="dropout")(x.astype(self.dtype), ctx)
        return axes.constrain(x, axes.BATCH, axes.LENGTH, axes.WIDTH)


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
