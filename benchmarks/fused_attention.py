"""Self-attention in one kernel for each pass on a GPU: benchmarks.accelerator --candidate=.

Between the projections of query, key and value and that of the output, XLA makes some twenty
kernels of a layer of `scalelab.nn.attention`, which write and read scores and weights [B, N, T, S]
and turn arrays to have heads first. Here one kernel (Pallas, by way of Triton) takes a head of an
example from where the projections left it, and another makes its gradients, from scores that it
computes again: nothing of [T, S] leaves the chip. Tiling by blocks of keys, as of Dao et al. 2022
(FlashAttention), is not needed at T <= 128.

Dropout is the same as `scalelab.nn.dropout`'s, bit by bit. Masks are lengths and causal ones;
with another, a cache or a bias, and where `fits` says no, attention is the net's own.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from scalelab.nn import dropout
from scalelab.nn.attention import MASKED_SCORE

MOST_TOKENS = 128  # whose scores a core holds; lengths and head sizes are powers of two
WARPS = {"forward": 4, "backward": 8}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is known when a kernel is made: causal or not, dropout's rate, whether to interpret."""

    causal: bool
    rate: float
    interpret: bool


def fits(length: int, head_size: int) -> bool:
    """Whether a kernel takes a head: Triton's tiles are of powers of two, from 16."""
    of_two = lambda n: n >= 16 and n & (n - 1) == 0  # noqa: E731
    return of_two(length) and of_two(head_size) and length <= MOST_TOKENS


def _weights(kind: Kind, query: Any, key: Any, length: Any, words: Any) -> tuple[Any, Any, Any]:
    """Softmax [T, S] of a head's scores, what dropout multiplies it with, and who sees whom."""
    size = query.shape[0]
    scores = triton.dot(query, key, trans_b=True) * query.shape[1] ** -0.5
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    allowed = columns < length
    if kind.causal:
        allowed = allowed & (columns <= rows)
    scores = jnp.where(allowed, scores, MASKED_SCORE)
    exps = jnp.exp(scores - scores.max(axis=1)[:, None])
    weights = exps / exps.sum(axis=1)[:, None]
    if not kind.rate:
        return weights, 1.0, allowed
    indices = columns, rows, pl.program_id(1)
    place: Any = 0
    for index, stride in zip(indices, dropout.STRIDES, strict=True):
        place = place + index.astype(jnp.uint32) * jnp.uint32(stride)
    keep = dropout.hashed(place, words[0], words[1]) >= dropout.threshold(kind.rate)
    return weights, jnp.where(keep, 1.0 / (1.0 - kind.rate), 0.0), allowed


def _forward_kernel(kind: Kind, *refs: Any) -> None:
    q, k, v, length, words, out = refs
    weights, factor, _ = _weights(kind, q[...], k[...], length[0], words)
    dropped = (weights.astype(v.dtype) * factor).astype(v.dtype)
    out[...] = triton.dot(dropped, v[...]).astype(out.dtype)


def _backward_kernel(kind: Kind, *refs: Any) -> None:
    q, k, v, length, words, grad, dq, dk, dv = refs
    query, key, gradient = q[...], k[...], grad[...]
    weights, factor, allowed = _weights(kind, query, key, length[0], words)
    dropped = (weights.astype(v.dtype) * factor).astype(v.dtype)
    dv[...] = triton.dot(dropped, gradient, trans_a=True).astype(dv.dtype)
    weights_grad = triton.dot(gradient, v[...], trans_b=True).astype(v.dtype) * factor
    along = (weights_grad * weights).sum(axis=1)[:, None]
    scores_grad = weights * (weights_grad - along) * query.shape[1] ** -0.5
    scores_grad = jnp.where(allowed, scores_grad, 0.0).astype(query.dtype)
    dq[...] = triton.dot(scores_grad, key).astype(dq.dtype)
    dk[...] = triton.dot(scores_grad, query, trans_a=True).astype(dk.dtype)


