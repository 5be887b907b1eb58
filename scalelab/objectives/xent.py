"""Cross-entropy over a vocabulary, without ever holding all scores.

-log p(target) = logsumexp(scores) - scores[target]. The second term is a dot product with one row
of the table and needs no scores. The first term is computed for chunks of positions. Its gradient
needs only the softmax, so the forward pass of training also computes the gradients of features
[B, T, D] and table [V, D] chunk by chunk and keeps them in place of the scores [B, T, V]. With
V = 30,000 the scores of 8,192 positions are a gigabyte, and moving them costs as much time as the
products.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp

from scalelab.nn.axes import useful
from scalelab.nn.heads import tied_logits
from scalelab.nn.product import product

# Number of scores in memory at a time on one device. Smaller chunks fit caches better, but their
# products are slower and the table's gradient is summed more often: the sum is slower
# (benchmarks/RESULTS.md).
CHUNK_SCORES = {"cpu": 2**25}
DEFAULT_CHUNK_SCORES = 2**28
# Maximum number of table rows in one product. On CPU a product packs its wide operand into a
# buffer, 960 columns at a time on the cores of benchmarks/RESULTS.md. The allocator of a worker
# thread keeps at most 64 MB of freed memory, so a larger buffer would cost page faults every step.
MOST_ROWS = {"cpu": 15_360}
_PLATFORM: contextvars.ContextVar[str | None] = contextvars.ContextVar("platform", default=None)


@contextlib.contextmanager
def as_on(platform: str | None) -> Iterator[None]:
    """Context: code traced inside is chunked for `platform` ("cpu", "gpu", "tpu").

    None means the default backend.
    """
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def token_cross_entropy(
    features: jax.Array,
    table: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    weights: jax.Array,
    *,
    accuracy: bool = False,
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Returns the weighted cross-entropy, in nats, of the scores features @ table.T + bias.

    Args:
      features: [B, T, D]; products use its dtype and sum in float32.
      table: [V, D].
      bias: [V] or None.
      targets: [B, T] int32.
      weights: [B, T] float32, 0 for positions that do not count.
      accuracy: True also computes the share of targets with the highest score.

    Returns:
      {"loss": (sum, weight)}, float32 scalars, and optionally "accuracy" in the same form.

    Raises:
      ValueError: each place has a bias of its own.
    """
    if bias is not None and bias.ndim > 1:
        raise ValueError(
            "this model scores tokens without a table of vectors: set config.objective to 'clm'"
        )
    rows = jnp.take(table, targets, axis=0, mode="clip").astype(features.dtype)
    own = product("btd,btd->bt", features, rows)
    if bias is not None:
        own = own + jnp.take(bias, targets, mode="clip")
    weight = jnp.sum(weights)
    terms = {}
    if accuracy:
        normalizer, best = _normalizer_and_best(features, table, bias, weights)
        terms["accuracy"] = (jnp.sum((best == targets) * weights), weight)
    else:
        normalizer = weighted_logsumexp(features, table, bias, weights)
    return {"loss": (normalizer - jnp.sum(own * weights), weight)} | terms


