"""Runs that train in one program: their states and batches, stacked on a leading axis K.

A single run keeps its arrays as they are.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree
from jax.sharding import NamedSharding, PartitionSpec


def stack(states: Sequence[ArrayPytree]) -> ArrayPytree:
    """Stacks the states of runs at the same step; the step is not stacked.

    Args:
      states: struct dataclasses with a field `step`; all other leaves get the leading axis K.
    """
    if len(states) == 1:
        return states[0]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    return stacked.replace(step=states[0].step)


def stack_host(trees: Sequence[ArrayPytree]) -> ArrayPytree:
    """Stacks host arrays of several runs to [K, ...]."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *v: np.stack(v), *trees)


def unstack(tree: ArrayPytree, index: int, count: int) -> ArrayPytree:
    """Returns one run's part of a tree that is stacked for `count` runs."""
    return jax.tree.map(lambda x: x[index], tree) if count > 1 else tree


def unstack_state(state: ArrayPytree, index: int, count: int) -> ArrayPytree:
    """Returns the state of one run from a stacked state."""
    if count == 1:
        return state
    return _take(state.replace(step=()), index).replace(step=jnp.copy(state.step))


@jax.jit  # with the index as an argument, so that it compiles once for all runs
def _take(tree: ArrayPytree, index: int) -> ArrayPytree:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), tree)


def train_step(step: Callable[..., tuple], kind: type, count: int) -> Callable[..., tuple]:
    """Makes a step of `count` runs, each with its own state, batch and learning rate.

    Args:
      step: (state, batch, learning_rate) -> (state, metrics), of one run.
      kind: the class of the state, as in `stack`.
      count: K; 1 gives `step` itself.
    """
    if count == 1:
        return step
    axes = kind(**{f.name: None if f.name == "step" else 0 for f in dataclasses.fields(kind)})
    return jax.vmap(step, in_axes=(axes, 0, 0), out_axes=(axes, 0))


def shardings(state: ArrayPytree, count: int) -> ArrayPytree:
    """Returns the shardings of a stacked state: every device holds its part of each run."""
    if count == 1:
        return state
    stacked = jax.tree.map(lambda s: NamedSharding(s.mesh, PartitionSpec(None, *s.spec)), state)
    return stacked.replace(step=state.step)
