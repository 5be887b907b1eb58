"""Names that a model writes into its program: names of array axes and of model parts.

The table in `scalelab/sharding.py` maps axes to the mesh. `scalelab/resources/flops.py` counts
matrix products by part. Products without a part belong to the head: objectives and classifiers run
outside the parts that models mark.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import jax
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint, with_logical_partitioning
from flax.traverse_util import flatten_dict
from flax.typing import ArrayPytree

LAYERS = "layers"  # the stacked axis 0 of every parameter inside the layer stack
GROUPS = "groups"  # the axis 0 of parameters that layers share, one entry a group of layers
VOCAB = "vocab"
POSITIONS = "positions"  # rows of a position table
SEGMENTS = "segments"  # rows of a segment table
WIDTH = "width"
TRANSFORM = "transform"  # the output side of a width-to-width kernel
HEADS = "heads"
HEAD_SIZE = "head_size"
FFN = "ffn"
CLASSES = "classes"
NORM = "norm"  # scales and shifts of normalization layers
NGRAMS = "ngrams"  # rows of a table of n-grams
BATCH = "batch"  # activations only
LENGTH = "length"  # activations only

ALL = frozenset(
    (LAYERS, GROUPS, VOCAB, POSITIONS, SEGMENTS, WIDTH, TRANSFORM, HEADS)
    + (HEAD_SIZE, FFN, CLASSES, NORM, NGRAMS, BATCH, LENGTH)
)

PARTS = ("body", "attention", "head", "embedding")
_MARK = re.compile(r"part:(\w+)")
_SHARE = re.compile(r"useful:([\d.e-]+)")
_FORWARD_ONLY = "forward_only"
UNDECAYED = "_undecayed"  # suffix of the names of parameters without weight decay


def parameter(
    module: nn.Module,
    name: str,
    init: nn.initializers.Initializer,
    names: tuple[str, ...],
    shape: tuple[int, ...],
    *,
    decay: bool = True,
) -> jax.Array:
    """Makes a float32 parameter of a module.

    Weight decay applies to it unless its name is "bias" or "scale", or ends in "_bias" (see
    `optim.adamw`), or `decay` is False. For a learned temperature write
    `parameter(self, "temperature", init, (), (), decay=False)`; its name in the parameter tree is
    then "temperature_undecayed".

    Args:
      module: the owner; call this where `module.param` may be called.
      name: the parameter's name in the module.
      init: its initializer.
      names: logical name of each axis.
      shape: its shape.
      decay: False switches weight decay off, and appends "_undecayed" to the name.
    """
    name = name if decay else name + UNDECAYED
    assert len(names) == len(shape), f"{name}: axes {names}, shape {shape}"
    value = module.param(name, with_logical_partitioning(init, names), shape)
    return value  # pyright: ignore[reportReturnType]: Flax takes it out of its box


def names_by_path(params: ArrayPytree) -> dict[str, tuple[str, ...]]:
    """Returns the axis names of boxed parameters, by path: "embed/tokens/table"."""
    boxes: dict[str, Any] = flatten_dict(params, sep="/")  # pyright: ignore[reportArgumentType]
    return {path: box.names for path, box in boxes.items()}


def group_of(layer: Any, num_layers: int, num_groups: int) -> Any:
    """Returns the index of a layer's group; `layer` is an int or a scalar array."""
    # A constant index keeps the loop's backward pass from storing the parameters of each layer.
    return 0 if num_groups == 1 else layer * num_groups // num_layers


def constrain(x: jax.Array, *names: str) -> jax.Array:
    """Constrains the sharding of an activation with named axes; does nothing without a mesh."""
    return with_logical_constraint(x, names)


def part(name: str) -> contextlib.AbstractContextManager[object]:
    """Marks the code traced inside as one of PARTS; the innermost mark decides."""
    assert name in PARTS, name
    return jax.named_scope(f"part:{name}")


def useful(share: float) -> contextlib.AbstractContextManager[object]:
    """Marks the share of the products inside that the result needs.

    Dense causal attention computes twice the scores that it uses; the literature counts half.
    """
    return jax.named_scope(f"useful:{share!r}")


def forward_only() -> contextlib.AbstractContextManager[object]:
    """Marks products without a backward pass, such as a teacher's or a sampler's."""
    return jax.named_scope(_FORWARD_ONLY)


def innermost_part(scopes: Sequence[str]) -> tuple[str, float, bool]:
    """Returns (part, share, forward_only) of a product inside `scopes`, outermost first.

    That is the innermost part, the product of the shares of `useful`, and True if the product has
    no backward pass.
    """
    found, share = "head", 1.0
    for scope in scopes:
        if mark := _MARK.search(scope):
            found = mark[1]
        if mark := _SHARE.search(scope):
            share *= float(mark[1])
    return found, share, any(_FORWARD_ONLY in scope for scope in scopes)