def class_cross_entropy(
    logits: jax.Array, labels: jax.Array, counts: jax.Array, *, accuracy: bool = False
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Returns the cross-entropy of classes, in nats.

    Args:
      logits: [B, C] float32.
      labels: [B] int32.
      counts: [B] bool, False for examples that do not count.
      accuracy: True also computes the share of labels with the highest score.

    Returns:
      {"loss": (sum, weight)}, float32 scalars, and optionally "accuracy" in the same form.
    """
    weights = counts.astype(jnp.float32)
    weight = jnp.sum(weights)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]
    terms = {"loss": (jnp.sum(losses * weights), weight)}
    if accuracy:
        hits = jnp.argmax(logits, axis=-1) == labels
        terms["accuracy"] = (jnp.sum(hits * weights), weight)
    return terms


def _chunked(x: jax.Array, size: int) -> jax.Array:
    """Cuts [B, T, ...] along T into [T / size, B, size, ...], padded with zeros."""
    padded = jnp.pad(x, [(0, 0), (0, -x.shape[1] % size)] + [(0, 0)] * (x.ndim - 2))
    return padded.reshape(x.shape[0], -1, size, *x.shape[2:]).swapaxes(0, 1)


def _joined(chunks: jax.Array, length: int) -> jax.Array:
    """Undoes _chunked."""
    x = chunks.swapaxes(0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _platform() -> str:
    return _PLATFORM.get() or jax.default_backend()


def chunk_size(batch_size: int, length: int, vocab_size: int) -> int:
    """Returns the number of positions per chunk: about equal chunks within CHUNK_SCORES.

    Args:
      batch_size: B.
      length: positions of a row.
      vocab_size: V.
    """
    limit = CHUNK_SCORES.get(_platform(), DEFAULT_CHUNK_SCORES)
    devices = max(1, jax.sharding.get_abstract_mesh().size)
    num_chunks = min(length, math.ceil(batch_size * length * vocab_size / (limit * devices)))
    return math.ceil(length / num_chunks)


@jax.custom_vjp
def weighted_logsumexp(
    features: jax.Array, table: jax.Array, bias: jax.Array | None, weights: jax.Array
) -> jax.Array:
    """Returns the sum of weights * logsumexp(features @ table.T + bias), a float32 scalar.

    Args:
      features: [B, T, D].
      table: [V, D].
      bias: [V] or None.
      weights: [B, T] float32.
    """
    batch_size, length = weights.shape
    size = chunk_size(batch_size, length, table.shape[0])

    def add(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        rows, chunk_weights = chunk
        lse = jax.nn.logsumexp(tied_logits(rows, table, bias), axis=-1)
        return total + jnp.sum(lse * chunk_weights), None

    chunks = _chunked(features, size), _chunked(weights, size)
    with useful(length / (len(chunks[1]) * size)):  # the rest is padding
        return jax.lax.scan(add, jnp.zeros((), jnp.float32), chunks)[0]


def _forward(
    features: jax.Array, table: jax.Array, bias: jax.Array | None, weights: jax.Array
) -> tuple[jax.Array, tuple]:
    """Returns the value, and its gradients as residuals."""
    batch_size, length = weights.shape
    size = chunk_size(batch_size, length, table.shape[0])
    # On CPU the bias becomes one more column of the table, and each position gets a 1 for it. This
    # saves two passes over the scores. Not in bfloat16, which would round the bias, nor on other
    # platforms, where products are faster with even sizes.
    scored, own_bias = table, bias
    if bias is not None and features.dtype == jnp.float32 and _platform() == "cpu":
        scored, own_bias = jnp.concatenate([table, bias[:, None]], axis=1), None
    folded = own_bias is not bias
    blocks = row_blocks(scored), row_blocks(own_bias), row_blocks(table)

    def add(sums: tuple, chunk: tuple[jax.Array, jax.Array]) -> tuple[tuple, tuple]:
        rows, chunk_weights = (x.reshape(-1, *x.shape[2:]) for x in chunk)
        wide = jnp.pad(rows, ((0, 0), (0, 1)), constant_values=1) if folded else rows
        terms, kept = _chunk_terms(wide, *blocks, chunk_weights)
        sums = jax.tree.map(jnp.add, sums, terms)
        return sums, tuple(x.reshape(*chunk[1].shape, *x.shape[1:]) for x in kept)

    like = weights[0, 0], [x.T for x in blocks[0]], blocks[1]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
    chunks = _chunked(features, size), _chunked(weights, size)
    (total, table_grad, bias_grad), (features_grad, lse) = jax.lax.scan(add, zeros, chunks)
    table_grad = jnp.concatenate(table_grad, axis=1)
    bias_grad = jnp.concatenate(bias_grad) if bias_grad else None
    if folded:
        table_grad, bias_grad = table_grad[:-1], table_grad[-1]
    return total, (_joined(features_grad, length), table_grad.T, bias_grad, _joined(lse, length))


def row_blocks(x: jax.Array | None) -> list[jax.Array]:
    """Cuts [V, ...] into the fewest blocks that MOST_ROWS allows, about equal; None gives []."""
    if x is None:
        return []
    one_device = jax.sharding.get_abstract_mesh().size < 2
    most = MOST_ROWS.get(_platform(), len(x)) if one_device else len(x)
    size = math.ceil(len(x) / math.ceil(len(x) / most))
    return [x[start : start + size] for start in range(0, len(x), size)]


def _softmax_parts(
    scores: Sequence[jax.Array],
) -> tuple[Sequence[jax.Array], jax.Array, jax.Array]:
    """Returns parts of the softmax of scores [P, V], which come in blocks of columns.

    These are the exponentials exp(score - row maximum) in blocks, their sums [P], and the
    logsumexp [P] of the scores.
    """
    tops = [jnp.max(x, axis=-1, keepdims=True) for x in scores]
    top = functools.reduce(jnp.maximum, tops)
    exps = [jnp.exp(x - top) for x in scores]
    sums = functools.reduce(jnp.add, [jnp.sum(x, axis=-1) for x in exps])
    return exps, sums, jnp.log(sums) + top[:, 0]


def _chunk_terms(
    wide: jax.Array,
    scored: Sequence[jax.Array],
    bias: Sequence[jax.Array],
    table: Sequence[jax.Array],
    weights: jax.Array,
) -> tuple[tuple, tuple[jax.Array, jax.Array]]:
    """Returns the loss sum and gradients of a chunk of positions.

    Args:
      wide: [P, W] features. W is D, or D + 1 if a last column of ones multiplies the bias.
      scored: [V, W] the table, with the bias as last column if W is D + 1; in blocks of rows.
      bias: [V] in blocks; empty if there is no bias or `scored` contains it.
      table: [V, D] in blocks of rows.
      weights: [P].

    Returns:
      A pair. The first part sums over chunks, float32: weighted sum of logsumexp, gradient [W, V]
      of `scored` in blocks, gradient [V] of `bias` in blocks. The second is per position: gradient
      [P, D] of the features in their dtype, logsumexp [P].
    """
    dtype = wide.dtype
    biases = bias or [None] * len(scored)
    scores = [tied_logits(wide, rows, own) for rows, own in zip(scored, biases, strict=True)]
    exps, sums, lse = _softmax_parts(scores)
    # The softmax is exps / sums. Scaling the narrow operand of each product saves a pass over V.
    scale = weights / sums
    exps = [x.astype(dtype) for x in exps]
    matmul = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
    rows_grad = sum(matmul(x, rows.astype(dtype)) for x, rows in zip(exps, table, strict=True))
    # [W, V]: one operand has to be transposed, and on CPU the narrow one costs less.
    scaled = (wide * scale[:, None]).astype(dtype).T
    table_grad = [matmul(scaled, x) for x in exps]
    bias_grad = [matmul(scale.astype(dtype), x) for x in exps] if bias else []
    total = jnp.sum(lse * weights)
    return (total, table_grad, bias_grad), ((rows_grad * scale[:, None]).astype(dtype), lse)


def _backward(grads: tuple, cotangent: jax.Array) -> tuple:
    return jax.tree.map(lambda g: (g * cotangent).astype(g.dtype), grads)


weighted_logsumexp.defvjp(_forward, _backward)


def token_log_probs(
    features: jax.Array, table: jax.Array, bias: jax.Array | None, targets: jax.Array
) -> jax.Array:
    """Returns the log-probabilities of targets under softmax(features @ table.T + bias), in nats.

    The backward pass computes the scores again, chunk by chunk.

    Args:
      features: [B, T, D].
      table: [V, D].
      bias: [V] or None.
      targets: [B, T] int32.

    Returns:
      [B, T] float32.
    """

    def log_probs(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        scores = product("...d,vd->...v", chunk[0], table.astype(chunk[0].dtype))
        scores = scores if bias is None else scores + bias
        own = jnp.take_along_axis(scores, chunk[1][..., None], axis=-1)[..., 0]
        return own - jax.nn.logsumexp(scores, axis=-1)

    return _map_chunks(jax.checkpoint(log_probs), features, targets, table.shape[0])


def sample_tokens(
    features: jax.Array, table: jax.Array, bias: jax.Array | None, uniforms: jax.Array
) -> jax.Array:
    """Draws a token [B, T] int32 from softmax(features @ table.T + bias) at each position.

    Args:
      features: [B, T, D].
      table: [V, D].
      bias: [V] or None.
      uniforms: [B, T] in [0, 1): the token is the first with a higher cumulative probability.
    """

    def sample(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        cumulative = jnp.cumsum(jax.nn.softmax(tied_logits(chunk[0], table, bias)), axis=-1)
        # The rounded cumulative sum may end below 1, so the draw is scaled by its last value.
        drawn = (chunk[1] * cumulative[..., -1])[..., None]
        return jnp.minimum(jnp.sum(cumulative <= drawn, axis=-1), table.shape[0] - 1)

    return jax.lax.stop_gradient(_map_chunks(sample, features, uniforms, table.shape[0]))


def _map_chunks(
    fn: Callable[[tuple[jax.Array, jax.Array]], jax.Array],
    features: jax.Array,
    beside: jax.Array,
    vocab_size: int,
) -> jax.Array:
    """Applies fn to chunks of positions of [B, T, D] and [B, T]; returns [B, T]."""
    batch_size, length = beside.shape
    size = chunk_size(batch_size, length, vocab_size)
    chunks = _chunked(features, size), _chunked(beside, size)
    with useful(length / (len(chunks[1]) * size)):  # the rest is padding
        return _joined(jax.lax.map(fn, chunks), length)


def _normalizer_and_best(
    features: jax.Array, table: jax.Array, bias: jax.Array | None, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the weighted sum of logsumexp, and the ids [B, T] with the highest score."""
    batch_size, length = weights.shape
    size = chunk_size(batch_size, length, table.shape[0])

    def reduce(chunk: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = tied_logits(chunk, table, bias)
        return jax.nn.logsumexp(scores, axis=-1), jnp.argmax(scores, axis=-1)

    lse, best = (_joined(x, length) for x in jax.lax.map(reduce, _chunked(features, size)))
    return jnp.sum(lse * weights), best
