"""The training state as one value, made sharded from abstract shapes."""

import functools
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from scalelab import sharding
from scalelab.objectives import (
    init_params,
    named_key,
)  # fmt: skip


@flax.struct.dataclass
class TrainState:
    """All that a step changes.

    Attributes:
      step: int32 [], steps taken so far.
      params: the net's parameters, float32; layers stacked on axis 0.
      opt_state: the optimizer's state.
      rng: key data of the run's root key, uint32; each step folds its number in.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    rng: jax.Array


def fresh(
    key: jax.Array,
    net: nn.Module,
    objectives: Any,
    tx: optax.GradientTransformation,
    *,
    max_len: int,
) -> TrainState:
    """Initialises a state, its parameters still boxed with the names of their axes.

    Args:
      key: of the parameters, and of every later draw.
      net: the unbound net.
      objectives: what is trained; only parameters that they use come to exist.
      tx: the optimizer.
      max_len: length of the example to trace with; must be no longer than the net's positions.
    """
    params = init_params(key, net, objectives, max_len=max_len)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=tx.init(params),
        rng=jax.random.key_data(named_key(key, "train")),
    )


def create(
    net: nn.Module,
    objectives: Any,
    tx: optax.GradientTransformation,
    *,
    max_len: int,
    seed: int,
    mesh: Mesh,
) -> tuple[TrainState, TrainState]:
    """Initialises a run's state directly on its devices; no array is ever whole on one of them.

    Args:
      net: the unbound net.
      objectives: what is trained; only parameters that they use come to exist.
      tx: the optimizer.
      max_len: length of the example to trace with; must be no longer than the net's positions.
      seed: of the parameters, and of every later draw.
      mesh: the devices.

    Returns:
      The state, and a tree like it of shardings.
    """
    init, placed = _initialiser(net, tuple(objectives), tx, max_len, mesh)
    with jax.set_mesh(mesh):
        return init(jax.random.key(seed)), placed


@functools.lru_cache(maxsize=2)  # so that other seeds of one net do not compile it again
def _initialiser(
    net: nn.Module, objectives: Any, tx: optax.GradientTransformation, max_len: int, mesh: Mesh
) -> tuple[Any, TrainState]:
    """Key -> state on its devices, compiled; and the shardings."""

    def init(key: jax.Array) -> TrainState:
        return fresh(key, net, objectives, tx, max_len=max_len)

    placed = sharding.shardings(jax.eval_shape(init, jax.random.key(0)), mesh)
    return jax.jit(lambda key: nn.unbox(init(key)), out_shardings=placed), placed
