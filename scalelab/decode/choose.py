"""Choice of the next token by the scores of all tokens, and detection of repetition.

Scores are [B, V] float32; rows do not depend on each other.
"""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules by which the next token is chosen, in the order in which they apply.

    Raises:
      ValueError: a number is outside its range, or would have no effect.
    """

    repetition_penalty: float | None = None  # as in `penalise`; None: none
    temperature: float = 0.0  # divides scores before a token is drawn; 0 means the best token
    top_k: int | None = None  # only the best k tokens can be drawn; None: all
    # Only the fewest best tokens of this total probability can be drawn; None: all.
    top_p: float | None = None
    # A text ends when its last n tokens occur earlier in it; None: never.
    repetition_stop: int | None = None

    def __post_init__(self) -> None:
        inf = float("inf")
        for name, valid, expected in (
            ("temperature", lambda x: 0 <= x < inf, "0 (take the best token) or more"),
            ("top_k", lambda x: x >= 1 and self.temperature, "at least 1, and a temperature"),
            ("top_p", lambda x: 0 < x <= 1 and self.temperature, "(0, 1], and a temperature"),
            ("repetition_penalty", lambda x: 0 < x < inf, "a positive number, as 1.2"),
            ("repetition_stop", lambda x: x >= 1, "at least 1"),
        ):
            value = getattr(self, name)
            if value is not None and not valid(value):
                raise ValueError(f"{name} = {value}: expected {expected}")


def penalise(logits: jax.Array, seen: jax.Array, penalty: float) -> jax.Array:
    """Lowers the scores of tokens that the text already has.

    Args:
      logits: [B, V] scores.
      seen: [B, V] bool, the tokens of text and prompt.
      penalty: 1 or more; 1 changes nothing.
    """
    lowered = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(seen, lowered, logits)


def keep_top_k(logits: jax.Array, k: int) -> jax.Array:
    """Sets scores to -inf for all but the best tokens and ties with the last of them.

    Fan et al. 2018, 5.4.

    Args:
      logits: [B, V] scores.
      k: number of tokens to keep, at least 1.
    """
    if k >= logits.shape[-1]:
        return logits
    worst = jax.lax.top_k(logits, k)[0][:, -1:]
    return jnp.where(logits >= worst, logits, -jnp.inf)


def keep_top_p(logits: jax.Array, p: float) -> jax.Array:
    """Sets scores to -inf for all but the fewest best tokens of a total probability.

    Holtzman et al. 2020, 3.1; ties with the last of them are kept too.

    Args:
      logits: [B, V] scores.
      p: the total probability, in (0, 1].
    """
    ordered = -jnp.sort(-logits, axis=-1)
    chances = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(chances, axis=-1) - chances
    worst = jnp.min(jnp.where(before < p, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits >= worst, logits, -jnp.inf)


def best_tokens(logits: jax.Array) -> jax.Array:
    """Returns the first token of the highest score, of scores [B, V]: [B] int32.

    On CPU, two plain reductions are several times faster than `jnp.argmax`. NaN counts as highest.
    """
    best = jnp.max(logits, axis=-1, keepdims=True)
    places = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    is_best = (logits == best) | jnp.isnan(logits)
    return jnp.min(jnp.where(is_best, places, logits.shape[-1]), axis=-1)


def warp(logits: jax.Array, rules: Rules) -> jax.Array:
    """Applies temperature, top k and top p to scores.

    Args:
      logits: [B, V].
      rules: rules with a temperature above 0.
    """
    logits = logits / rules.temperature
    if rules.top_k is not None:
        logits = keep_top_k(logits, rules.top_k)
    if rules.top_p is not None:
        logits = keep_top_p(logits, rules.top_p)
    return logits


def choose(logits: jax.Array, rules: Rules, seen: jax.Array | None, keys: jax.Array) -> jax.Array:
    """Chooses the next token of each text.

    Args:
      logits: [B, V].
      rules: rules for choosing a token.
      seen: [B, V] bool, the tokens of each text; needed for a penalty.
      keys: [B] random keys, one per text: a draw does not depend on the other texts.

    Returns:
      [B] int32.
    """
    if rules.repetition_penalty is not None:
        assert seen is not None
        logits = penalise(logits, seen, rules.repetition_penalty)
    if rules.temperature == 0:
        return best_tokens(logits)
    return jax.vmap(jax.random.categorical)(keys, warp(logits, rules)).astype(jnp.int32)


def repeats(tokens: jax.Array, count: jax.Array, length: int) -> jax.Array:
    """Returns True if the last tokens of a text occur earlier in it, even overlapping: [B] bool.

    Args:
      tokens: [B, M].
      count: scalar, length of the texts.
      length: number of last tokens to compare.
    """
    num_windows = max(tokens.shape[1] - length, 0)
    last = jax.lax.dynamic_slice_in_dim(
        jnp.pad(tokens, ((0, 0), (length, 0))), count, length, axis=1
    )
    starts = jnp.arange(num_windows)
    windows = tokens[:, starts[:, None] + jnp.arange(length)]
    same = jnp.all(windows == last[:, None], axis=-1)
    return jnp.any(same & (starts < count - length), axis=-1)
