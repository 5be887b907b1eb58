"""Small helpers for tests of single parts."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.nn.masks import Context, Mask

NORMAL = nn.initializers.normal(0.5)


def context(batch_size: int, length: int, *, train: bool = False, **mask: Any) -> Context:
    positions = jnp.broadcast_to(jnp.arange(length), (batch_size, length))
    return Context(Mask(**mask), positions, jnp.arange(batch_size), train=train)


def init(module: nn.Module, *args: Any, seed: int = 0, **kwargs: Any) -> Any:
    """Unboxed variables, zeros and ones replaced too, so that no parameter can hide."""
    shapes = nn.unbox(jax.eval_shape(lambda: module.init(jax.random.key(0), *args, **kwargs)))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.array(0.5 * rng.normal(size=x.shape), x.dtype), shapes)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax(scores: list[float]) -> list[float]:
    exps = [math.exp(s - max(scores)) for s in scores]
    return [e / sum(exps) for e in exps]
