"""Beam search: keeps the K most probable texts at each step.

The variant is that of `transformers` (`num_beams=K`, `early_stopping=False`), so that texts
compare. A text that ends counts only if it is among the K best at that step; 2 K candidates ensure
that K texts continue. A prompt is done when its best open text, at its present length, scores no
better than the worst of K ended ones.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.decode import prompts as prompts_lib
from scalelab.decode.stepper import Stepper

NEVER = -1e9  # of scores: worse than any text, and finite


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One continuation of a prompt.

    Attributes:
      tokens: [n] int32, without the token that ends a text.
      score: log probability / number of tokens ** length_penalty, the end token included.
      ended_by: "end", or "length" at the length limit.
    """

    tokens: np.ndarray
    score: float
    ended_by: str


def search(
    stepper: Stepper,
    prompts: Sequence[np.ndarray],
    *,
    num_beams: int,
    max_new_tokens: int,
    max_len: int,
    end_token: int | None,
    length_penalty: float = 1.0,
    rows: jax.sharding.Sharding | None = None,
) -> list[list[Hypothesis]]:
    """Continues prompts, all at once.

    Args:
      stepper: the net.
      prompts: token ids, each [n], n >= 1.
      num_beams: K.
      max_new_tokens: limit of a continuation.
      max_len: positions that the net has.
      rows: the sharding of arrays whose first axis is the prompts; None: one device.
      end_token: ends a text; None: there is none.
      length_penalty: exponent of the length that divides log probabilities.

    Returns:
      For each prompt K continuations, the best first.

    Raises:
      ValueError: as for `loop.generate`; or there are fewer than 2 K tokens to choose from.
    """
    if num_beams < 1:
        raise ValueError(f"num_beams = {num_beams}: expected at least 1")
    tokens, lengths = jax.device_put(prompts_lib.pad(prompts, max_new_tokens, max_len), rows)
    rules = _Rules(num_beams, max_new_tokens, max_len, end_token, length_penalty)
    written, scores = jax.device_get(_search(stepper, tokens, lengths, rules))
    end = -1 if end_token is None else end_token
    return [
        [_hypothesis(row, float(score), end) for row, score in zip(texts, values, strict=True)]
        for texts, values in zip(written, scores, strict=True)
    ]


def _hypothesis(row: np.ndarray, score: float, end: int) -> Hypothesis:
    ends = np.flatnonzero(row == end)
    return (
        Hypothesis(row[: ends[0]], score, "end") if len(ends) else Hypothesis(row, score, "length")
    )


def _rows(x: jax.Array, places: jax.Array) -> jax.Array:
    """Takes places [B, J] of the second axis of x [B, K, ...]."""
    return jax.vmap(lambda row, place: row[place])(x, places)


@dataclasses.dataclass(frozen=True)
class _Rules:
    """The static arguments of a search; see `search`."""

    num_beams: int
    max_new_tokens: int
    max_len: int
    end_token: int | None
    length_penalty: float

    def first(self, cache: Any, num_prompts: int) -> dict[str, Any]:
        """Returns the state after the prompts: K open texts each, nothing chosen yet."""
        nothing = jnp.zeros((num_prompts, self.num_beams, self.max_new_tokens), jnp.int32)
        zeros = nothing[:, :, 0]
        worst = jnp.full((num_prompts, self.num_beams), NEVER)
        return dict(
            step=jnp.int32(0),
            texts=nothing,
            scores=worst.at[:, 0].set(0.0),  # all texts are the prompt: one of them is enough
            chosen=zeros,
            parents=zeros,
            ended=nothing,
            ended_scores=worst,
            done=jnp.zeros((num_prompts,), bool),
            cache=jax.tree.map(lambda x: jnp.repeat(x, self.num_beams, axis=0), cache),
        )

    def take(self, logits: jax.Array, state: dict[str, Any]) -> dict[str, Any]:
        """Extends open texts by logits [B, K, V]; closes those that end."""
        count, vocab_size = state["step"] + 1, logits.shape[-1]
        totals = state["scores"][:, :, None] + jax.nn.log_softmax(logits)
        flat = totals.reshape(totals.shape[0], -1)
        best, places = jax.lax.top_k(flat, 2 * self.num_beams)
        parents, chosen = places // vocab_size, (places % vocab_size).astype(jnp.int32)
        texts = _rows(state["texts"], parents)
        texts = jax.lax.dynamic_update_slice(texts, chosen[:, :, None], (0, 0, state["step"]))
        ends = jnp.broadcast_to(count == self.max_new_tokens, chosen.shape)
        if self.end_token is not None:
            ends |= chosen == self.end_token
        scores, kept = jax.lax.top_k(jnp.where(ends, best + NEVER, best), self.num_beams)

        among_best = jnp.arange(2 * self.num_beams) < self.num_beams
        counts = ends & among_best & ~state["done"][:, None]
        final = jnp.where(counts, best / count**self.length_penalty, NEVER)
        merged = jnp.concatenate([state["ended_scores"], final], axis=1)
        ended_scores, winners = jax.lax.top_k(merged, self.num_beams)
        ended = _rows(jnp.concatenate([state["ended"], texts], axis=1), winners)
        hopeless = scores[:, 0] / count**self.length_penalty <= ended_scores[:, -1]
        return state | dict(
            step=count,
            texts=_rows(texts, kept),
            scores=scores,
            chosen=_rows(chosen, kept),
            parents=_rows(parents, kept),
            ended=ended,
            ended_scores=ended_scores,
            done=state["done"] | (hopeless & (ended_scores[:, -1] > NEVER)),
        )

    def continues(self, state: dict[str, Any]) -> jax.Array:
        """Returns whether a text may still improve."""
        return (state["step"] < self.max_new_tokens) & ~jnp.all(state["done"])


@functools.partial(jax.jit, static_argnums=3)
def _search(
    stepper: Stepper, tokens: jax.Array, lengths: jax.Array, rules: _Rules
) -> tuple[jax.Array, jax.Array]:
    """Returns the best texts' new tokens [B, K, M] and scores [B, K]."""
    num_prompts, prompt_len = tokens.shape
    num_beams = rules.num_beams
    ones = jnp.ones((num_prompts * num_beams,), jnp.int32)

    def extend(state: dict[str, Any]) -> dict[str, Any]:
        first = jnp.arange(num_prompts)[:, None] * num_beams
        origin = (first + state["parents"]).reshape(-1)
        cache = state["cache"]
        cache = cache.replace(layers=jax.tree.map(lambda x: x[origin], cache.layers))
        logits, cache = stepper(state["chosen"].reshape(-1, 1), ones, cache)
        logits = logits.reshape(num_prompts, num_beams, -1)
        return rules.take(logits, state | {"cache": cache})

    cache = stepper.init_cache(num_prompts, min(prompt_len + rules.max_new_tokens, rules.max_len))
    logits, cache = stepper(tokens, lengths, cache)
    if logits.shape[-1] < 2 * num_beams:
        raise ValueError(
            f"num_beams = {num_beams}: expected at most half of the {logits.shape[-1]} tokens"
        )
    logits = jnp.repeat(logits[:, None], num_beams, axis=1)
    state = rules.take(logits, rules.first(cache, num_prompts))
    state = jax.lax.while_loop(rules.continues, extend, state)
    return state["ended"], state["ended_scores"]
