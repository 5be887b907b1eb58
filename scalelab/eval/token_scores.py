"""Token scores of a net at given places of a batch, for evaluation and for filling masks."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree

from scalelab.nn.heads import tied_logits
from scalelab.objectives import Pass, xent

Batch = dict[str, jax.Array]
SHORTEST = 16  # tokens that a batch is padded to


def round_up(length: int, most: int) -> int:
    """Rounds a length up to a power of 2, at most `most`, so that few programs are compiled."""
    size = SHORTEST
    while size < length:
        size *= 2
    return min(size, most)


def pad(rows: Sequence[np.ndarray], length: int, size: int) -> dict[str, np.ndarray]:
    """Makes a batch [size, length] of one-segment rows of ids; absent rows have length 0."""
    tokens, lengths = np.zeros((size, length), np.int32), np.zeros(size, np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
        lengths[i] = len(row)
    return {"tokens": tokens, "lengths": lengths, "examples": np.arange(size, dtype=np.int32)}


def log_chances(net: nn.Module, params: ArrayPytree, batch: Batch, places: jax.Array) -> jax.Array:
    """Returns log-probabilities of all tokens at `places` [B, P]: [B, P, V] float32."""
    features, table, bias = _features(net, params, batch, places)
    return jax.nn.log_softmax(tied_logits(features, table, bias))


def nats(
    net: nn.Module, params: ArrayPytree, batch: Batch, places: jax.Array, targets: jax.Array
) -> jax.Array:
    """Returns minus the log-probability of the `targets` [B, P] at `places` [B, P]: float32.

    The scores [B, P, V] are never in memory at once.
    """

    def judge(scores: jax.Array, target: jax.Array) -> jax.Array:
        return jax.nn.logsumexp(scores) - scores[target]

    return _judge_each(judge, net, params, batch, places, targets)


def guesses(
    net: nn.Module,
    params: ArrayPytree,
    batch: Batch,
    places: jax.Array,
    targets: jax.Array,
    among: jax.Array | np.ndarray | None = None,
) -> jax.Array:
    """Says how near the net's best guess at `places` [B, P] is to the `targets` [B, P].

    Args:
      net: unbound.
      params: its parameters.
      batch: rows of tokens.
      places: in the rows.
      targets: ids.
      among: [V], the tokens that may be guessed; None: all.

    Returns:
      [B, P, 3] float32: minus the log-probability of the target; of the most probable token; and
      the number of other tokens that are at least as probable as the target (0: a right guess).
    """

    def judge(scores: jax.Array, target: jax.Array) -> jax.Array:
        total = jax.nn.logsumexp(scores)
        ahead = scores >= scores[target]
        rank = jnp.sum(ahead if among is None else ahead & among) - 1
        return jnp.stack([total - scores[target], total - scores.max(), rank.astype(total.dtype)])

    return _judge_each(judge, net, params, batch, places, targets)


def replaced_nats(
    net: nn.Module, params: ArrayPytree, batch: Batch, places: jax.Array, targets: jax.Array
) -> jax.Array:
    """Returns minus the log-probability that the tokens at `places` [B, P] are original: float32.

    It is the judgement of a discriminator (Clark et al. 2020, 2); `targets` are not read.
    """
    del targets

    def apply(model: nn.Module) -> jax.Array:
        return model.replaced_logits(Pass(jax.random.key(0)).hidden(model, batch))

    scores = nn.apply(apply, net)({"params": params})
    return jax.nn.softplus(jnp.take_along_axis(scores, places, axis=1))


def _judge_each(
    judge: Callable[[jax.Array, jax.Array], jax.Array],
    net: nn.Module,
    params: ArrayPytree,
    batch: Batch,
    places: jax.Array,
    targets: jax.Array,
) -> jax.Array:
    """Returns `judge(scores [V], target)` of each target [B, P], a chunk of them at a time."""
    features, table, bias = _features(net, params, batch, places)
    rows = features.reshape(-1, features.shape[-1])
    at_once = xent.chunk_size(1, len(rows), table.shape[0])
    made = jax.lax.map(
        lambda given: judge(tied_logits(given[0], table, bias), given[1]),
        (rows, targets.reshape(-1)),
        batch_size=at_once,
    )
    return made.reshape(*targets.shape, *made.shape[1:])


def _features(
    net: nn.Module, params: ArrayPytree, batch: Batch, places: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns features [B, P, D] at `places`, and the output table [V, D] and bias [V]."""

    def apply(model: nn.Module) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        hidden = Pass(jax.random.key(0)).token_hidden(model, batch)
        return model.token_features(jnp.take_along_axis(hidden, places[..., None], axis=1))

    return nn.apply(apply, net)({"params": params})
