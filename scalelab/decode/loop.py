"""Continues prompts token by token, in one compiled loop over an explicit cache."""

import concurrent.futures
import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree

from scalelab.decode.choose import Rules, choose, repeats
from scalelab.decode.stepper import Reader, Source
from scalelab.resources import host

ROWS = 16  # fewest texts of a part
SHORTEST = 16  # shortest bucket of lengths; longer ones double it, and each compiles once
ENDINGS = ("length", "end", "repetition")
State = dict[str, ArrayPytree]  # name -> array, or the cache


@dataclasses.dataclass(frozen=True)
class Continuation:
    """The continuation of a prompt."""

    tokens: np.ndarray  # [n] int32, without the last token that ends a text
    ended_by: str  # one of ENDINGS: the length limit, the end token, or a repetition
    score: float | None = None  # the score of `beam.search`


def text_keys(seed: int, prompts: Sequence[np.ndarray], samples: Sequence[int]) -> jax.Array:
    """Returns random keys [B] that depend on each prompt, not on its place or on other prompts.

    Args:
      seed: shared by all prompts.
      prompts: token ids, each [n]; with sources, each is its source and prompt concatenated.
      samples: for each prompt the index of its sample.
    """
    digests = np.array([zlib.crc32(np.asarray(p, np.int32).tobytes()) for p in prompts], np.uint32)
    fold = jax.vmap(jax.random.fold_in)
    keys = fold(jnp.broadcast_to(jax.random.key(seed), len(digests)), digests)
    return fold(keys, np.asarray(samples, np.uint32))


def generate(
    stepper: Reader,
    prompts: Sequence[np.ndarray],
    rules: Rules,
    *,
    max_new_tokens: int,
    max_len: int,
    end_token: int | None,
    keys: jax.Array | None = None,
    rows: jax.sharding.Sharding | None = None,
    sources: Sequence[np.ndarray] | None = None,
    ends: Sequence[int] | None = None,
) -> list[Continuation]:
    """Continues prompts, all at once; raises ValueError as `check` does.

    Args:
      stepper: the model.
      prompts: token ids, each [n], n >= 1.
      rules: rules for choosing tokens.
      max_new_tokens: limit of a continuation.
      max_len: the model's number of positions.
      end_token: id of the token that ends a text, left out of it; None: there is none.
      keys: [B] random keys (`text_keys`); needed if the temperature is not 0.
      rows: sharding of the axis of prompts, the first axis of arrays; None: one device.
      sources: token ids of each prompt's source; None: the model has none.
      ends: with how many end tokens each text is complete; None: with the first.
    """
    check(prompts, max_new_tokens, max_len)
    tokens, lengths = fill(prompts, max_len)
    source = sources and fill(sources, max_len)
    if keys is None:
        assert rules.temperature == 0, "keys are needed to draw"
        keys = jnp.broadcast_to(jax.random.key(0), len(tokens))
    sizes = (rules, max_new_tokens, max_len, end_token)
    last = None if ends is None else np.array(ends, np.int32)
    found = in_parts(
        lambda *given: generate_rows(stepper, *given[:-1], *sizes, given[-1]),
        (tokens, lengths, source, keys, last),
        rows,
    )
    return [
        Continuation(row[:count], ENDINGS[ending])
        for row, count, ending in zip(*found, strict=True)
    ]


