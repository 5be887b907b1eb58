"""Parameters that several layers of a stack share, without copies in memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn import axes

SHARED = "shared"  # the collection of shared parameters inside the scan
Apply = Callable[..., Any]  # (layer, ...) -> ...
Params = dict[str, Any]  # part of the layer -> its parameters
Variables = dict[str, Params]  # by collection


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Which parts of a layer are shared, and by which layers (Lan et al. 2020, 3.1 and 4.5).

    Shared parameters are stacked on an axis axes.GROUPS, the others on axes.LAYERS.

    Attributes:
      num_groups: G; each group of consecutive layers shares among itself.
      parts: shared parts of the layer, such as ("attention", "attention_norm"); None: all.
    """

    num_groups: int = 1
    parts: tuple[str, ...] | None = None

    def group(self, layer: Any, num_layers: int) -> Any:
        """Returns the group of a layer, an int or a scalar array."""
        # A constant index keeps the loop's backward pass from storing the parameters of each layer.
        return 0 if self.num_groups == 1 else layer * self.num_groups // num_layers

    def split(self, params: Params) -> tuple[Params, Params]:
        """Splits the parameters of a layer by part: (own, shared)."""
        own, shared = {}, {}
        for name, part in params.items():
            (shared if self.parts is None or name in self.parts else own)[name] = part
        return own, shared


def create(scan: Apply, sharing: Sharing, num_layers: int) -> Apply:
    """Wraps the scan that makes parameters: a group keeps those made for its first layer."""
    group_of = [sharing.group(layer, num_layers) for layer in range(num_layers)]
    if set(group_of) != set(range(sharing.num_groups)):
        raise ValueError(f"{sharing.num_groups} groups of layers: expected 1 to {num_layers}")
    first = jnp.array([group_of.index(group) for group in range(sharing.num_groups)])

    def keep_first(box: Any) -> Any:
        return box.replace(value=box.value[first], names=(axes.GROUPS, *box.names[1:]))

    def keep(made: Variables) -> Variables:
        own, shared = sharing.split(made["params"])
        assert set(sharing.parts or ()) <= shared.keys(), (sharing, list(own))
        is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)  # noqa: E731
        return {"params": own | jax.tree.map(keep_first, shared, is_leaf=is_box)}

    return nn.map_variables(scan, "params", lambda _: {"params": {}}, keep, mutable=True)


def split(scan: Apply, sharing: Sharing) -> Apply:
    """Wraps the scan over layers: shared parameters go to the collection SHARED."""

    def view(found: Variables) -> Variables:
        own, shared = sharing.split(found.get("params", {}))
        return {"params": own, SHARED: nn.unbox(shared)}

    return nn.map_variables(scan, ["params", SHARED], view)


def join(apply: Apply, group: int | jax.Array) -> Apply:
    """Wraps one layer: the parameters that its group shares stand beside its own."""

    def view(found: Variables) -> Variables:
        shared = jax.tree.map(lambda x: x[group], found.get(SHARED, {}))
        return {"params": found.get("params", {}) | shared}

    return nn.map_variables(apply, ["params", SHARED], view)
