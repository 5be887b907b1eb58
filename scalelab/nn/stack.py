"""The layer stack: one layer scanned over parameters that are stacked on axis 0, or shared."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nn import axes
from scalelab.nn.masks import Context

# The values of config.machine.remat -> results of the forward pass that are kept for the backward
# pass: all, none, or matrix products'.
REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}

# At most this many layers are unrolled: a loop costs time on CPU, measured with 2 and 9 layers, and
# unrolling costs compile time (benchmarks/RESULTS.md). Parameters are stacked in both cases.
UNROLLED_LAYERS = 10


def in_a_loop(num_layers: int, remat: str) -> bool:
    """Returns True if training runs the layers in a loop.

    With rematerialization it always does. Without a loop XLA on CPU would merge the recomputation
    with the first forward pass and keep all results.
    """
    return num_layers > UNROLLED_LAYERS or remat != "none"


# Flax collections with the result of each layer and the input of the first one, if mutable.
STATES, INPUTS = "states", "inputs"


SHARED = "shared"  # the collection of shared parameters inside the scan
Apply = Callable[..., Any]  # (layer, ...) -> ...
Params = dict[str, Any]  # part of the layer -> its parameters
Variables = dict[str, Params]  # collection -> its parameters


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

    def split(self, params: Params) -> tuple[Params, Params]:
        """Splits the parameters of a layer by part: (own, shared)."""
        own, shared = {}, {}
        for name, part in params.items():
            (shared if self.parts is None or name in self.parts else own)[name] = part
        return own, shared


class Stack(nn.Module):
    """`num_layers` applications of one layer, each with its own parameters or sharing them.

    Attributes:
      layer: (carry, ctx, cache) -> (carry, cache).
      num_layers: L.
      remat: name of a policy in REMAT_POLICIES.
      sharing: the parameters that layers share; None: none.
    """

    layer: nn.Module
    num_layers: int
    remat: str = "none"
    sharing: Sharing | None = None

    def init_cache(self, *sizes: int) -> ArrayPytree:
        """Returns the layer's empty cache for `sizes`, stacked on axis 0."""
        one = self.layer.init_cache(*sizes)
        return jax.tree.map(lambda x: jnp.zeros((self.num_layers, *x.shape), x.dtype), one)

    def __call__(
        self, carry: ArrayPytree, ctx: Context, cache: ArrayPytree
    ) -> tuple[ArrayPytree, ArrayPytree]:
        """Applies all layers; the caches of all of them are stacked on axis 0.

        If mutable, the collection STATES holds the carry after each layer, stacked, and INPUTS the
        first carry.
        """
        # Also unrolled with a cache: reading the parameters dominates a step of one token, and a
        # loop would first copy them out of their stack.
        unrolled = not in_a_loop(self.num_layers, self.remat) or cache is not None
        scan = _scan(self, unrolled, self.sharing)
        arguments = self.layer, carry, ctx, jnp.arange(self.num_layers), cache
        if self.sharing is not None:
            if self.is_initializing() and "params" not in self.layer.variables:
                _create(_scan(self, unrolled, None), self.sharing, self.num_layers)(*arguments)
            scan = _split(scan, self.sharing)
        if not self.is_initializing():
            _keep(self, INPUTS, carry)
        with axes.part("body"):
            return scan(*arguments)


def _keep(module: nn.Module, collection: str, carry: ArrayPytree) -> None:
    module.sow(collection, "carry", carry, reduce_fn=lambda _, new: new, init_fn=lambda: None)


def _scan(stack: Stack, unrolled: bool, shared: Sharing | None) -> Apply:
    """Returns the scan: (layer, carry, ctx, layer indices, cache) -> (carry, cache)."""

    def apply(
        layer: nn.Module, carry: ArrayPytree, ctx: Context, cache: ArrayPytree
    ) -> tuple[ArrayPytree, ArrayPytree]:
        carry, cache = layer(carry, ctx, cache)
        _keep(layer, STATES, carry)
        return carry, cache

    def apply_at(
        layer: nn.Module, carry: ArrayPytree, ctx: Context, index: jax.Array, cache: ArrayPytree
    ) -> tuple[ArrayPytree, ArrayPytree]:
        own = apply
        if shared is not None:
            own = _join(apply, axes.group_of(index, stack.num_layers, shared.num_groups))
        return own(layer, carry, dataclasses.replace(ctx, layer=index), cache)

    policy = REMAT_POLICIES[stack.remat]
    if policy is not None:
        apply_at = nn.remat(apply_at, policy=policy, prevent_cse=unrolled)
    return nn.scan(
        apply_at,
        variable_axes={"params": 0, STATES: 0, "intermediates": 0},
        variable_broadcast=False if shared is None else SHARED,
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast, 0, 0),  # pyright: ignore[reportArgumentType]
        out_axes=0,
        length=stack.num_layers,
        unroll=stack.num_layers if unrolled else 1,
        metadata_params={nn.PARTITION_NAME: axes.LAYERS},
    )


# --- Parameters that layers share, without copies in memory ---


def _create(scan: Apply, sharing: Sharing, num_layers: int) -> Apply:
    """Wraps the scan that makes parameters: a group keeps the parameters of its first layer."""
    group_of = [axes.group_of(n, num_layers, sharing.num_groups) for n in range(num_layers)]
    if not 1 <= sharing.num_groups <= num_layers:
        raise ValueError(
            f"num_groups={sharing.num_groups}: expected 1 to {num_layers}, the number of layers"
        )
    first = jnp.array([group_of.index(group) for group in range(sharing.num_groups)])

    def keep_first(box: Any) -> Any:
        return box.replace(value=box.value[first], names=(axes.GROUPS, *box.names[1:]))

    def keep(made: Variables) -> Variables:
        own, shared = sharing.split(made["params"])
        assert set(sharing.parts or ()) <= shared.keys(), (sharing, list(own))
        is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)  # noqa: E731
        return {"params": own | jax.tree.map(keep_first, shared, is_leaf=is_box)}

    return nn.map_variables(scan, "params", lambda _: {"params": {}}, keep, mutable=True)


def _split(scan: Apply, sharing: Sharing) -> Apply:
    """Wraps the scan over layers: shared parameters go to the collection SHARED."""

    def view(found: Variables) -> Variables:
        own, shared = sharing.split(found.get("params", {}))
        return {"params": own, SHARED: nn.unbox(shared)}

    return nn.map_variables(scan, ["params", SHARED], view)


def _join(apply: Apply, group: int | jax.Array) -> Apply:
    """Wraps one layer: it sees its own parameters and the shared ones of its group together."""

    def view(found: Variables) -> Variables:
        shared = jax.tree.map(lambda x: x[group], found.get(SHARED, {}))
        return {"params": found.get("params", {}) | shared}

    return nn.map_variables(apply, ["params", SHARED], view)