def in_parts(
    decode: Callable[..., ArrayPytree],
    given: Sequence[ArrayPytree],
    rows: jax.sharding.Sharding | None,
    beams: int = 1,
) -> ArrayPytree:
    """Decodes rows; on one CPU in parts of equal size, each in a thread.

    A program uses several cores in its matrix products alone, which are small in decoding. Every
    part reads all parameters, so a part has at least ROWS texts.

    Args:
      decode: maps `given` on the device to arrays whose first axis is the rows.
      given: arrays with rows as their first axis.
      rows: their sharding; None: one device.
      beams: texts of each row.

    Returns:
      The arrays of `decode`, on the host.
    """
    count = len(jax.tree.leaves(given)[0])
    on_cpu = jax.default_backend() == "cpu" and (rows is None or rows.num_devices == 1)
    size = -(-count // max(1, min(len(host.cores()), count * beams // ROWS))) if on_cpu else count
    # The last part is filled with its last row, so that all have one shape.
    places = np.minimum(np.arange(-(-count // size) * size), count - 1).reshape(-1, size)

    def part(own: np.ndarray) -> ArrayPytree:
        taken = jax.tree.map(lambda x: x[own], given) if size < count else given
        return jax.device_get(decode(*jax.device_put(taken, rows)))

    if len(places) == 1:
        return part(places[0])
    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        found = list(pool.map(part, places))
    return jax.tree.map(lambda *x: np.concatenate(x)[:count], *found)


@functools.partial(jax.jit, static_argnames=("rules", "max_new_tokens", "max_len", "end_token"))
def generate_rows(
    stepper: Reader,
    tokens: jax.Array,
    lengths: jax.Array,
    source: Source | None,
    keys: jax.Array,
    rules: Rules,
    max_new_tokens: int,
    max_len: int,
    end_token: int | None,
    ends: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Generates in one program.

    Args:
      stepper: the model.
      tokens: [B, P] int32, prompts, padded with 0.
      lengths: [B] int32, their lengths.
      source: tokens and lengths of the sources; None: the model reads none.
      keys: [B] random keys.
      rules: how a token is chosen.
      max_new_tokens: M.
      max_len: positions of the model.
      end_token: id that ends a text; None: there is none.
      ends: [B] int32, with how many end tokens each text is complete; None: with the first.

    Returns:
      New tokens [B, M] int32, their number [B], and the index into ENDINGS [B].
    """
    num_rows, prompt_len = tokens.shape
    rows = jnp.arange(num_rows)

    def take(logits: jax.Array, state: State) -> State:
        """Chooses the next token and ends the texts that it completes."""
        step, seen = state["step"], state.get("seen")
        at = jax.vmap(jax.random.fold_in)(keys, lengths + step)
        chosen = choose(logits, rules, seen, at)
        written = jax.lax.dynamic_update_slice(state["written"], chosen[:, None], (0, step))
        ending, running = state["ending"], state["ending"] == 0
        count = state["count"] + running
        if rules.repetition_stop is not None:
            again = repeats(written, step + 1, rules.repetition_stop)
            ending = jnp.where(running & again, ENDINGS.index("repetition"), ending)
        if end_token is not None:
            at_end = running & (chosen == end_token)
            if ends is not None:
                left = state["left"] = state["left"] - at_end
                at_end &= left == 0
            ending = jnp.where(at_end, ENDINGS.index("end"), ending)
            count = count - at_end
        new = dict(step=step + 1, chosen=chosen, written=written, count=count, ending=ending)
        if seen is not None:
            new["seen"] = seen.at[rows, chosen].set(True)
        return state | new

    def body(state: State) -> State:
        ones = jnp.ones((num_rows,), jnp.int32)
        logits, cache = stepper(state["chosen"][:, None], ones, state["cache"])
        return take(logits, state | {"cache": cache})

    def continues(state: State) -> jax.Array:
        return (state["step"] < max_new_tokens) & jnp.any(state["ending"] == 0)

    cache = stepper.init_cache(num_rows, min(prompt_len + max_new_tokens, max_len), source)
    logits, cache = stepper(tokens, lengths, cache)
    none = jnp.zeros((num_rows,), jnp.int32)
    state: State = dict(step=jnp.int32(0), chosen=none, count=none, ending=none, cache=cache)
    state["written"] = jnp.zeros((num_rows, max_new_tokens), jnp.int32)
    if ends is not None:
        state["left"] = ends
    if rules.repetition_penalty is not None:
        is_text = jnp.arange(prompt_len) < lengths[:, None]
        seen = jnp.zeros(logits.shape, bool)
        state["seen"] = seen.at[rows[:, None], tokens].max(is_text)
    state = jax.lax.while_loop(continues, body, take(logits, state))
    return state["written"], state["count"], state["ending"]


# --- Texts of many lengths in one array ----------------


def check(prompts: Sequence[np.ndarray], max_new_tokens: int, max_len: int) -> None:
    """Refuses prompts that a model cannot continue.

    Args:
      prompts: ids [n] each.
      max_new_tokens: new tokens of each text.
      max_len: tokens that the model may read.

    Raises:
      ValueError: a prompt is empty, or has no space for the new tokens.
    """
    lengths = list(map(len, prompts))
    if min(lengths, default=0) < 1 or max_new_tokens < 1:
        raise ValueError("an empty prompt, or no new tokens: expected at least one of each")
    if max(lengths) + max_new_tokens > max_len:
        raise ValueError(
            f"a prompt of {max(lengths)} tokens and {max_new_tokens} new ones make"
            f" {max(lengths) + max_new_tokens}, but model.max_len is {max_len}: shorten the prompt"
            " or lower max_new_tokens"
        )


def fill(texts: Sequence[np.ndarray], max_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Puts texts into the rows of one array.

    Args:
      texts: ids [n] each, with n >= 1.
      max_len: positions of the model.

    Returns:
      [B, P] int32, with zeros after each text, and lengths [B] int32. P is SHORTEST, doubled until
      the longest text fits, but at most max_len, unless a text is longer: a source is for the model
      to read, as T5 does, or to refuse.
    """
    lengths = np.array([len(text) for text in texts], np.int32)
    assert lengths.min() > 0, "an empty text"
    length = SHORTEST
    while length < lengths.max():
        length *= 2
    tokens = np.zeros((len(texts), min(length, max(max_len, lengths.max()))), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return tokens, lengths
