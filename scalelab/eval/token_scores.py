"""Token scores of a model at given places of a batch, for evaluation and for filling masks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree

from scalelab.nn.heads import tied_logits
from scalelab.objectives import CARRIED, Pass

Batch = dict[str, jax.Array]
SHORTEST = 16  # minimum padded length, in tokens
# Number of scores in memory at once. With 4M scores, which suit a CPU's caches, a place cost 0.6 of
# the time with 16M (2,048 places, V = 8,192, two cores).
MOST_SCORES, DEFAULT_MOST_SCORES = {"cpu": 2**22}, 2**28


def round_up(length: int, most: int) -> int:
    """Rounds a length up to a power of 2, so that few programs are compiled.

    Args:
      length: tokens.
      most: largest result.
    """
    size = SHORTEST
    while size < length:
        size *= 2
    return min(size, most)


def pad(rows: Sequence[np.ndarray], length: int, size: int) -> dict[str, np.ndarray]:
    """Makes a batch of single texts; missing rows have length 0.

    Args:
      rows: ids [n] each, at most `size` rows.
      length: T.
      size: B.
    """
    tokens, lengths = np.zeros((size, length), np.int32), np.zeros(size, np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
        lengths[i] = len(row)
    return {"tokens": tokens, "lengths": lengths, "examples": np.arange(size, dtype=np.int32)}


def apply(
    function: Callable[[nn.Module], ArrayPytree],
    net: nn.Module,
    params: ArrayPytree,
    carried: ArrayPytree = None,
) -> tuple[ArrayPytree, ArrayPytree]:
    """Applies a function to the bound model.

    Args:
      function: model -> result.
      net: unbound.
      params: its parameters.
      carried: its collection `carried` (memory) before the call; None means an empty memory.

    Returns:
      The function's result, and the collection `carried` after the call.
    """
    found, changed = nn.apply(function, net, mutable=[CARRIED])(
        {"params": params, CARRIED: carried or {}}
    )
    return found, changed.get(CARRIED, {})


def log_chances(net: nn.Module, params: ArrayPytree, batch: Batch, places: jax.Array) -> jax.Array:
    """Returns log-probabilities of all tokens at places: [B, P, V] float32.

    Args:
      net: unbound.
      params: its parameters.
      batch: tokens [B, T] and lengths [B].
      places: [B, P] int32.
    """

    def score(model: nn.Module) -> jax.Array:
        hidden = Pass(jax.random.key(0)).token_hidden(model, batch)
        found = jnp.take_along_axis(hidden, places[..., None], axis=1)
        return tied_logits(*model.token_features(found))

    return jax.nn.log_softmax(apply(score, net, params)[0])


class Places(NamedTuple):
    """The tokens of a batch that are judged; N depends only on the batch's shape."""

    at: np.ndarray | jax.Array  # [N] int32, indices into the flat batch [B * T]; padded with 0
    targets: np.ndarray | jax.Array  # [N] int32, target id of each place
    num: np.int32 | jax.Array  # [] int32, number of places that count, the first of the N


# (scores [V] of all tokens, target []) -> score [...] of the target, such as `nats`.
Judge = Callable[[jax.Array, jax.Array], jax.Array]


def nats(scores: jax.Array, target: jax.Array) -> jax.Array:
    """Returns minus the log-probability of a target, in nats: [] float32.

    Args:
      scores: [V].
      target: [] int32.
    """
    return jax.nn.logsumexp(scores) - scores[target]


def guesses(
    scores: jax.Array, target: jax.Array, among: jax.Array | np.ndarray | None = None
) -> jax.Array:
    """Compares a target with the model's best guess: [3] float32.

    Args:
      scores: [V].
      target: [] int32.
      among: [V] bool, the tokens that may be guessed; None: all.

    Returns:
      Minus the log-probability of the target, minus the log-probability of the most probable token,
      and the target's rank: the number of other tokens with at least its probability (0: a right
      guess).
    """
    total = jax.nn.logsumexp(scores)
    ahead = scores >= scores[target]
    rank = jnp.sum(ahead if among is None else ahead & among) - 1
    return jnp.stack([total - scores[target], total - scores.max(), rank.astype(total.dtype)])


def judge_places(
    net: nn.Module,
    judge: Judge | None,
    params: ArrayPytree,
    batch: Batch,
    places: Places,
    carried: ArrayPytree = None,
) -> tuple[jax.Array, ArrayPytree]:
    """Judges the targets at places of a batch.

    Only the scores of one chunk of places are in memory; chunks of padding are not computed.

    Args:
      net: unbound.
      judge: scores a target; None: a discriminator gives minus the log-probability that the tokens
        are original, in nats (Clark et al. 2020, 2), and the targets are not used.
      params: its parameters.
      batch: tokens [B, T] and lengths [B].
      places: the judged places.
      carried: the model's memory, as in `apply`.

    Returns:
      Scores [N, ...] float32, and the carried state.
    """

    def replaced(model: nn.Module) -> jax.Array:
        return model.replaced_logits(Pass(jax.random.key(0)).hidden(model, batch))

    if judge is None:
        scores, carried = apply(replaced, net, params, carried)
        return jax.nn.softplus(scores.reshape(-1)[places.at]), carried

    def read(model: nn.Module) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        hidden = Pass(jax.random.key(0)).token_hidden(model, batch)
        return model.token_features(hidden.reshape(-1, hidden.shape[-1])[places.at])

    (features, table, bias), carried = apply(read, net, params, carried)
    total, most = len(features), MOST_SCORES.get(jax.default_backend(), DEFAULT_MOST_SCORES)
    chunk = min(total, max(1, most // table.shape[0]))

    def score(start: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_slice_in_dim(features, start, chunk)
        targets = jax.lax.dynamic_slice_in_dim(jnp.asarray(places.targets), start, chunk)
        shift = bias
        if bias is not None and bias.ndim > 1:  # each place has its own
            shift = jax.lax.dynamic_slice_in_dim(bias, start, chunk)
        return jax.vmap(judge)(tied_logits(part, table, shift), targets)

    def add(k: jax.Array, found: jax.Array) -> jax.Array:
        start = jnp.minimum(k * chunk, total - chunk)  # the last chunk may overlap the one before
        return jax.lax.dynamic_update_slice_in_dim(found, score(start), start, 0)

    shape = jax.eval_shape(score, jnp.zeros((), jnp.int32)).shape[1:]
    empty = jnp.zeros((total, *shape), jnp.float32)
    return jax.lax.fori_loop(0, -(-places.num // chunk), add, empty), carried
