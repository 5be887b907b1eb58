"""Our step with something else in a part's place; which, says benchmarks.profile."""

import dataclasses
from typing import Any
from unittest import mock

from benchmarks.step_case import Case, Ours
from scalelab.config import cli

NAMES = (
    "fused_qkv", "dot_product_attention", "padded_vocabulary", "one_pass_norm",
    "dropout_16_bits", "dropout_mask_kept", "dropout_mask_again",
)  # fmt: skip
MULTIPLE = 128  # of the padded vocabulary


def with_candidate(case: Case, name: str) -> Ours:
    """Our step with a candidate.

    Raises:
      cli.Stopped: the candidate cannot do what the case asks for.
    """
    if name == "padded_vocabulary":
        vocab_size = -(-case.vocab_size // MULTIPLE) * MULTIPLE
        return Ours(dataclasses.replace(case, vocab_size=vocab_size))
    if name == "dot_product_attention" and case.dropout_rate:
        raise cli.Stopped("jax.nn.dot_product_attention has no dropout: add --dropout_rate=0")
    with patched(case, name):
        return Ours(case)


def patched(case: Case, name: str) -> Any:
    """A context in which the case's nets are built with a candidate in place of their own part."""
    if name.startswith("dropout"):
        from benchmarks import dropouts
        from scalelab.nn import dropout

        return mock.patch.object(dropout, "drop", dropouts.BY_NAME[name])
    part, make = {
        "fused_qkv": ("SelfAttention", fused_qkv),
        "dot_product_attention": ("SelfAttention", dot_product_attention),
        "one_pass_norm": ("LayerNorm", one_pass_norm),
    }[name]
    return mock.patch.object(case.module, part, make())


def fused_qkv() -> type:
    """Self-attention whose three projections are one product."""
    from scalelab.nn import axes
    from scalelab.nn.attention import SelfAttention
    from scalelab.nn.linear import Linear
    from scalelab.nn.named import constrain

    parts: dict[str, Any] = {}

    class Fused(SelfAttention):
        def _project(self, name: str, x: Any) -> Any:
            """The first call, the query's, makes all three."""
            if name == "query":
                shape = (3, self.num_heads, self.head_size)
                names = (axes.NORM, axes.HEADS, axes.HEAD_SIZE)
                product = Linear((axes.WIDTH,), names, shape, self.kernel_init, name="qkv")(x)
                for k, part in enumerate(("query", "key", "value")):
                    parts[part] = product[..., k, :, :]
            return constrain(parts.pop(name), axes.BATCH, axes.LENGTH, axes.HEADS, axes.HEAD_SIZE)

    return Fused


def dot_product_attention() -> type:
    """Self-attention whose middle is jax.nn's; without cache and bias."""
    import jax
    from flax import linen as nn

    from scalelab.nn import axes
    from scalelab.nn.attention import SelfAttention
    from scalelab.nn.linear import Linear

    class Plain(SelfAttention):
        @nn.compact
        def __call__(self, x: Any, ctx: Any, cache: Any) -> Any:
            assert cache is None and ctx.bias is None
            query, keys, values = (self._project(name, x) for name in ("query", "key", "value"))
            allowed = ctx.mask.dense(x.shape[1], x.shape[1])
            mixed = jax.nn.dot_product_attention(query, keys, values, mask=allowed)
            inner = (axes.HEADS, axes.HEAD_SIZE)
            out = Linear(inner, (axes.WIDTH,), x.shape[-1:], self.out_kernel_init, name="out")
            return out(mixed), cache

    return Plain


def one_pass_norm() -> type:
    """Layer normalisation that reads x once for both moments, and whose gradient is written out.

    The sum before it fuses with that pass. The variance is mean(x^2) - mean(x)^2, which loses
    digits where the mean is large beside the deviation.
    """
    import jax
    import jax.numpy as jnp
    from flax import linen as nn

    from scalelab.nn import axes
    from scalelab.nn.named import parameter
    from scalelab.nn.norm import LayerNorm

    @jax.custom_vjp
    def normalise(x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
        return forward(x, scale, bias, epsilon)[0]

    def forward(x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
        mean = x.mean(axis=-1, keepdims=True)
        variance = jnp.square(x).mean(axis=-1, keepdims=True) - jnp.square(mean)
        factor = jax.lax.rsqrt(variance + epsilon)
        return (x - mean) * factor * scale + bias, (x, mean, factor, scale)

    def backward(kept: Any, grad: Any) -> Any:
        x, mean, factor, scale = kept
        normal = (x - mean) * factor
        scaled = grad * scale
        along = (scaled * normal).mean(axis=-1, keepdims=True)
        x_grad = factor * (scaled - scaled.mean(axis=-1, keepdims=True) - normal * along)
        rows = tuple(range(x.ndim - 1))
        return x_grad, (grad * normal).sum(rows), grad.sum(rows), None

    normalise.defvjp(forward, backward)

    class Norm(LayerNorm):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            shape, init = (x.shape[-1],), nn.initializers
            scale = parameter(self, "scale", init.ones_init(), (axes.NORM,), shape)
            bias = parameter(self, "bias", init.zeros_init(), (axes.NORM,), shape)
            return normalise(x.astype(jnp.float32), scale, bias, self.epsilon).astype(x.dtype)

    return Norm