def _call(kernel: Any, kind: Kind, num_results: int, arrays: Any, length: Any, words: Any) -> Any:
    """Runs a kernel for each head of each example; arrays and results are [B, T, N, K]."""
    like = arrays[0]
    size, num_heads, head_size = like.shape[1:]
    head = pl.BlockSpec((None, size, None, head_size), lambda b, n: (b, 0, n, 0))
    one = pl.BlockSpec((1,), lambda b, n: (b,))
    two = pl.BlockSpec((None, 2), lambda b, n: (b, 0))
    warps = WARPS["forward" if num_results == 1 else "backward"]
    run = pl.pallas_call(
        functools.partial(kernel, kind),
        grid=(like.shape[0], num_heads),
        in_specs=[head, head, head, one, two, *[head] * (len(arrays) - 3)],
        out_specs=[head] * num_results,
        out_shape=[jax.ShapeDtypeStruct(like.shape, like.dtype)] * num_results,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=kind.interpret,
    )
    return run(*arrays[:3], length, words, *arrays[3:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(kind: Kind, q: Any, k: Any, v: Any, lengths: Any, words: Any) -> Any:
    """Attention of a sequence to itself.

    Args:
      kind: see Kind.
      q: queries [B, T, N, K].
      k: keys, of the same shape.
      v: values, of the same shape.
      lengths: [B] int32; keys from there on are not seen.
      words: [B, 2] uint32, dropout.example_words.

    Returns:
      [B, T, N, K].
    """
    return _call(_forward_kernel, kind, 1, (q, k, v), lengths, words)[0]


def _forward(kind: Kind, q: Any, k: Any, v: Any, lengths: Any, words: Any) -> tuple[Any, Any]:
    return attend(kind, q, k, v, lengths, words), (q, k, v, lengths, words)


def _backward(kind: Kind, kept: Any, gradient: Any) -> tuple[Any, ...]:
    q, k, v, lengths, words = kept
    grads = _call(_backward_kernel, kind, 3, (q, k, v, gradient), lengths, words)
    return *grads, None, None


attend.defvjp(_forward, _backward)


def fused_attention(interpret: bool = False) -> type:
    """Self-attention by these kernels where they take its heads; elsewhere as it was.

    Args:
      interpret: whether JAX interprets the kernels, for tests; it is slow.
    """
    from flax import linen as nn

    from scalelab.nn import axes
    from scalelab.nn.attention import SelfAttention
    from scalelab.nn.linear import Linear

    class Words(nn.Module):
        """What dropout draws from for each example, under the name that dropout has."""

        @nn.compact
        def __call__(self, examples: Any) -> Any:
            return dropout.example_words(self.make_rng("dropout"), examples)

    class Fused(SelfAttention):
        @nn.compact
        def __call__(self, x: Any, ctx: Any, cache: Any) -> Any:
            mask = ctx.mask
            unknown = (cache, ctx.bias, mask.segments, mask.global_tokens, mask.query_positions,
                       mask.window)  # fmt: skip
            known = all(value is None for value in unknown)
            if not known or not fits(x.shape[1], self.head_size):
                return super().__call__(x, ctx, cache)
            rate = self.dropout_rate if ctx.train else 0.0
            if rate:
                words = Words(name="dropout")(ctx.examples)
            else:
                words = jnp.zeros((x.shape[0], 2), jnp.uint32)
            lengths = mask.lengths
            if lengths is None:
                lengths = jnp.full(x.shape[:1], x.shape[1], jnp.int32)
            heads = (self._project(name, x) for name in ("query", "key", "value"))
            mixed = attend(Kind(mask.causal, rate, interpret), *heads, lengths, words)
            inner, out = (axes.HEADS, axes.HEAD_SIZE), (axes.WIDTH,)
            init, shape = self.out_kernel_init, x.shape[-1:]
            return Linear(inner, out, shape, init, self.dtype, name="out")(mixed), cache

    return Fused
