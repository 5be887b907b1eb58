"""Learning rates that fall from layer to layer towards the input."""

from typing import Any

import jax
import jax.numpy as jnp

from scalelab.optim.adamw import parameter_name


def factors(params: Any, num_layers: int, decay: float) -> Any:
    """Factors of the learning rate (Clark et al. 2020, ELECTRA, appendix B).

    The head has factor 1, layer l of L, counted from 0 at the input, decay^(L - l), and the
    embeddings have decay^(L + 1). What stands between the last layer and the head has 1.

    Args:
      params: {"body": a net's parameters, "head": ...}; layers stacked on axis 0.
      num_layers: L.
      decay: in (0, 1].

    Returns:
      A tree like `params`: float32 arrays that broadcast to the parameters.
    """
    by_layer = decay ** (num_layers - jnp.arange(num_layers, dtype=jnp.float32))

    def factor(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        name = parameter_name(path)
        if name.startswith("body/stack/"):
            return by_layer.reshape(-1, *(1 for _ in leaf.shape[1:]))
        return jnp.float32(decay ** (num_layers + 1) if name.startswith("body/embed/") else 1.0)

    return jax.tree_util.tree_map_with_path(factor, params)
