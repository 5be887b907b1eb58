"""AdamW with parameter groups by name, at learning rate 1; the schedules of that rate.

Groups go by name because layers are stacked: a stacked bias has two dimensions, so "decay what has
two or more" would decay it. A schedule cannot tell its clock: steps, tokens, FLOPs or seconds.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab.nn import axes

NOT_DECAYED = re.compile(rf"(^|/)(bias|scale|\w+_bias|\w+{axes.UNDECAYED})$")


def parameter_name(path: jax.tree_util.KeyPath) -> str:
    """Joins a key path of a parameter tree: "stack/layers/attention/query/kernel"."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)


def is_decayed(path: jax.tree_util.KeyPath) -> bool:
    """Returns True if weight decay applies to a parameter.

    It does not apply to biases, to the scales of norms, and to parameters with `decay=False`
    (`nn.axes.parameter`).
    """
    return not NOT_DECAYED.search(parameter_name(path))


def decay_mask(params: optax.Params) -> optax.Params:
    """A tree like `params` of booleans: True where weight decay applies."""
    return jax.tree_util.tree_map_with_path(lambda path, _: is_decayed(path), params)


def _clip(norm: float) -> optax.GradientTransformation:
    """Clips by the global norm, as optax.clip_by_global_norm does.

    That divides, which XLA on CPU does in a pass of its own over every gradient; a factor is
    multiplied where the moments are made.
    """

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        factor = jnp.minimum(1.0, norm / optax.tree.norm(updates))
        return jax.tree.map(lambda g: factor * g, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


@functools.cache
def adamw(
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    clip_norm: float | None,
    parts: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """Builds AdamW (Loshchilov and Hutter 2019, algorithm 2) without a learning rate.

    Args:
      beta1: decay of the first moment.
      beta2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: decoupled, on the group that `is_decayed` names.
      clip_norm: gradients with a larger global norm are scaled down to it; None is off.
      parts: keys of the parameters, each of which counts its steps itself; (): all together.

    Returns:
      A transformation whose updates are to be multiplied by the learning rate and added; for equal
      arguments the same one, so that programs compiled with it are found again.
    """
    moments = optax.scale_by_adam(b1=beta1, b2=beta2, eps=eps)
    if parts:
        moments = optax.partition(dict.fromkeys(parts, moments), {part: part for part in parts})
    return optax.chain(
        _clip(clip_norm) if clip_norm is not None else optax.identity(),
        moments,
        optax.add_decayed_weights(weight_decay, mask=decay_mask),
        optax.scale(-1.0),
    )


# --- Schedules: (elapsed, warmup, total), on one clock -> a factor in [0, 1] ----------------

Schedule = Callable[[float, float, float], float]


def _after_warmup(elapsed: float, warmup: float, total: float) -> float:
    """Progress in [0, 1] from the end of the warm-up to the end of the budget."""
    return min(1.0, (elapsed - warmup) / max(total - warmup, 1e-30))


def linear(elapsed: float, warmup: float, total: float) -> float:
    """Linear warm-up, then linear decay to 0 (Devlin et al. 2019, A.2).

    Args:
      elapsed: steps, tokens or another clock so far.
      warmup: the clock at the end of the warm-up.
      total: the clock at the end of the training.

    Returns:
      The factor of the peak learning rate, in [0, 1].

    >>> linear(550, 100, 1000)  # half of the way from the warm-up to the end
    0.5
    """
    if elapsed < warmup:
        return elapsed / warmup
    return 1.0 - _after_warmup(elapsed, warmup, total)


def cosine(elapsed: float, warmup: float, total: float) -> float:
    """Linear warm-up, then half a cosine down to 0 (Radford et al. 2018, 4.1)."""
    if elapsed < warmup:
        return elapsed / warmup
    return 0.5 * (1.0 + math.cos(math.pi * _after_warmup(elapsed, warmup, total)))


def constant(elapsed: float, warmup: float, total: float) -> float:
    """Linear warm-up, then no decay."""
    del total
    return min(1.0, elapsed / warmup) if warmup else 1.0


# The values of config.optim.schedule.
SCHEDULES: dict[str, Schedule] = {"linear": linear, "cosine": cosine, "constant": constant}


def layerwise_factors(
    params: optax.Params,
    names: Mapping[str, tuple[str, ...]],
    num_layers: int,
    decay: float,
    embedding: Sequence[str],
) -> optax.Params:
    """Factors of the learning rate (Clark et al. 2020, ELECTRA, appendix B).

    The head has factor 1, layer l of L, counted from 0 at the input, decay^(L - l), and the
    embeddings have decay^(L + 1). What stands between the last layer and the head has 1. A
    parameter that several layers share has the mean of their factors: the paper has no such
    parameters, this rule is ours.

    Args:
      params: the parameters.
      names: axis names of each parameter by path; axes.LAYERS and axes.GROUPS tell the layers.
      num_layers: L of the shared parameters and the embeddings.
      decay: in (0, 1].
      embedding: paths of the subtrees that turn tokens into vectors.

    Returns:
      A tree like `params`: float32 arrays that broadcast to the parameters.
    """

    def factor(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        name = parameter_name(path)
        if (axis := names[name][0]) in (axes.LAYERS, axes.GROUPS):
            size = len(leaf)
            depth = size if axis == axes.LAYERS else num_layers
            factors = decay ** (depth - jnp.arange(depth, dtype=jnp.float32))
            if axis == axes.GROUPS:
                group_of = np.array([axes.group_of(layer, depth, size) for layer in range(depth)])
                factors = jnp.stack([factors[group_of == group].mean() for group in range(size)])
            return factors.reshape(-1, *(1 for _ in leaf.shape[1:]))
        below = any(name.startswith(f"{part}/") for part in embedding)
        return jnp.float32(decay ** (num_layers + 1) if below else 1.0)

    return jax.tree_util.tree_map_with_path(factor, params)
