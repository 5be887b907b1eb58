"""Beam search: keeps the K most probable texts at each step (Sutskever et al. 2014, 3.2).

The variant is the one in `transformers` (`num_beams=K`, `length_penalty`, `early_stopping=False`),
so that texts are comparable. A text that ends counts only if it is among the K best at that step.
2 K candidates ensure that K texts continue. A prompt is done when its best open text, at its
present length, does not score better than the worst of K ended texts.

Each of the K texts has its own copy of the prompt's cache, the projected source included.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.decode.loop import Continuation, State, check, fill, in_parts
from scalelab.decode.stepper import Reader, Source

NEVER = -1e9  # a score worse than any text's, and finite


def search(
    stepper: Reader,
    prompts: Sequence[np.ndarray],
    *,
    num_beams: int,
    max_new_tokens: int,
    max_len: int,
    end_token: int | None,
    length_penalty: float = 1.0,
    rows: jax.sharding.Sharding | None = None,
    sources: Sequence[np.ndarray] | None = None,
) -> list[list[Continuation]]:
    """Continues prompts, all at once.

    Args:
      stepper: the model.
      prompts: token ids, each [n], n >= 1.
      num_beams: K.
      max_new_tokens: limit of a continuation.
      max_len: the model's number of positions.
      end_token: id of the token that ends a text; None: there is none.
      length_penalty: power of the length that divides a log probability: 0 prefers short texts,
        1 is the mean over tokens, more prefers long texts.
      rows: sharding of the axis of prompts, the first axis of arrays; None: one device.
      sources: token ids of each prompt's source; None: the model has none.

    Returns:
      For each prompt K continuations, the best first. The score is the log probability divided by
      a power of the number of tokens, the end token included.

    Raises:
      ValueError: as in `loop.check`; or the vocabulary has fewer than 2 K tokens.
    """
    check(prompts, max_new_tokens, max_len)
    given = (*fill(prompts, max_len), sources and fill(sources, max_len))
    sizes = (num_beams, max_new_tokens, max_len, end_token, length_penalty)
    written, scores = in_parts(
        lambda *own: search_rows(stepper, *own, *sizes), given, rows, num_beams
    )

    def cut(row: np.ndarray, score: np.ndarray) -> Continuation:
        ends = np.flatnonzero(row == (-1 if end_token is None else end_token))
        tokens = row[: ends[0]] if len(ends) else row
        return Continuation(tokens, "end" if len(ends) else "length", float(score))

    return [list(map(cut, *found)) for found in zip(written, scores, strict=True)]


def _take_rows(x: jax.Array, places: jax.Array) -> jax.Array:
    """Selects `places` [B, J] of the second axis of x [B, K, ...]: [B, J, ...]."""
    return jax.vmap(lambda row, place: row[place])(x, places)


@functools.partial(jax.jit, static_argnums=(4, 5, 6, 7, 8))
def search_rows(
    stepper: Reader,
    tokens: jax.Array,
    lengths: jax.Array,
    source: Source | None,
    num_beams: int,
    max_new_tokens: int,
    max_len: int,
    end_token: int | None,
    length_penalty: float,
) -> tuple[jax.Array, jax.Array]:
    """Searches in one program.

    Args:
      stepper: the model.
      tokens: [B, P] int32, prompts, padded with 0.
      lengths: [B] int32, their lengths.
      source: tokens and lengths of the sources; None: the model reads none.
      num_beams: K.
      max_new_tokens: M.
      max_len: positions of the model.
      end_token: id that ends a text; None: only M does.
      length_penalty: scores are divided by length ** length_penalty.

    Returns:
      New tokens [B, K, M] and scores [B, K] of the best texts, the best first.
    """
    num_prompts, prompt_len = tokens.shape

    def take(logits: jax.Array, state: State) -> State:
        """Extends open texts by logits [B, K, V]; closes the texts that end."""
        count, vocab_size = state["step"] + 1, logits.shape[-1]
        totals = state["scores"][:, :, None] + jax.nn.log_softmax(logits)
        best, places = jax.lax.top_k(totals.reshape(num_prompts, -1), 2 * num_beams)
        parents, chosen = places // vocab_size, (places % vocab_size).astype(jnp.int32)
        texts = _take_rows(state["texts"], parents)
        texts = jax.lax.dynamic_update_slice(texts, chosen[:, :, None], (0, 0, state["step"]))
        ends = jnp.broadcast_to(count == max_new_tokens, chosen.shape)
        if end_token is not None:
            ends |= chosen == end_token
        scores, kept = jax.lax.top_k(jnp.where(ends, best + NEVER, best), num_beams)

        among_best = jnp.arange(2 * num_beams) < num_beams
        counts = ends & among_best & ~state["done"][:, None]
        length = count.astype(jnp.float32) ** length_penalty
        final = jnp.where(counts, best / length, NEVER)
        merged = jnp.concatenate([state["ended_scores"], final], axis=1)
        ended_scores, winners = jax.lax.top_k(merged, num_beams)
        hopeless = scores[:, 0] / length <= ended_scores[:, -1]
        return state | dict(
            step=count,
            texts=_take_rows(texts, kept),
            scores=scores,
            chosen=_take_rows(chosen, kept),
            parents=_take_rows(parents, kept),
            ended=_take_rows(jnp.concatenate([state["ended"], texts], axis=1), winners),
            ended_scores=ended_scores,
            done=state["done"] | (hopeless & (ended_scores[:, -1] > NEVER)),
        )

    def extend(state: State) -> State:
        first = jnp.arange(num_prompts)[:, None] * num_beams
        origin = (first + state["parents"]).reshape(-1)
        cache = state["cache"]
        cache = cache.replace(layers=jax.tree.map(lambda x: x[origin], cache.layers))
        logits, cache = stepper(state["chosen"].reshape(-1, 1), jnp.ones_like(origin), cache)
        return take(logits.reshape(num_prompts, num_beams, -1), state | {"cache": cache})

    def continues(state: State) -> jax.Array:
        return (state["step"] < max_new_tokens) & ~jnp.all(state["done"])

    cache = stepper.init_cache(num_prompts, min(prompt_len + max_new_tokens, max_len), source)
    logits, cache = stepper(tokens, lengths, cache)
    if not 1 <= num_beams <= logits.shape[-1] // 2:
        raise ValueError(
            f"num_beams = {num_beams}: expected 1 to half of the {logits.shape[-1]} tokens"
        )
    nothing = jnp.zeros((num_prompts, num_beams, max_new_tokens), jnp.int32)
    worst = jnp.full((num_prompts, num_beams), NEVER)
    state = dict(
        step=jnp.int32(0),
        texts=nothing,
        scores=worst.at[:, 0].set(0.0),  # all K texts equal the prompt: only one may be extended
        chosen=nothing[:, :, 0],
        parents=nothing[:, :, 0],
        ended=nothing,
        ended_scores=worst,
        done=jnp.zeros((num_prompts,), bool),
        cache=jax.tree.map(lambda x: jnp.repeat(x, num_beams, axis=0), cache),
    )
    state = take(jnp.repeat(logits[:, None], num_beams, axis=1), state)
    state = jax.lax.while_loop(continues, extend, state)
    return state["ended"], state["ended_scores"]
