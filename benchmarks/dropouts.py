"""Dropout in other ways than scalelab.nn.dropout's, for benchmarks.profile --candidates."""

from typing import Any

import jax
import jax.numpy as jnp

from scalelab.nn import dropout

OURS = dropout.drop


def of_16_bits(x: Any, key: Any, examples: Any, rate: float) -> Any:
    """Dropout with half a word for each decision: the halves of a row share their words."""
    half = -(-x.shape[-1] // 2)
    words = dropout.random_words(key, examples, (*x.shape[:-1], half))
    both = jnp.concatenate([words & 0xFFFF, words >> 16], axis=-1)[..., : x.shape[-1]]
    return jnp.where(both >= round(rate * 2**16), x * (1.0 / (1.0 - rate)), jnp.zeros_like(x))


def mask_kept(x: Any, key: Any, examples: Any, rate: float) -> Any:
    """Dropout whose mask is written once, a byte for each element, and read in both passes."""
    keep = dropout.random_words(key, examples, x.shape) >= dropout.threshold(rate)
    keep = jax.lax.optimization_barrier(keep)
    return jnp.where(keep, x * (1.0 / (1.0 - rate)), jnp.zeros_like(x))


def mask_again(x: Any, key: Any, examples: Any, rate: float) -> Any:
    """Dropout whose mask the backward pass draws again, from words that it cannot share."""

    @jax.custom_vjp
    def dropped(x: Any, key: Any, examples: Any) -> Any:
        return OURS(x, key, examples, rate)

    def forward(x: Any, *drawn_by: Any) -> Any:
        return dropped(x, *drawn_by), drawn_by

    def backward(kept: Any, gradient: Any) -> tuple[Any, None, None]:
        return OURS(gradient, *jax.lax.optimization_barrier(kept), rate), None, None

    dropped.defvjp(forward, backward)
    return dropped(x, key, examples)


BY_NAME = {
    "dropout_16_bits": of_16_bits,
    "dropout_mask_kept": mask_kept,
    "dropout_mask_again": mask_again,
}
