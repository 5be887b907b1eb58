"""Fine-tuning methods that train some of the parameters (Raffel et al. 2020, T5, 3.5.1).

"adapters" puts two maps with a ReLU between them behind each feed-forward network (Houlsby et al.
2019) and trains these, the norms and the head. "gradual_unfreezing" trains the last layer first,
then one layer more at a time (Howard and Ruder 2018, 3.3), in both stacks of an encoder-decoder. A
parameter that is not trained keeps its bytes.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from scalelab.nn import axes
from scalelab.nn.ffn import FeedForward
from scalelab.nn.linear import ZEROS
from scalelab.optim.adamw import parameter_name

ADAPTERS, UNFREEZING = "adapters", "gradual_unfreezing"  # values of config.method
NEW_ENCODER = "new_encoder"  # the third value of config.method; see new_encoder.py
# Name of an added module in the paths of parameters -> what it is, and the flags that make it.
ADDED = {
    "adapter": ("adapters", "--config.method=adapters and the --config.adapter_width of that run"),
    NEW_ENCODER: ("a new encoder", "--config.new_encoder_layers to the value of that run"),
}
INIT = nn.initializers.normal(stddev=0.02)
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
