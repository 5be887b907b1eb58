"""Gibbs sampling from a masked model: masks one token, draws it given all others, again and again.

Wang and Cho 2019, "BERT has a Mouth, and It Must Speak". If the model's conditionals belong to one
joint distribution, the texts' distribution converges to it, at temperature 1 and without top k or
top p.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax.typing import ArrayPytree

from scalelab.decode.choose import Rules, choose

ORDERS = ("random", "left_to_right")
# (params, tokens [B, T], lengths [B], places [B]) -> scores [B, V] of the tokens at the places
Score = Callable[[ArrayPytree, jax.Array, jax.Array, jax.Array], jax.Array]


@functools.partial(
    jax.jit, static_argnums=0, static_argnames=("count", "sweeps", "order", "rules", "mask")
)
def sample(
    score: Score,
    params: ArrayPytree,
    tokens: jax.Array,
    lengths: jax.Array,
    starts: jax.Array,
    keys: jax.Array,
    *,
    count: int,
    sweeps: int,
    order: str,
    rules: Rules,
    mask: int,
) -> jax.Array:
    """Draws `count` tokens of each text, all others given.

    Args:
      score: the model.
      params: its parameters.
      tokens: [B, T] int32, the start of the chain, usually with masks.
      lengths: [B] int32.
      starts: [B] int32, the place of the first token to draw.
      keys: [B] random keys (`loop.text_keys`).
      count: number of consecutive tokens to draw.
      sweeps: number of draws of each token.
      order: in a sweep: "random", a permutation for each text and sweep, or "left_to_right".
      rules: rules for choosing a token; without penalty and repetition.
      mask: id of the mask token.

    Returns:
      [B, T] int32.
    """
    assert order in ORDERS, order
    rows, fold = jnp.arange(len(tokens)), jax.vmap(jax.random.fold_in, (0, None))
    order_keys, draw_keys = fold(keys, 0), fold(keys, 1)

    def resample(step: jax.Array, tokens: jax.Array) -> jax.Array:
        sweep, turn = jnp.divmod(step, count)
        shift = jnp.broadcast_to(turn, starts.shape)
        if order == "random":
            permute = jax.vmap(lambda key: jax.random.permutation(key, count)[turn])
            shift = permute(fold(order_keys, sweep))
        places = starts + shift
        masked = tokens.at[rows, places].set(mask)
        scores = score(params, masked, lengths, places)
        return tokens.at[rows, places].set(choose(scores, rules, None, fold(draw_keys, step)))

    return jax.lax.fori_loop(0, sweeps * count, resample, tokens)
